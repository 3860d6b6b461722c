//! Latches: transaction-scoped advisory locks under classes of our own in the lock tag, which no `pg_advisory*` function
//! can build (those use classes 1 and 2, Citus a few up to 20). So other users neither block nor are blocked.
//!
//! Order, the same everywhere, so that latches never deadlock: epoch, then pids ascending (each with its strongest mode
//! at once), then names ascending by their hash. A latch is a statement of its own before any statement that reads
//! (P7, P12). Bound: `BATCH_LATCHES_MAX` a batch.

use mantle_types::ErrorCode;
use pgrx::{bgworkers::BackgroundWorker, prelude::*};

use crate::{
    distribution::are_local,
    guard::{Fault, latches_fault, mutation_fault, sqlstate},
};

unsafe extern "C" {
    // Not bound by pgrx. Stable across versions 12 to 18.
    fn hash_bytes_extended(bytes: *const u8, length: i32, seed: u64) -> u64;
}

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

/// Lowers `lock_timeout` while it lives: the setting itself, since a `SET LOCAL` would outlive the call in a longer
/// transaction. Also an error unwinds through `drop`.
struct LockTimeoutLimit(i32);

impl LockTimeoutLimit {
    fn set() -> Self {
        // SAFETY: a backend has one thread; what is written is in the setting's range (0: no limit).
        unsafe {
            let before = pg_sys::LockTimeout;
            pg_sys::LockTimeout = if before == 0 { BATCH_WAIT_MS } else { before.min(BATCH_WAIT_MS) };
            Self(before)
        }
    }
}

impl Drop for LockTimeoutLimit {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pg_sys::LockTimeout = self.0 };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Exclusive,
}

/// How long a latch is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Transaction,
    Session,
}

fn acquire(class: Class, key: u64, mode: Mode, wait: bool) -> bool {
    acquire_for(Hold::Transaction, class, key, mode, wait)
}

fn acquire_for(hold: Hold, class: Class, key: u64, mode: Mode, wait: bool) -> bool {
    // SAFETY: reads the backend's database id; LockAcquire copies the tag. An error (lock_timeout, deadlock, out of
    // lock table) leaves through pgrx's guard.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: pg_sys::MyDatabaseId.to_u32(),
            locktag_field2: (key >> 32) as u32,
            locktag_field3: key as u32,
            locktag_field4: class as u16,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        };
        let mode = match mode {
            Mode::Shared => pg_sys::ShareLock,
            Mode::Exclusive => pg_sys::ExclusiveLock,
        };
        let result = pg_sys::LockAcquire(&tag, mode as i32, hold == Hold::Session, !wait);
        result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// Makes this session its database's worker, until it ends. `false`: another one is.
pub fn be_the_only_worker() -> bool {
    BackgroundWorker::transaction(|| acquire_for(Hold::Session, Class::Worker, 0, Mode::Exclusive, false))
}

/// Hash of a name without its slash in its directory: object `a` and directory `a/` meet in one latch (P29).
fn name_key(pid: i64, name: &str) -> u64 {
    let name = name.strip_suffix('/').unwrap_or(name).as_bytes();
    // SAFETY: pointer and length are of one slice.
    unsafe { hash_bytes_extended(name.as_ptr(), name.len() as i32, pid as u64) }
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
    let _limit = (names.len() > 1).then(LockTimeoutLimit::set);
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
