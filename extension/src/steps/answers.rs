//! Answers to requests, in table `requests`: a request that is sent again gets the first one (P19).

use std::{ffi::CStr, iter::zip};

use crate::postgres::{clock::clock_timestamp, probe::Key, row::values, writer::Writer};

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
        [Key::int8(1, self.ns), Key::int4(2, self.principal), Key::uuid(3, self.id)]
    }
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
