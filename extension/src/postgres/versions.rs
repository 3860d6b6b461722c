//! What differs between PostgreSQL 15, 16, 17 and 18: declarations of functions, and names and places of fields. No
//! other module asks for the version.

use std::{
    ffi::{c_char, c_int},
    slice,
};

use pgrx::pg_sys;

// Not bound by pgrx. It may raise, so it is called in pgrx's guard.
unsafe extern "C-unwind" {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    fn LogLogicalMessage(prefix: *const c_char, message: *const c_char, size: usize, transactional: bool) -> u64;
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    fn LogLogicalMessage(
        prefix: *const c_char,
        message: *const c_char,
        size: usize,
        transactional: bool,
        flush: bool,
    ) -> u64;
}

/// Writes a transactional logical message.
///
/// # Safety
/// The prefix ends with NUL, and the message has this size.
pub unsafe fn log_logical_message(prefix: *const c_char, message: *const c_char, size: usize) {
    // SAFETY: see above.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            #[cfg(any(feature = "pg15", feature = "pg16"))]
            LogLogicalMessage(prefix, message, size, true);
            // The commit flushes it.
            #[cfg(any(feature = "pg17", feature = "pg18"))]
            LogLogicalMessage(prefix, message, size, true, false);
        });
    }
}

/// The number of the transaction that this session runs.
pub fn local_transaction() -> pg_sys::LocalTransactionId {
    // SAFETY: every session has its entry, and writes it alone.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (*pg_sys::MyProc).vxid.lxid
    }
}

/// Installs a handler of a signal.
///
/// # Safety
/// The handler does only what is safe in one.
pub unsafe fn set_signal_handler(signal: c_int, handler: pg_sys::pqsigfunc) {
    // SAFETY: see above.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(signal, handler);
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal, handler);
    }
}

/// The columns of a table or a result, dropped ones too.
///
/// # Safety
/// The description outlives what is returned.
pub unsafe fn attributes<'a>(of: pg_sys::TupleDesc) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: see above; there are as many attributes.
    unsafe {
        let count = (*of).natts as usize;
        #[cfg(not(feature = "pg18"))]
        let first = (*of).attrs.as_ptr();
        // They follow a short form of each.
        #[cfg(feature = "pg18")]
        let first = (*of).compact_attrs.as_ptr().add(count).cast::<pg_sys::FormData_pg_attribute>();
        slice::from_raw_parts(first, count)
    }
}

/// The PostgreSQL index of a table's primary key; `InvalidOid` if it has none that holds at every moment.
///
/// # Safety
/// The table is open.
pub unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: see above.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return pg_sys::RelationGetPrimaryKeyIndex(table);
        #[cfg(feature = "pg18")]
        pg_sys::RelationGetPrimaryKeyIndex(table, false)
    }
}

/// Begins a scan of a PostgreSQL index with this number of conditions.
///
/// # Safety
/// The table and its index are open, and the snapshot is valid, until the scan ends.
pub unsafe fn begin_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    conditions: usize,
) -> pg_sys::IndexScanDesc {
    // SAFETY: see above.
    unsafe {
        pg_sys::index_beginscan(
            table,
            index,
            snapshot,
            // Statistics for EXPLAIN, which nobody asks for here.
            #[cfg(feature = "pg18")]
            std::ptr::null_mut(),
            conditions as c_int,
            0,
        )
    }
}

/// Which PostgreSQL indexes need entries for the new version of a row.
#[cfg(feature = "pg15")]
pub type NewEntries = bool;
#[cfg(not(feature = "pg15"))]
pub type NewEntries = pg_sys::TU_UpdateIndexes::Type;

/// None does (HOT).
#[cfg(feature = "pg15")]
pub const NO_ENTRIES: NewEntries = false;
#[cfg(not(feature = "pg15"))]
pub const NO_ENTRIES: NewEntries = pg_sys::TU_UpdateIndexes::TU_None;

/// Makes the entries for the row in a slot that was updated.
///
/// # Safety
/// The indexes that need entries are open in the target, and the slot holds the row.
pub unsafe fn insert_entries_of_update(
    target: *mut pg_sys::ResultRelInfo,
    row: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
    needed: NewEntries,
) {
    #[cfg(feature = "pg15")]
    let _all_or_none = needed;
    // SAFETY: see above.
    unsafe {
        pg_sys::ExecInsertIndexTuples(
            target,
            row,
            state,
            true,
            false,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            #[cfg(not(feature = "pg15"))]
            (needed == pg_sys::TU_UpdateIndexes::TU_Summarizing),
        );
    }
}

/// Makes the entries for the row in a slot that was inserted speculatively, and notes whether one of its unique keys is
/// taken. Answers the indexes to be checked again at the end.
///
/// # Safety
/// As for [`insert_entries_of_update`].
pub unsafe fn insert_entries_if_free(
    target: *mut pg_sys::ResultRelInfo,
    row: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
    is_taken: &mut bool,
) -> *mut pg_sys::List {
    // SAFETY: see above.
    unsafe {
        pg_sys::ExecInsertIndexTuples(
            target,
            row,
            state,
            false,
            true,
            is_taken,
            std::ptr::null_mut(),
            #[cfg(not(feature = "pg15"))]
            false,
        )
    }
}

/// Whether no row has one of the unique keys of the row in a slot, after a wait for the transactions that write such
/// rows.
///
/// # Safety
/// As for [`insert_entries_of_update`]. The row itself is not in the table.
pub unsafe fn is_free(
    target: *mut pg_sys::ResultRelInfo,
    row: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
) -> bool {
    let mut taken_by = pg_sys::ItemPointerData::default();
    // SAFETY: see above. A position of zeros means that the row has none.
    unsafe {
        pg_sys::ExecCheckIndexConstraints(
            target,
            row,
            state,
            &mut taken_by,
            #[cfg(feature = "pg18")]
            &mut pg_sys::ItemPointerData::default(),
            std::ptr::null_mut(),
        )
    }
}

/// Closes the indexes that are open in a target. Others are left out, which `ExecCloseIndices` of 18 does not expect.
///
/// # Safety
/// They were opened with this lock.
pub unsafe fn close_indexes(target: *mut pg_sys::ResultRelInfo, lock: pg_sys::LOCKMODE) {
    // SAFETY: see above; there is a place for each index.
    unsafe {
        for at in 0..(*target).ri_NumIndices as usize {
            let place = (*target).ri_IndexRelationDescs.add(at);
            if (*place).is_null() {
                continue;
            }
            #[cfg(any(feature = "pg17", feature = "pg18"))]
            pg_sys::index_insert_cleanup(*place, *(*target).ri_IndexRelationInfo.add(at));
            pg_sys::index_close(*place, lock);
            *place = std::ptr::null_mut();
        }
    }
}

/// Gives a target the compiled checks of its table.
///
/// # Safety
/// There is one for each check of the table, and they outlive the target.
pub unsafe fn set_checks(target: *mut pg_sys::ResultRelInfo, checks: *mut *mut pg_sys::ExprState) {
    // SAFETY: see above.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        ((*target).ri_ConstraintExprs = checks);
        #[cfg(feature = "pg18")]
        ((*target).ri_CheckConstraintExprs = checks);
    }
}

/// Whether a check holds for new rows. From 18 on a table may have some that do not.
pub fn is_enforced(check: &pg_sys::ConstrCheck) -> bool {
    #[cfg(not(feature = "pg18"))]
    let (_all, enforced) = (check, true);
    #[cfg(feature = "pg18")]
    let enforced = check.ccenforced;
    enforced
}
