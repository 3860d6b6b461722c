//! What must hold before a mutation may begin, and how a fault leaves Rust.
//!
//! Rust cannot raise a SQLSTATE of our own class (pgrx knows PostgreSQL's only, also of an error that comes through it), so
//! functions answer a code, and `mantle.fault` (plpgsql, STRICT: not even called for NULL) raises it:
//! `PERFORM mantle.fault(mantle.latch_…(…))`.

use mantle_types::ErrorCode;
use mantle_types::limits::{BATCH_ELEMENTS_MAX, BATCH_LATCHES_MAX};
use pgrx::prelude::*;

use crate::fault::{Fault, sqlstate};

/// Under anything but READ COMMITTED the snapshot may be older than the latch (P7): a create would commit below a
/// removed directory. And a mutation whose commit does not wait for the flush would be acknowledged, then lost.
///
/// In a transaction that may only read, or on a standby, raises what a statement that writes does: not all that a mutation
/// writes is written by statements.
pub fn mutation_fault() -> Option<ErrorCode> {
    // SAFETY: the name ends with NUL; an error leaves through pgrx's guard.
    unsafe { pg_sys::PreventCommandIfReadOnly(c"a change of mantle's".as_ptr()) };
    // SAFETY: plain reads of backend-local settings; the string, when not null, is PostgreSQL's and NUL-terminated.
    let (isolation, commit, standbys) = unsafe {
        let names = pg_sys::SyncRepStandbyNames;
        (pg_sys::XactIsoLevel as u32, pg_sys::synchronous_commit as u32, !names.is_null() && *names != 0)
    };
    if isolation > pg_sys::XACT_READ_COMMITTED {
        return Some(ErrorCode::WrongIsolation);
    }
    let weakest = if standbys {
        pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH
    } else {
        pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH
    };
    (commit < weakest).then_some(ErrorCode::WeakCommit)
}

/// What speaks against a batch's arrays: too many elements, unequal lengths.
pub fn shape_error(elements: usize, mut lengths: impl Iterator<Item = usize>) -> Option<ErrorCode> {
    if elements > BATCH_ELEMENTS_MAX {
        return Some(ErrorCode::BatchTooLarge);
    }
    (!lengths.all(|length| length == elements)).then_some(ErrorCode::InvalidArgument)
}

/// Checks a batch before anything else: isolation, commit level, shape. An array that is NULL has no length.
#[pg_extern(volatile)]
fn batch_fault(elements: Option<i32>, lengths: Vec<Option<i32>>) -> Fault {
    if let Some(code) = mutation_fault() {
        return Some(sqlstate(code));
    }
    let Some(elements) = elements else { return Some(sqlstate(ErrorCode::InvalidArgument)) };
    let lengths = lengths.into_iter().map(|length| length.map_or(usize::MAX, |length| length as usize));
    shape_error(elements as usize, lengths).map(sqlstate)
}

/// Is this number of latches too many for one batch? Checked before the first is taken.
pub fn latches_fault(latches: usize) -> Option<ErrorCode> {
    (latches > BATCH_LATCHES_MAX).then_some(ErrorCode::BatchTooLarge)
}
