//! mkdir.

use std::ffi::CStr;

use pgrx::{JsonB, prelude::*};

use super::{BOOL, Call, Columns, INT4, INT8, JSONB, Rows, TEXT, TIME, meta, transaction_start};
use crate::{
    kept::{Kept, argument},
    stream::{NewDirectory, emit_new},
};

const COLUMNS: [&CStr; 12] = [
    c"pid",
    c"name",
    c"ts",
    c"ns",
    c"id",
    c"owner",
    c"grp",
    c"mode",
    c"version",
    c"explicit",
    c"user_metadata",
    c"created",
];

thread_local! {
    static INSERT: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ts, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        &[INT8, TEXT, INT8, INT8, INT8, INT4, INT4, INT4, INT8, BOOL, JSONB, TIME]) };
    // For an object that may never come: its PUT can fail after this.
    static QUEUE: Kept = const { Kept::new(c"SELECT mantle.queue_pruning($1, $2)", &[INT8, INT8]) };
}

/// Makes the new directories of a batch; answers the numbers of those made, from 1. If that is all, it has also added to
/// the counts and emitted the message; else that is left to the caller, who adds what the others need.
/// Leases: none, or each's. `None`, and nothing was done: the arrays are not equally long, or, as PostgreSQL has it of such
/// functions, one is NULL.
#[pg_extern(volatile)]
#[allow(clippy::too_many_arguments)]
fn mkdir_new(
    principal: Array<i32>,
    ns: Array<i64>,
    pid: Array<i64>,
    name: Array<&str>,
    id: Array<i64>,
    owner: Array<i32>,
    grp: Array<i32>,
    mode: Array<i32>,
    explicit: Array<bool>,
    user_metadata: Array<JsonB>,
    request: Array<pgrx::Uuid>,
    hash: Array<i64>,
    lease: Array<&str>,
) -> Option<Vec<i32>> {
    let columns = Columns {
        principal: principal.iter().collect(),
        ns: ns.iter().collect(),
        pid: pid.iter().collect(),
        name: name.iter().collect(),
        id: id.iter().collect(),
        owner: owner.iter().collect(),
        grp: grp.iter().collect(),
        mode: mode.iter().collect(),
        request: request.iter().collect(),
        hash: hash.iter().collect(),
        lease: lease.iter().collect(),
    };
    if !columns.are_even([explicit.len(), user_metadata.len()]) {
        return None;
    }
    let mut call = Call::default();
    let mut made = Vec::new();
    Spi::connect_mut(|_| {
        let mut rows = Rows::new(COLUMNS, &INSERT);
        for (at, (explicit, user_metadata)) in explicit.iter().zip(user_metadata.iter()).enumerate() {
            let Some((e, explicit)) = columns.element(at).zip(explicit) else { continue };
            if !e.name.ends_with('/') || !call.claim(meta().as_ref(), &e, "mkdir") {
                continue;
            }
            rows.insert([
                argument(e.pid),
                argument(e.name),
                argument(0_i64),
                argument(e.ns),
                argument(e.id),
                argument(e.owner),
                argument(e.grp),
                argument(e.mode),
                argument(1_i64),
                argument(explicit),
                argument(user_metadata),
                transaction_start(),
            ]);
            if !explicit {
                QUEUE.with(|s| s.run(&[argument(e.pid), argument(e.id)]));
            }
            call.count(at, &e, 1, 0);
            made.push(e);
        }
        if call.made.len() == columns.name.len() {
            rows.count(&call.deltas);
            emit_new(made.iter().map(|e| NewDirectory {
                ns: e.ns,
                pid: e.pid,
                name: e.name,
                id: e.id,
                owner: e.owner,
                grp: e.grp,
                mode: e.mode,
                principal: e.principal,
                request: e.request,
            }));
        }
    });
    Some(call.made)
}
