//! Latches: transaction-scoped advisory locks under classes of our own in the lock tag, which no `pg_advisory*` function
//! can build (those use classes 1 and 2, Citus a few up to 20). So other users neither block nor are blocked.
//!
//! Order, the same everywhere, so that latches never deadlock: epoch, then pids ascending (each with its strongest mode
//! at once), then names ascending by their hash. A latch is a statement of its own before any statement that reads
//! (P7, P12). Bound: `BATCH_LATCHES_MAX` a batch.

use mantle_types::ErrorCode;
use pgrx::{bgworkers::BackgroundWorker, prelude::*};

use super::batch::{latches_fault, mutation_fault};
use crate::{
    citus::placement::are_local,
    fault::{Fault, sqlstate},
    postgres::advisory_lock::{self, Hold, LockTimeoutLimit, Mode, hash},
};

/// Lock-tag classes: `M` and a letter.
#[repr(u16)]
#[derive(Clone, Copy)]
enum Class {
    Pid = 0x4d01,
    Name = 0x4d02,
    Epoch = 0x4d03,
    Allocation = 0x4d04,
    Worker = 0x4d05,
}

/// How long a batch waits for a latch.
const BATCH_WAIT_MS: i32 = 2_000;

fn acquire(class: Class, key: u64, mode: Mode, wait: bool) -> bool {
    advisory_lock::acquire(class as u16, key, mode, Hold::Transaction, wait)
}

/// Makes this session its database's worker, until it ends. `false`: another one is.
pub fn acquire_worker_lock() -> bool {
    BackgroundWorker::transaction(|| {
        advisory_lock::acquire(Class::Worker as u16, 0, Mode::Exclusive, Hold::Session, false)
    })
}

/// Hash of a name without its slash in its directory: object `a` and directory `a/` meet in one latch (P29).
fn name_key(pid: i64, name: &str) -> u64 {
    let name = name.strip_suffix('/').unwrap_or(name).as_bytes();
    hash(name, pid as u64)
}

fn take(mut pids: Vec<(i64, Mode)>, mut names: Vec<u64>) -> Fault {
    // Exclusive first within a pid, so that dedup keeps the strongest.
    pids.sort_by_key(|(pid, mode)| (*pid, *mode != Mode::Exclusive));
    pids.dedup_by_key(|(pid, _)| *pid);
    names.sort_unstable();
    names.dedup();
    if let Some(code) = mutation_fault().or_else(|| latches_fault(pids.len() + names.len())) {
        return Some(sqlstate(code));
    }
    for (pid, mode) in pids {
        acquire(Class::Pid, pid as u64, mode, true);
    }
    for key in names {
        acquire(Class::Name, key, Mode::Exclusive, true);
    }
    None
}

/// Latches for creating, removing or renaming entries: every pid shared (those in `exclusive` exclusively), every name
/// exclusively. NULL elements are passed over; the verb refuses them.
#[pg_extern(volatile)]
fn latch_entries(pids: Array<i64>, names: Array<&str>, exclusive: default!(Option<Vec<Option<i64>>>, "NULL")) -> Fault {
    let keys = pids.iter().zip(names.iter()).filter_map(|(pid, name)| Some(name_key(pid?, name?))).collect();
    let shared = pids.iter().flatten().map(|pid| (pid, Mode::Shared));
    let exclusive = exclusive.unwrap_or_default().into_iter().flatten().map(|pid| (pid, Mode::Exclusive));
    take(shared.chain(exclusive).collect(), keys)
}

/// As `latch_entries`, for a batch: more than one element waits no longer than [`BATCH_WAIT_MS`] for each latch. One behind
/// a latch that is held for long must not keep its neighbours waiting: the caller sends them singly then (P12), and
/// a single one waits as long as it takes. Nothing is latched if a directory is on another node.
#[pg_extern(volatile)]
fn latch_batch(pids: Array<i64>, names: Array<&str>) -> Fault {
    // Before anything is asked of catalogs.
    if let Some(code) = mutation_fault() {
        return Some(sqlstate(code));
    }
    if !are_local(&pids) {
        return Some(sqlstate(ErrorCode::WrongNode));
    }
    let _limit = (names.len() > 1).then(|| LockTimeoutLimit::set(BATCH_WAIT_MS));
    latch_entries(pids, names, None)
}

/// Latches on pids only.
#[pg_extern(volatile)]
fn latch_pids(shared: Array<i64>, exclusive: Array<i64>) -> Fault {
    let shared = shared.iter().flatten().map(|pid| (pid, Mode::Shared));
    let exclusive = exclusive.iter().flatten().map(|pid| (pid, Mode::Exclusive));
    take(shared.chain(exclusive).collect(), Vec::new())
}

/// Tries for the exclusive latch of a pid: false while anybody holds it.
#[pg_extern(volatile)]
fn try_latch_exclusive(pid: i64) -> bool {
    acquire(Class::Pid, pid as u64, Mode::Exclusive, false)
}

/// Tries for the latch of a name: false while somebody holds it.
#[pg_extern(volatile)]
fn try_latch_name(pid: i64, name: &str) -> bool {
    acquire(Class::Name, name_key(pid, name), Mode::Exclusive, false)
}

/// Tries for the shared latch of a pid: false while somebody holds it exclusively.
#[pg_extern(volatile)]
fn try_latch_shared(pid: i64) -> bool {
    acquire(Class::Pid, pid as u64, Mode::Shared, false)
}

/// The epoch of an index group: shared by a rename, exclusively by whoever raises it (P21).
#[pg_extern(volatile)]
fn latch_epoch(index_group: i32, exclusive: bool) -> Fault {
    if let Some(code) = mutation_fault() {
        return Some(sqlstate(code));
    }
    let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
    acquire(Class::Epoch, index_group as u64, mode, true);
    None
}

/// Serialises the allocation of id blocks.
#[pg_extern(volatile)]
fn latch_allocation() -> Fault {
    let fault = mutation_fault().map(sqlstate);
    if fault.is_none() {
        acquire(Class::Allocation, 0, Mode::Exclusive, true);
    }
    fault
}

/// Checks what every mutation needs where no latch is taken.
#[pg_extern(volatile)]
fn mutation_fault_code() -> Fault {
    mutation_fault().map(|code: ErrorCode| sqlstate(code))
}
