//! Leases: how long, and under which history and epoch, a resolved id may be used (P8).
//!
//! A mutation checks its lease after the latches and before it writes anything. So an absent tombstone means that the
//! directory is live: tombstones are kept longer than any lease.

use std::{cell::RefCell, collections::HashMap};

use mantle_types::{Epoch, ErrorCode, Lease, Lineage, limits::LEASE_S};
use pgrx::prelude::*;

use crate::{
    citus::shards::is_distributed,
    fault::{Fault, sqlstate},
    postgres::{
        clock::{self, POSTGRES_EPOCH_US},
        probe::{Key, Table},
        row::value,
        saved_plan::SavedPlan,
    },
};

const LEASE_US: i64 = LEASE_S as i64 * 1_000_000;

/// How old an epoch may be that new entries are checked against on Citus, where reading it costs as much as three
/// probes.
const EPOCH_AGE_MAX_US: i64 = 1_000_000;
/// Namespaces whose epochs a session remembers.
const EPOCHS_CACHED_MAX: usize = 1_024;

thread_local! {
    /// By namespace: its epoch, and when it was read.
    static EPOCHS: RefCell<HashMap<i64, (u64, i64)>> = RefCell::default();
    // For Citus. No row if the namespace does not exist, NULL if its group does not.
    static EPOCH: SavedPlan = const { SavedPlan::new(
        c"SELECT g.epoch FROM mantle.namespaces n LEFT JOIN mantle.index_groups g ON g.index_group = n.index_group
           WHERE n.ns = $1", &[pg_sys::INT8OID]) };
}

/// The epoch of a namespace's index group; `None` if there is no such namespace. Only within `Spi::connect`.
pub fn epoch_of(ns: i64) -> Option<u64> {
    if !is_distributed() {
        let group = Table::open(c"namespaces").find(&[Key::int8(1, ns)], |row| row.named::<i32>(c"index_group"))?;
        let group = [Key::int4(1, group.unwrap_or_default())];
        let epoch = Table::open(c"index_groups").find(&group, |row| row.named::<i64>(c"epoch")).flatten();
        return Some(epoch.unwrap_or(0) as u64);
    }
    EPOCH.with(|s| s.rows(&[value(ns)], |row| row.get::<i64>(1).unwrap_or(0) as u64)).pop()
}

/// The same; on Citus it may be up to a second old. That is safe: a namespace removed since then has left a tombstone
/// for each directory, and a raised epoch waits for the end of lookup leases, which are longer. Only within
/// `Spi::connect`.
pub fn recent_epoch_of(ns: i64) -> Option<u64> {
    if !is_distributed() {
        return epoch_of(ns);
    }
    let now_us = clock_us();
    let known = EPOCHS.with_borrow(|epochs| epochs.get(&ns).copied());
    if let Some((epoch, read_us)) = known
        && (0..EPOCH_AGE_MAX_US).contains(&(now_us - read_us))
    {
        return Some(epoch);
    }
    let epoch = epoch_of(ns)?;
    EPOCHS.with_borrow_mut(|epochs| {
        if epochs.len() >= EPOCHS_CACHED_MAX {
            epochs.clear();
        }
        epochs.insert(ns, (epoch, now_us));
    });
    Some(epoch)
}

/// Checks a lease. Without one, the id was resolved in this transaction, which must be young enough.
pub fn check(lease: Option<&str>, epoch: u64) -> Result<(), ErrorCode> {
    let Some(lease) = lease else {
        let age_us = clock::clock_timestamp() - clock::now();
        return if age_us <= LEASE_US { Ok(()) } else { Err(ErrorCode::LeaseExpired) };
    };
    let lease: Lease = lease.parse().map_err(|_| ErrorCode::InvalidArgument)?;
    let left_us = lease.deadline_us - clock_us();
    // More than a whole lease is left if the clock of an earlier primary was ahead of this one.
    if !(0..=LEASE_US).contains(&left_us) {
        return Err(ErrorCode::LeaseExpired);
    }
    if lease.lineage != lineage_of_node() || lease.epoch.0 != epoch {
        return Err(ErrorCode::LineageChanged);
    }
    Ok(())
}

/// Microseconds since 1970.
fn clock_us() -> i64 {
    clock::clock_timestamp() + POSTGRES_EPOCH_US
}

fn lineage_of_node() -> Lineage {
    // SAFETY: plain reads of shared memory that is set before the first session; a running primary never changes its
    // timeline.
    unsafe { Lineage { system_identifier: pg_sys::GetSystemIdentifier(), timeline: pg_sys::GetWALInsertionTimeLine() } }
}

/// The lineage of this node, `system identifier/timeline`, in the form that leases have.
#[pg_extern(stable, security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn lineage() -> String {
    lineage_of_node().to_string()
}

/// A lease (`p_lease` of the verbs) for ids of a namespace that are resolved after this call, for changes on this node.
/// NULL if there is no such namespace.
#[pg_extern(volatile, security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn lease(ns: Option<i64>) -> Option<String> {
    let epoch = ns.and_then(|ns| Spi::connect_mut(|_| epoch_of(ns)))?;
    let lease = Lease { deadline_us: clock_us() + LEASE_US, lineage: lineage_of_node(), epoch: Epoch(epoch) };
    Some(lease.to_string())
}

/// MT044 or MT045 if a lease no longer allows a change in a namespace. A NULL lease: the id was resolved in this
/// transaction.
#[pg_extern(volatile)]
fn lease_fault(ns: Option<i64>, lease: Option<&str>) -> Fault {
    // Another check reports a namespace that does not exist.
    let epoch = ns.and_then(|ns| Spi::connect_mut(|_| epoch_of(ns)))?;
    check(lease, epoch).err().map(sqlstate)
}
