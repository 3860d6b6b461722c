//! mkdir.

use std::ffi::CStr;

use pgrx::prelude::*;

use super::{Call, Columns, Homes, INT4S, INT8S, JSONBS, TEXT, TEXTS, Texts, UUIDS, transaction_start};
use crate::{
    kept::{Kept, argument},
    stream::{NewDirectory, emit_new},
    verb::{Arguments, Verb, verb},
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
    // For an object that may never come: its PUT can fail after this.
    static QUEUE: Kept = const { Kept::new(
        c"SELECT mantle.queue_pruning($1, $2)", &[pg_sys::INT8OID, pg_sys::INT8OID]) };
}

/// `mantle.mkdir`.
static MKDIR: Verb = Verb {
    rest: c"mkdir_fallback",
    rest_types: &[
        INT4S,
        INT8S,
        INT8S,
        TEXTS,
        INT8S,
        INT4S,
        INT4S,
        INT4S,
        pg_sys::BOOLARRAYOID,
        JSONBS,
        UUIDS,
        INT8S,
        TEXTS,
        INT4S,
        TEXT,
    ],
    make,
};

verb!(mantle_mkdir, pg_finfo_mantle_mkdir, MKDIR);

/// Makes the new directories of a batch; answers the numbers of those made, from 1. If that is all, it has also added to
/// the counts and emitted the message; else that is left to the caller, who adds what the others need.
fn make(call: &Arguments) -> Option<Vec<i32>> {
    let texts = Texts::of(call, 12)?;
    let columns = Columns::of(call, &texts, 10)?;
    let (explicit, user_metadata) = (call.get::<Array<bool>>(8)?, call.elements(9, pg_sys::JSONBOID)?);
    if !columns.are_even([explicit.len(), user_metadata.len()]) {
        return None;
    }
    let mut call = Call::default();
    let mut made = Vec::new();
    Spi::connect_mut(|_| {
        let mut homes = Homes::new(COLUMNS);
        for (at, (explicit, user_metadata)) in explicit.iter().zip(user_metadata).enumerate() {
            let Some((e, explicit)) = columns.element(at).zip(explicit) else { continue };
            let Some(tables) = homes.of(e.pid) else { continue };
            if !e.name.ends_with('/') || !call.claim(tables, &e, "mkdir") {
                continue;
            }
            tables.insert([
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
                user_metadata,
                transaction_start(),
            ]);
            if !explicit {
                QUEUE.with(|s| s.run(&[argument(e.pid), argument(e.id)]));
            }
            call.count(at, &e, 1, 0);
            made.push(e);
        }
        if call.made.len() == columns.name.len() {
            homes.count(&call.deltas);
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
