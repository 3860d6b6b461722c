//! Answers to requests, in table `requests`: a request that is sent again gets the first one (P19).

use std::{ffi::CStr, iter::zip};

use pgrx::{pg_sys, prelude::*};

use crate::{
    citus::shards::{Map, is_current, map},
    postgres::{
        catalog::{accept_invalidations, find_relation, schema},
        clock::clock_timestamp,
        probe::{Key, Table, find_by},
        row::{Row, values},
        uncommitted::await_inserts,
        versions::{local_transaction, primary_key},
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

/// Waits, as long as `lock_timeout` permits, until no transaction is recording an answer to a request on this node. Shards of
/// which Citus keeps several copies are left out.
#[pg_extern(volatile)]
fn await_recording(ns: i64, principal: i32, request: pgrx::Uuid) {
    search(&map(), &key(ns, principal, request));
}

/// The answer to a request that this node has recorded, if it has. First waits as [`await_recording`] does.
///
/// `placements` are all places of answers in the cluster, and `searched` those that were searched. Nodes that name the same
/// `placements` have seen one state of the cluster. `placements` is NULL if a shard may have moved meanwhile (P57), or has
/// several copies: then the answer counts for nothing.
#[pg_extern(volatile)]
#[allow(clippy::type_complexity)] // The macro needs the columns here.
fn recorded_local(
    ns: i64,
    principal: i32,
    request: pgrx::Uuid,
) -> TableIterator<
    'static,
    (
        name!(placements, Option<Vec<i64>>),
        name!(searched, Vec<i64>),
        name!(request_hash, Option<i64>),
        name!(verb, Option<String>),
        name!(id, Option<i64>),
        name!(version, Option<i64>),
    ),
> {
    let map = map();
    map.tables.lock_for_read();
    let (searched, recorded) = search(&map, &key(ns, principal, request));
    let placements = map.shards.iter().map(|shard| shard.local.is_some().then_some(shard.placement));
    accept_invalidations();
    let is_held = map.shards.is_empty() || (is_current(&map) && is_older_than_snapshots(&map));
    let placements = if is_held { placements.collect() } else { None };
    let Recorded { hash, verb, id, version } = recorded.unwrap_or_default();
    TableIterator::once((placements, searched, hash, verb, id, version))
}

/// Whether rows were read under snapshots that were taken after the map was read.
fn is_older_than_snapshots(map: &Map) -> bool {
    // SAFETY: the session's own setting. At this level each read takes a new snapshot.
    let is_read_committed = unsafe { pg_sys::XactIsoLevel as u32 } == pg_sys::XACT_READ_COMMITTED;
    is_read_committed || map.read_in != local_transaction()
}

/// The columns of a row that make an answer.
#[derive(Default)]
struct Recorded {
    hash: Option<i64>,
    verb: Option<String>,
    id: Option<i64>,
    version: Option<i64>,
}

impl Recorded {
    /// By the order of columns in `sql/tables/requests.sql`.
    fn read(row: &Row) -> Self {
        Self { hash: row.get(4), verb: row.get(5), id: row.get(7), version: row.get(8) }
    }
}

/// Searches this node, and waits for whoever is recording. Returns the places that it has searched.
fn search(map: &Map, key: &[Key]) -> (Vec<i64>, Option<Recorded>) {
    let whole = map.shards.is_empty().then_some((None, &*map.whole));
    let local = map.shards.iter().filter(|shard| shard.group == map.group);
    let shards = local.filter_map(|shard| Some((Some(shard.placement), shard.local.as_deref()?)));
    let (schema, mut searched, mut recorded) = (schema(), Vec::new(), None);
    for (placement, names) in whole.into_iter().chain(shards) {
        let table = find_relation(&names.requests, schema);
        // A shard that has just been moved away is gone. The other node is asked, too.
        if table == pg_sys::InvalidOid {
            continue;
        }
        // SAFETY: an error leaves through pgrx's guard.
        unsafe { pg_sys::LockRelationOid(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE) };
        let Some(table) = Table::open_locked(table) else { continue };
        searched.extend(placement);
        if await_inserts(&table, key) {
            // SAFETY: the table is open, and its primary key begins with these columns.
            recorded = recorded
                .or_else(|| unsafe { find_by(table.relation(), primary_key(table.relation()), key, Recorded::read) });
        }
    }
    (searched, recorded)
}
