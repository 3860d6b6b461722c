//! Row-level security: may the current role read a namespace? The policies of `mantle.meta` and `mantle.namespaces` ask for
//! every row, so the answer comes from memory.
//!
//! What is kept in memory is exactly what the statement's own snapshot shows of `mantle.namespace_grants`: it is kept with the
//! role and the snapshot it was read under, and read again as soon as either is another. So it needs no invalidation, is as
//! right after `SET ROLE`, in a subtransaction, on a standby and on a Citus worker as a subquery would be (which Citus does not
//! allow in policies), and costs one scan of a small table a snapshot.
//!
//! The table is read directly, not by SQL: the reader has no privilege on it, and a query on a shard may not begin another.

use std::{cell::RefCell, collections::HashMap, ffi::CString, num::NonZeroUsize};

use pgrx::prelude::*;

/// A grant of this namespace is one of all, those to come included.
const ALL: i64 = 0;

// These cannot raise, so they are spared pgrx's guard, which would cost as much as all the rest of a row's check.
unsafe extern "C-unwind" {
    fn GetUserId() -> pg_sys::Oid;
    fn GetActiveSnapshot() -> pg_sys::Snapshot;
    fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
    fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
}

/// Who looks, and at which moment. Two snapshots of one database with the same `xmax` and as many transactions running below
/// it show the same: what runs below a fixed `xmax` only ever ends. Of the own transaction's changes the others say it.
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

/// May the current role read rows of this namespace? 0: all namespaces, and what belongs to none.
#[pg_extern(stable, parallel_safe, strict)]
fn may_read(ns: i64) -> bool {
    let view = View::now();
    GRANTS.with_borrow_mut(|grants| {
        if let Some(grants) = grants.as_ref()
            && grants.view == view
        {
            return grants.include(ns);
        }
        // SAFETY: in a transaction with an active snapshot; see `read`.
        grants.insert(unsafe { read(view) }).include(ns)
    })
}

/// # Safety
/// Needs a transaction and an active snapshot. An error leaves through pgrx's guard; nothing is kept then.
unsafe fn read(view: View) -> Grants {
    unsafe {
        if pg_sys::has_bypassrls_privilege(view.user) {
            return Grants { view, all: true, namespaces: Vec::new() };
        }
        let mut namespaces = Vec::new();
        let mut is_of_user = HashMap::new();
        let table = pg_sys::table_open(grants_table(), pg_sys::AccessShareLock as i32);
        let snapshot = pg_sys::GetActiveSnapshot();
        scan(table, pg_sys::InvalidOid, snapshot, None, |role, ns| {
            let role = role.cast_mut_ptr::<pg_sys::NameData>();
            let has = *is_of_user.entry((*role).data).or_insert_with(|| {
                let role = pg_sys::get_role_oid((*role).data.as_ptr(), true);
                role != pg_sys::InvalidOid && pg_sys::has_privs_of_role(view.user, role)
            });
            if has {
                namespaces.push(ns.value() as i64);
            }
        });
        pg_sys::table_close(table, pg_sys::AccessShareLock as i32);
        namespaces.sort_unstable();
        Grants { view, all: namespaces.binary_search(&ALL).is_ok(), namespaces }
    }
}

fn relation(name: &str, schema: pg_sys::Oid) -> pg_sys::Oid {
    let name = CString::new(name).expect("no NUL in a name of ours");
    // SAFETY: a lookup in the system cache; the name outlives it.
    unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) }
}

/// Where the grants are: in the table; as a reference table of Citus, in its one shard, of which every node has a copy.
///
/// # Safety
/// Needs a transaction.
unsafe fn grants_table() -> pg_sys::Oid {
    const NAME: &str = "namespace_grants";
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"mantle".as_ptr(), false);
        let table = relation(NAME, schema);
        let catalog = pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE);
        let shards = relation("pg_dist_shard", catalog);
        if shards == pg_sys::InvalidOid {
            return table;
        }
        let mut shard = pg_sys::InvalidOid;
        let index = relation("pg_dist_shard_logical_relid_index", catalog);
        let shards = pg_sys::table_open(shards, pg_sys::AccessShareLock as i32);
        scan(shards, index, std::ptr::null_mut(), Some(table), |_, id| {
            shard = relation(&format!("{NAME}_{}", id.value()), schema);
        });
        pg_sys::table_close(shards, pg_sys::AccessShareLock as i32);
        if shard == pg_sys::InvalidOid { table } else { shard }
    }
}

/// Calls `row` with the first two columns of each row, whose first is `key` if one is given.
///
/// # Safety
/// `table` is open and has two columns that are not null.
unsafe fn scan(
    table: pg_sys::Relation,
    index: pg_sys::Oid,
    snapshot: pg_sys::Snapshot,
    key: Option<pg_sys::Oid>,
    mut row: impl FnMut(pg_sys::Datum, pg_sys::Datum),
) {
    const FIRST: NonZeroUsize = NonZeroUsize::new(1).unwrap();
    const SECOND: NonZeroUsize = NonZeroUsize::new(2).unwrap();
    unsafe {
        let mut keys = pg_sys::ScanKeyData::default();
        if let Some(key) = key {
            let (equal, function) = (pg_sys::BTEqualStrategyNumber, pg_sys::F_OIDEQ);
            pg_sys::ScanKeyInit(&mut keys, 1, equal as u16, function.into(), key.into());
        }
        let scan = pg_sys::systable_beginscan(
            table,
            index,
            index != pg_sys::InvalidOid,
            snapshot,
            i32::from(key.is_some()),
            &mut keys,
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let column = |n| pgrx::htup::heap_getattr_raw(tuple, n, (*table).rd_att);
            if let (Some(first), Some(second)) = (column(FIRST), column(SECOND)) {
                row(first, second);
            }
        }
        pg_sys::systable_endscan(scan);
    }
}
