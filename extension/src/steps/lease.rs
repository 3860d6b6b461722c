//! Leases: how long, and under which history and epoch, a resolved id may be used (P8).
//!
//! A mutation checks its lease after the latches and before it writes anything. Tombstones are kept longer than any
//! lease. So under a valid lease, a directory without a tombstone exists.

use std::{cell::RefCell, collections::HashMap};

use mantle_types::{
    Epoch, ErrorCode, Lease, Lineage,
    limits::{LEASE_S, UMASK_FIRST},
};
use pgrx::prelude::*;

use crate::{
    citus::shards::is_distributed,
    fault::{Fault, sqlstate},
    postgres::{
        clock::{self, POSTGRES_EPOCH_US},
        probe::{Key, Table},
        row::{Row, value},
        saved_plan::SavedPlan,
    },
};

const LEASE_US: i64 = LEASE_S as i64 * 1_000_000;

/// How old an epoch may be that new entries are checked against on Citus, where reading it costs as much as three
/// probes.
const NAMESPACE_AGE_MAX_US: i64 = 1_000_000;
/// Namespaces whose epochs a session remembers.
const NAMESPACES_CACHED_MAX: usize = 1_024;

thread_local! {
    /// By namespace: what was read of it, and when.
    static NAMESPACES: RefCell<HashMap<i64, (Namespace, i64)>> = RefCell::default();
    // For Citus. No row if the namespace does not exist, a NULL epoch if its group does not.
    static NAMESPACE: SavedPlan = const { SavedPlan::new(
        c"SELECT g.epoch, n.umask, n.index_group FROM mantle.namespaces n LEFT JOIN mantle.index_groups g ON g.index_group = n.index_group
           WHERE n.ns = $1", &[pg_sys::INT8OID]) };
}

/// What a change needs to know of its namespace.
#[derive(Clone, Copy)]
pub struct Namespace {
    /// The index group that serves it.
    pub index_group: i32,
    /// Of that group.
    pub epoch: u64,
    /// The mode bits that nothing new in it gets.
    pub umask: i32,
}

/// A namespace; `None` if it does not exist. Only within `Spi::connect`.
pub fn namespace_of(ns: i64) -> Option<Namespace> {
    if !is_distributed() {
        let read = |row: &Row| (row.named::<i32>(c"index_group"), row.named::<i32>(c"umask"));
        let (group, umask) = Table::open(c"namespaces").find(&[Key::int8(1, ns)], read)?;
        let index_group = group.unwrap_or_default();
        let group = [Key::int4(1, index_group)];
        let epoch = Table::open(c"index_groups").find(&group, |row| row.named::<i64>(c"epoch")).flatten();
        let umask = umask.unwrap_or(UMASK_FIRST as i32);
        return Some(Namespace { index_group, epoch: epoch.unwrap_or(0) as u64, umask });
    }
    let read = |row: &Row| Namespace {
        epoch: row.get::<i64>(1).unwrap_or(0) as u64,
        umask: row.get::<i32>(2).unwrap_or(UMASK_FIRST as i32),
        index_group: row.get::<i32>(3).unwrap_or_default(),
    };
    NAMESPACE.with(|s| s.rows(&[value(ns)], read)).pop()
}

/// The same; on Citus it may be up to a second old. That is safe: a namespace removed since then has left a tombstone
/// for each directory, and a raised epoch waits for the end of lookup leases, which are longer. Only within
/// `Spi::connect`.
pub fn recent_namespace_of(ns: i64) -> Option<Namespace> {
    if !is_distributed() {
        return namespace_of(ns);
    }
    let now_us = clock_us();
    let known = NAMESPACES.with_borrow(|known| known.get(&ns).copied());
    if let Some((namespace, read_us)) = known
        && (0..NAMESPACE_AGE_MAX_US).contains(&(now_us - read_us))
    {
        return Some(namespace);
    }
    let namespace = namespace_of(ns)?;
    NAMESPACES.with_borrow_mut(|known| {
        if known.len() >= NAMESPACES_CACHED_MAX {
            known.clear();
        }
        known.insert(ns, (namespace, now_us));
    });
    Some(namespace)
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

pub fn lineage_of_node() -> Lineage {
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
    let epoch = ns.and_then(|ns| Spi::connect_mut(|_| namespace_of(ns)))?.epoch;
    let lease = Lease { deadline_us: clock_us() + LEASE_US, lineage: lineage_of_node(), epoch: Epoch(epoch) };
    Some(lease.to_string())
}

/// MT044 or MT045 if a lease no longer allows a change in a namespace. A NULL lease: the id was resolved in this
/// transaction.
#[pg_extern(volatile)]
fn lease_fault(ns: Option<i64>, lease: Option<&str>) -> Fault {
    // Another check reports a namespace that does not exist.
    let epoch = ns.and_then(|ns| Spi::connect_mut(|_| namespace_of(ns)))?.epoch;
    check(lease, epoch).err().map(sqlstate)
}
