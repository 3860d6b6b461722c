//! Answers to requests, in table `requests`: a request that is sent again gets the first one (P19).

use std::{ffi::CStr, iter::zip};

use pgrx::{pg_sys, prelude::*};

use crate::{
    citus::shards::map,
    postgres::{
        catalog::{find_relation, schema},
        clock::clock_timestamp,
        probe::{Key, Table},
        row::values,
        uncommitted::await_inserts,
        writer::Writer,
    },
};

const COLUMNS: [&CStr; 9] =
    [c"ns", c"principal", c"request_id", c"request_hash", c"verb", c"pid", c"id", c"version", c"created"];

/// What names a request, and the hash of its arguments.
#[derive(Clone, Copy)]
pub struct Request {
    pub ns: i64,
    pub principal: i32,
    pub id: pgrx::Uuid,
    pub hash: i64,
}

impl Request {
    /// The first three columns of a primary key by request.
    pub fn key(&self) -> [Key; 3] {
        key(self.ns, self.principal, self.id)
    }
}

fn key(ns: i64, principal: i32, request: pgrx::Uuid) -> [Key; 3] {
    [Key::int8(1, ns), Key::int4(2, principal), Key::uuid(3, request)]
}

/// Table `requests`, or a shard of it, open for a call. Only within `Spi::connect`.
pub struct Answers {
    requests: Writer,
    columns: [i32; COLUMNS.len()],
}

impl Answers {
    pub fn open(name: &CStr) -> Self {
        let requests = Writer::open(name);
        let columns = requests.columns(COLUMNS);
        Self { requests, columns }
    }

    /// Records the answer to a request of `verb`: the entry's directory, id and version. `false` if there is one, or another
    /// call has just recorded it.
    pub fn record(&mut self, request: &Request, verb: &str, [pid, id, version]: [i64; 3]) -> bool {
        let Request { ns, principal, id: request, hash } = *request;
        // Not the start of the transaction.
        let values = values![ns, principal, request, hash, verb, pid, id, version, clock_timestamp()];
        self.requests.insert_if_free(zip(self.columns, values))
    }
}

/// Waits, as long as `lock_timeout` permits, until no transaction is recording an answer to a request on this node.
#[pg_extern(volatile)]
fn await_recording(ns: i64, principal: i32, request: pgrx::Uuid) {
    let (map, schema) = (map(), schema());
    let shards = map.shards.iter().filter(|shard| shard.group == map.group).filter_map(|shard| shard.local.as_deref());
    let whole = map.shards.is_empty().then_some(&*map.whole);
    for names in whole.into_iter().chain(shards) {
        let table = find_relation(&names.requests, schema);
        // A shard that has just been moved away is gone. The other node is asked, too.
        // SAFETY: an error leaves through pgrx's guard.
        unsafe { pg_sys::LockRelationOid(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE) };
        if let Some(table) = Table::open_locked(table) {
            await_inserts(&table, &key(ns, principal, request));
        }
    }
}
