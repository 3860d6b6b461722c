//! Row-level security: whether the current role may read a namespace. The policies of `mantle.meta` and
//! `mantle.namespaces` call it for every row, so it answers from memory.
//!
//! Invariant: the cache holds what the statement's own snapshot shows of `mantle.namespace_grants`. It is stored with
//! its role and snapshot, and read again if either changes. So it needs no invalidation. It is as correct as a subquery
//! after `SET ROLE`, in a subtransaction, on a standby and on a Citus worker, and costs one scan of a small table a
//! snapshot. Citus forbids subqueries in policies.
//!
//! The scan does not use SQL: the reader has no privilege on the table, and a query on a shard may not start another
//! one.

use std::{cell::RefCell, collections::HashMap, ffi::CString};

use pgrx::prelude::*;

use crate::postgres::{
    catalog::{self, find_relation, schema},
    probe::{Key, scan},
};

/// A grant of this namespace covers all namespaces, also future ones.
const ALL: i64 = 0;

// These cannot raise, so they bypass pgrx's guard, which would cost as much as the rest of a row's check.
unsafe extern "C-unwind" {
    fn GetUserId() -> pg_sys::Oid;
    fn GetActiveSnapshot() -> pg_sys::Snapshot;
    fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
    fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
}

/// The role and the snapshot of a read. Two snapshots of one database show the same if they have the same `xmax` and as
/// many running transactions: below a fixed `xmax` transactions only end. The last three fields cover the own
/// transaction's changes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct View {
    user: pg_sys::Oid,
    xmin: pg_sys::TransactionId,
    xmax: pg_sys::TransactionId,
    running: u32,
    running_below: i32,
    command: pg_sys::CommandId,
    transaction: pg_sys::TransactionId,
    subtransaction: pg_sys::SubTransactionId,
}

impl View {
    #[inline]
    fn now() -> Self {
        // SAFETY: plain reads of the backend's state; a policy is evaluated under an active snapshot.
        unsafe {
            let snapshot = &*GetActiveSnapshot();
            Self {
                user: GetUserId(),
                xmin: snapshot.xmin,
                xmax: snapshot.xmax,
                running: snapshot.xcnt,
                running_below: snapshot.subxcnt,
                command: snapshot.curcid,
                transaction: GetTopTransactionIdIfAny(),
                subtransaction: GetCurrentSubTransactionId(),
            }
        }
    }
}

struct Grants {
    view: View,
    all: bool,
    /// Sorted.
    namespaces: Vec<i64>,
}

impl Grants {
    fn include(&self, ns: i64) -> bool {
        self.all || self.namespaces.binary_search(&ns).is_ok()
    }
}

thread_local! {
    static GRANTS: RefCell<Option<Grants>> = const { RefCell::new(None) };
}

/// Whether the current role may read rows of this namespace. 0 means all namespaces, and rows that belong to none.
#[pg_extern(stable, parallel_safe, strict)]
fn may_read(ns: i64) -> bool {
    let view = View::now();
    GRANTS.with_borrow_mut(|grants| {
        if let Some(grants) = grants.as_ref()
            && grants.view == view
        {
            return grants.include(ns);
        }
        // SAFETY: a policy runs in a transaction with an active snapshot.
        grants.insert(unsafe { read(view) }).include(ns)
    })
}

/// # Safety
/// Needs a transaction and an active snapshot. An error leaves through pgrx's guard, and nothing is cached.
unsafe fn read(view: View) -> Grants {
    unsafe {
        if pg_sys::has_bypassrls_privilege(view.user) {
            return Grants { view, all: true, namespaces: Vec::new() };
        }
        let mut namespaces = Vec::new();
        let mut is_of_user = HashMap::new();
        scan(grants_table(), pg_sys::InvalidOid, pg_sys::GetActiveSnapshot(), &[], |row| {
            let (Some(role), Some(ns)) = (row.datum(1), row.get::<i64>(2)) else { return };
            let role = role.cast_mut_ptr::<pg_sys::NameData>();
            let has = *is_of_user.entry((*role).data).or_insert_with(|| {
                let role = pg_sys::get_role_oid((*role).data.as_ptr(), true);
                role != pg_sys::InvalidOid && pg_sys::has_privs_of_role(view.user, role)
            });
            if has {
                namespaces.push(ns);
            }
        });
        namespaces.sort_unstable();
        Grants { view, all: namespaces.binary_search(&ALL).is_ok(), namespaces }
    }
}

/// The table of the grants; if it is a reference table of Citus, its one shard, which every node has a copy of.
fn grants_table() -> pg_sys::Oid {
    let table = catalog::table(c"namespace_grants");
    let pg_catalog = pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE);
    let shards = find_relation(c"pg_dist_shard", pg_catalog);
    if shards == pg_sys::InvalidOid {
        return table;
    }
    let index = find_relation(c"pg_dist_shard_logical_relid_index", pg_catalog);
    let mut shard = pg_sys::InvalidOid;
    // SAFETY: the first columns of Citus' catalog are logicalrelid, which the PostgreSQL index is on, and shardid.
    unsafe {
        scan(shards, index, std::ptr::null_mut(), &[Key::oid(1, table)], |row| {
            let name = format!("namespace_grants_{}", row.get::<i64>(2).unwrap_or_default());
            shard = find_relation(&CString::new(name).expect("numbers have no NUL"), schema());
        });
    }
    if shard == pg_sys::InvalidOid { table } else { shard }
}
