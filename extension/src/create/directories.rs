//! mkdir.

use pgrx::{JsonB, prelude::*};

use super::{BOOL, Call, Columns, INT4, INT8, JSONB, TEXT};
use crate::{
    kept::{Kept, argument},
    stream::{NewDirectory, emit_new},
};

thread_local! {
    static INSERT_DIRECTORY: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $9, now())",
        &[INT8, TEXT, INT8, INT8, INT4, INT4, INT4, BOOL, JSONB]) };
    // For an object that may never come: its PUT can fail after this.
    static QUEUE: Kept = const { Kept::new(c"SELECT mantle.queue_pruning($1, $2)", &[INT8, INT8]) };
}

/// Makes the new directories of a batch; answers the numbers of those made, from 1. If that is all, it has also added to
/// the counts and emitted the message; else that is left to the caller, who adds what the others need.
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
) -> Vec<i32> {
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
    };
    let mut call = Call::default();
    let mut made = Vec::new();
    Spi::connect_mut(|_| {
        for (at, (explicit, user_metadata)) in explicit.iter().zip(user_metadata.iter()).enumerate() {
            let Some((e, explicit)) = columns.element(at).zip(explicit) else { continue };
            if !e.name.ends_with('/') || !call.claim(&e, "mkdir") {
                continue;
            }
            INSERT_DIRECTORY.with(|s| {
                s.run(&[
                    argument(e.pid),
                    argument(e.name),
                    argument(e.ns),
                    argument(e.id),
                    argument(e.owner),
                    argument(e.grp),
                    argument(e.mode),
                    argument(explicit),
                    argument(user_metadata),
                ])
            });
            if !explicit {
                QUEUE.with(|s| s.run(&[argument(e.pid), argument(e.id)]));
            }
            call.count(at, &e, 1, 0);
            made.push(e);
        }
        if call.made.len() == columns.name.len() {
            call.deltas.iter().for_each(|(pid, delta)| delta.add_to(*pid));
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
    call.made
}
