//! Latches: advisory locks until the end of the transaction, in lock classes of our own.
//!
//! No `pg_advisory*` function can make these lock tags (they use classes 1 and 2; Citus uses a few up to 20). So other
//! users of advisory locks neither block latches nor are blocked by them (P6).
//!
//! Invariants: all callers take latches in one order, so that they never deadlock: epoch, then pids ascending (the
//! strongest mode of each at once), then names ascending by hash, then moves, then segments ascending. A latch is a
//! statement of its own, before any statement that reads (P7, P12). A batch takes at most `BATCH_LATCHES_MAX`.

use mantle_types::ErrorCode;
use pgrx::{bgworkers::BackgroundWorker, prelude::*};

use super::{
    batch::{latches_fault, mutation_fault_code},
    name::stem,
    segment::segment_of,
};
use crate::{
    citus::placement::are_local,
    fault::{Fault, sqlstate},
    postgres::advisory_lock::{self, Hold, LockTimeoutLimit, Mode, hash},
};

/// Lock classes: the letter `M` and a number.
#[repr(u16)]
#[derive(Clone, Copy)]
enum Class {
    Pid = 0x4d01,
    Name = 0x4d02,
    Epoch = 0x4d03,
    Allocation = 0x4d04,
    Worker = 0x4d05,
    Move = 0x4d06,
    Segment = 0x4d07,
}

/// How long a batch of several elements waits for each latch.
const BATCH_WAIT_MS: i32 = 2_000;

fn acquire(class: Class, key: u64, mode: Mode, wait: bool) -> bool {
    advisory_lock::acquire(class as u16, key, mode, Hold::Transaction, wait)
}

/// Makes this session the database's worker until the session ends. `false` if there is one.
pub fn acquire_worker_lock() -> bool {
    BackgroundWorker::transaction(|| {
        advisory_lock::acquire(Class::Worker as u16, 0, Mode::Exclusive, Hold::Session, false)
    })
}

/// Hash of directory and name without its slash: object `a` and directory `a/` have one latch (P29).
fn name_key(pid: i64, name: &str) -> u64 {
    hash(stem(name).as_bytes(), pid as u64)
}

fn take(mut pids: Vec<(i64, Mode)>, mut names: Vec<u64>) -> Fault {
    // Exclusive comes first, so that dedup keeps the strongest mode of a pid.
    pids.sort_by_key(|(pid, mode)| (*pid, *mode != Mode::Exclusive));
    pids.dedup_by_key(|(pid, _)| *pid);
    names.sort_unstable();
    names.dedup();
    let fault = mutation_fault_code().or_else(|| latches_fault(pids.len() + names.len()));
    if fault.is_some() {
        return fault;
    }
    for (pid, mode) in pids {
        acquire(Class::Pid, pid as u64, mode, true);
    }
    for key in names {
        acquire(Class::Name, key, Mode::Exclusive, true);
    }
    None
}

/// Latches for creating, removing or renaming entries: pids shared (those in `exclusive` exclusively), names
/// exclusively. Skips NULL elements, which the verb refuses.
#[pg_extern(volatile)]
fn latch_entries(pids: Array<i64>, names: Array<&str>, exclusive: default!(Option<Vec<Option<i64>>>, "NULL")) -> Fault {
    let keys = pids.iter().zip(names.iter()).filter_map(|(pid, name)| Some(name_key(pid?, name?))).collect();
    let shared = pids.iter().flatten().map(|pid| (pid, Mode::Shared));
    let exclusive = exclusive.unwrap_or_default().into_iter().flatten().map(|pid| (pid, Mode::Exclusive));
    take(shared.chain(exclusive).collect(), keys)
}

/// Like `latch_entries`, for a batch. Several elements wait at most 2 s ([`BATCH_WAIT_MS`]) for each latch, then 55P03,
/// so that one latch that is held for long does not delay the others: the caller then sends them singly (P12). A single
/// element waits as long as `lock_timeout` allows, which each verb sets. MT043, and no latch, if a directory is on another node.
#[pg_extern(volatile)]
fn latch_batch(pids: Array<i64>, names: Array<&str>) -> Fault {
    // Before any read of a catalog.
    let fault = mutation_fault_code();
    if fault.is_some() {
        return fault;
    }
    if !are_local(&pids) {
        return Some(sqlstate(ErrorCode::WrongNode));
    }
    let _limit = (names.len() > 1).then(|| LockTimeoutLimit::set(BATCH_WAIT_MS));
    latch_entries(pids, names, None)
}

/// Latches pids, shared and exclusively.
#[pg_extern(volatile)]
fn latch_pids(shared: Array<i64>, exclusive: Array<i64>) -> Fault {
    let shared = shared.iter().flatten().map(|pid| (pid, Mode::Shared));
    let exclusive = exclusive.iter().flatten().map(|pid| (pid, Mode::Exclusive));
    take(shared.chain(exclusive).collect(), Vec::new())
}

/// Tries for the exclusive latch of a pid: false if any session holds it.
#[pg_extern(volatile)]
fn try_latch_exclusive(pid: i64) -> bool {
    acquire(Class::Pid, pid as u64, Mode::Exclusive, false)
}

/// Tries for the latch of a name: false if a session holds it.
#[pg_extern(volatile)]
fn try_latch_name(pid: i64, name: &str) -> bool {
    acquire(Class::Name, name_key(pid, name), Mode::Exclusive, false)
}

/// Tries for the shared latch of a pid: false if a session holds it exclusively.
#[pg_extern(volatile)]
fn try_latch_shared(pid: i64) -> bool {
    acquire(Class::Pid, pid as u64, Mode::Shared, false)
}

/// Latches the epoch of an index group: a rename shared, `raise_epoch` exclusively (P21).
#[pg_extern(volatile)]
fn latch_epoch(index_group: i32, exclusive: bool) -> Fault {
    let fault = mutation_fault_code();
    if fault.is_none() {
        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
        acquire(Class::Epoch, index_group as u64, mode, true);
    }
    fault
}

/// Latches the allocation of id blocks, which serialises it.
#[pg_extern(volatile)]
fn latch_allocation() -> Fault {
    let fault = mutation_fault_code();
    if fault.is_none() {
        acquire(Class::Allocation, 0, Mode::Exclusive, true);
    }
    fault
}

/// Latches the moves of objects: a move shared, at its destination; the sweeper exclusively, on every node (P51).
#[pg_extern(volatile)]
fn latch_moves(exclusive: bool) {
    let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
    acquire(Class::Move, 0, mode, true);
}

/// The key of a segment's latch.
fn segment_key(volume: i32, segment: i32) -> u64 {
    (u64::from(volume as u32) << 32) | u64::from(segment as u32)
}

fn take_segments(mut keys: Vec<u64>, mode: Mode) -> Fault {
    keys.sort_unstable();
    keys.dedup();
    let fault = mutation_fault_code().or_else(|| latches_fault(keys.len()));
    if fault.is_none() {
        for key in keys {
            acquire(Class::Segment, key, mode, true);
        }
    }
    fault
}

/// Latches the segments of those locators that are of bytes in volumes, shared (P59). Several locators wait as in `latch_batch`.
#[pg_extern(volatile)]
fn latch_segments(locators: Array<&str>) -> Fault {
    let _limit = (locators.len() > 1).then(|| LockTimeoutLimit::set(BATCH_WAIT_MS));
    let named = locators.iter().flatten().filter_map(segment_of);
    take_segments(named.map(|(volume, segment, _)| segment_key(volume, segment)).collect(), Mode::Shared)
}

/// Latches segments of a volume: exclusively to admit a new epoch, shared to take what was freed in them.
#[pg_extern(volatile)]
fn latch_volume_segments(volume: i32, segments: Array<i32>, exclusive: bool) -> Fault {
    let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
    take_segments(segments.iter().flatten().map(|segment| segment_key(volume, segment)).collect(), mode)
}
