//! What must hold before a mutation begins: isolation level, commit level, the shape of its batch.

use mantle_types::{
    ErrorCode,
    limits::{BATCH_ELEMENTS_MAX, BATCH_LATCHES_MAX},
};
use pgrx::prelude::*;

use crate::fault::{Fault, sqlstate};

/// PostgreSQL's SQLSTATE for a write in a read-only transaction.
const READ_ONLY: &str = "25006";

/// The SQLSTATE with which this transaction refuses every mutation, by its isolation, commit level and write access; NULL if
/// it does not. Under another isolation level than READ COMMITTED the snapshot may be older than the latch (P7), and a create
/// could commit below a removed directory. A commit that does not wait for the flush could be acknowledged, then lost. So could
/// one whose wait for a standby was cancelled, if the client does not get the warning that says so (P18).
#[pg_extern(volatile)]
pub fn mutation_fault_code() -> Fault {
    // Not every write of a mutation is a statement, which PostgreSQL would refuse. SAFETY: a plain read.
    if unsafe { pg_sys::XactReadOnly } {
        return Some(READ_ONLY);
    }
    // SAFETY: plain reads of backend-local settings; a string that is not null ends with NUL.
    let (isolation, commit, messages, standbys) = unsafe {
        let names = pg_sys::SyncRepStandbyNames;
        let messages = pg_sys::client_min_messages;
        (pg_sys::XactIsoLevel as u32, pg_sys::synchronous_commit as u32, messages, !names.is_null() && *names != 0)
    };
    if isolation > pg_sys::XACT_READ_COMMITTED {
        return Some(sqlstate(ErrorCode::WrongIsolation));
    }
    let weakest = if standbys {
        pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH
    } else {
        pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH
    };
    let hides_warnings = standbys && messages > PgLogLevel::WARNING as i32;
    (commit < weakest || hides_warnings).then(|| sqlstate(ErrorCode::WeakCommit))
}

/// Refuses too many elements, and arrays of unequal lengths.
pub fn shape_error(elements: usize, mut lengths: impl Iterator<Item = usize>) -> Option<ErrorCode> {
    if elements > BATCH_ELEMENTS_MAX {
        return Some(ErrorCode::BatchTooLarge);
    }
    (!lengths.all(|length| length == elements)).then_some(ErrorCode::InvalidArgument)
}

/// Checks isolation, commit level, write access (25006), and that the arrays of a batch have equal lengths within the
/// limit. An array that is NULL has the length NULL.
#[pg_extern(volatile)]
fn batch_fault(elements: Option<i32>, lengths: Vec<Option<i32>>) -> Fault {
    let fault = mutation_fault_code();
    if fault.is_some() {
        return fault;
    }
    let Some(elements) = elements else { return Some(sqlstate(ErrorCode::InvalidArgument)) };
    let lengths = lengths.into_iter().map(|length| length.map_or(usize::MAX, |length| length as usize));
    shape_error(elements as usize, lengths).map(sqlstate)
}

/// Refuses too many latches, before the first is taken.
pub fn latches_fault(latches: usize) -> Fault {
    (latches > BATCH_LATCHES_MAX).then(|| sqlstate(ErrorCode::BatchTooLarge))
}
