//! Rows that other sessions do not see yet: their transactions are in progress or prepared, or have committed and wait for a
//! standby.

use std::{cell::UnsafeCell, ffi::c_int};

use pgrx::pg_sys;

use super::{
    probe::{Key, Table, scan},
    versions::primary_key,
};

/// `XLTW_None`: an error while it waits names no row.
const NO_ROW: c_int = 0;

// Not bound by pgrx. It may raise, so it is called in pgrx's guard.
unsafe extern "C-unwind" {
    fn XactLockTableWait(
        transaction: pg_sys::TransactionId,
        table: pg_sys::Relation,
        row: pg_sys::ItemPointer,
        operation: c_int,
    );
}

/// Waits for the end of every other transaction that has inserted a row with these first columns of the primary key, as long
/// as `lock_timeout` permits. Then all that it did is seen, or nothing. Returns whether there is such a row.
pub fn await_inserts(table: &Table, key: &[Key]) -> bool {
    loop {
        let (is_found, transaction) = inserting(table, key);
        let Some(transaction) = transaction else { return is_found };
        let (no_table, no_row) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: nothing but the transaction is named.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| XactLockTableWait(transaction, no_table, no_row, NO_ROW));
        }
    }
}

/// Whether there is such a row, and a transaction that is inserting one.
fn inserting(table: &Table, key: &[Key]) -> (bool, Option<pg_sys::TransactionId>) {
    let (mut is_found, mut inserting) = (false, None);
    // SAFETY: all zeros are a snapshot of no transaction. A scan sets `xmin` for each row that it returns: to the transaction
    // that has inserted it, if that is in progress. Nothing else borrows it meanwhile.
    unsafe {
        let snapshot = UnsafeCell::new(pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..std::mem::zeroed()
        });
        scan((*table.relation()).rd_id, primary_key(table.relation()), snapshot.get(), key, |_| {
            is_found = true;
            let transaction = (*snapshot.get()).xmin;
            if transaction != pg_sys::TransactionId::INVALID {
                inserting = Some(transaction);
            }
        });
    }
    (is_found, inserting)
}
