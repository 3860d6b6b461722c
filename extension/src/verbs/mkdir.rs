//! `mantle.mkdir`: its arguments and its fast path.

use std::ffi::CStr;

use mantle_types::{message::DirectoryOp, verbs::mkdir};
use pgrx::prelude::*;

use super::{
    elements::{Columns, Element, Texts, documents, values},
    entry::verb,
    fast_path::{Batch, Made},
    tables::LocalTables,
};
use crate::{
    postgres::{call::Arguments, clock::now, row::value, saved_plan::SavedPlan},
    steps::change_stream::{cause, emit, record},
};

const COLUMNS: [&CStr; 3] = [c"explicit", c"user_metadata", c"created"];

thread_local! {
    // An implicit directory is made for an object whose PUT can still fail.
    static QUEUE: SavedPlan = const { SavedPlan::new(
        c"SELECT mantle.queue_pruning($1, $2)", &[pg_sys::INT8OID, pg_sys::INT8OID]) };
}

verb!(mkdir, MKDIR, c"mkdir_fallback", mantle_mkdir, pg_finfo_mantle_mkdir);

fn latch_more(_: &Arguments) -> Option<String> {
    None
}

/// Makes the new directories of a batch; returns the numbers of those made, from 1. If these are all, it also adds to
/// the counts and emits the message; otherwise the fallback does both for the whole batch.
fn fast_path(call: &Arguments) -> Option<Made> {
    let texts = Texts::of(call, &MKDIR.arguments)?;
    let mut columns = Columns::of(call, &texts, &MKDIR.arguments)?;
    let (explicit, user_metadata) = (values(call, mkdir::EXPLICIT)?, documents(call, mkdir::USER_METADATA)?);
    if !columns.have_equal_lengths([explicit.len(), user_metadata.len()]) {
        return None;
    }
    let mut batch = Batch::default();
    let mut made = Vec::new();
    let modes = Spi::connect_mut(|_| {
        let modes = columns.mask_modes(|ns| batch.umask_of(ns));
        let mut local = LocalTables::new(COLUMNS);
        for (at, (explicit, user_metadata)) in explicit.into_iter().zip(user_metadata).enumerate() {
            let Some((e, explicit)) = columns.element(at).zip(explicit) else { continue };
            let Some(tables) = local.of(e.pid) else { continue };
            if !e.name.ends_with('/') || !batch.claim(tables, &e, "mkdir") {
                continue;
            }
            tables.insert(&e, [value(explicit), user_metadata, value(now())]);
            if !explicit {
                QUEUE.with(|s| s.run(&[value(e.pid), value(e.id)]));
            }
            batch.count(at, &e, 1, 0);
            made.push(e);
        }
        if batch.made.len() == columns.name.len() {
            local.count(&batch.deltas, &mut batch.records);
            emit(&made.iter().map(put).collect::<Vec<_>>());
        }
        modes
    });
    Some(Made { numbers: batch.made, modes })
}

fn put(e: &Element<'_>) -> DirectoryOp {
    let record = record(e.ns, e.pid, e.name, e.id, 1, [e.owner, e.grp, e.mode]);
    DirectoryOp::Put { record, cause: Some(cause(e.principal, e.ns, &e.request, 0)) }
}
