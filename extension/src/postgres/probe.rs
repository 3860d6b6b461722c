//! One row of a table of ours by its primary key, without the executor: starting a statement and ending it costs several
//! times what the probe does (a put of one new object makes five).
//!
//! Of a table that Citus distributes, a shard is opened: what stands under its own name is empty.

use std::ffi::CStr;

use pgrx::{IntoDatum, pg_sys};

use super::{
    catalog,
    row::{Row, Value},
};

/// A column of a key, and its value.
pub struct Key {
    column: i16,
    equal: pg_sys::RegProcedure,
    value: Value,
}

impl Key {
    /// A column, by its number from 1.
    pub fn int8(column: i16, value: i64) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_INT8EQ), value: value.into_datum() }
    }

    /// The same.
    pub fn int4(column: i16, value: i32) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_INT4EQ), value: value.into_datum() }
    }

    /// The same.
    pub fn oid(column: i16, value: pg_sys::Oid) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_OIDEQ), value: value.into_datum() }
    }

    /// The same, of a column with the collation "C".
    pub fn text(column: i16, value: &str) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_TEXTEQ), value: value.into_datum() }
    }
}

/// Opens a table of schema `mantle`.
pub fn open(name: &CStr, lock: u32) -> pg_sys::Relation {
    // SAFETY: an error leaves through pgrx's guard.
    unsafe { pg_sys::table_open(catalog::table(name), lock as pg_sys::LOCKMODE) }
}

/// A table of schema `mantle`, open for probes.
pub struct Table(pg_sys::Relation);

impl Table {
    /// Opens it.
    pub fn open(name: &CStr) -> Self {
        Self(open(name, pg_sys::AccessShareLock))
    }

    /// As [`find`].
    pub fn find<T>(&self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        // SAFETY: open as long as this lives.
        unsafe { find(self.0, key, read) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // An error that unwinds ends the transaction, which closes all.
        if !std::thread::panicking() {
            // SAFETY: opened by `open`, closed once. The lock stays until the transaction ends, as a statement's does.
            unsafe { pg_sys::table_close(self.0, pg_sys::NoLock as pg_sys::LOCKMODE) };
        }
    }
}

/// Reads of the row with this primary key, all of its columns given; `None`: there is none. Sees what a statement would that
/// begins now: under READ COMMITTED all that committed before, and what this transaction did.
///
/// # Safety
/// The table is open, and has a primary key with these columns.
pub unsafe fn find<T>(table: pg_sys::Relation, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
    let mut keys = scan_keys(key);
    // SAFETY: table and snapshot are open until the end; the keys outlive the scan, and the row is read before it ends. An
    // error that unwinds ends the transaction, which closes all.
    unsafe {
        let index = pg_sys::RelationGetPrimaryKeyIndex(table);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
        let scan = pg_sys::systable_beginscan(table, index, true, snapshot, keys.len() as i32, keys.as_mut_ptr());
        let tuple = pg_sys::systable_getnext(scan);
        let found = (!tuple.is_null()).then(|| read(&Row::new(tuple, (*table).rd_att)));
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        found
    }
}

/// Calls `read` with each row that has these values; all rows without a key. Of a catalog, a null snapshot is a new one.
///
/// # Safety
/// The table is open, the snapshot registered or active; the index, unless it is `InvalidOid`, begins with the key's columns.
pub unsafe fn scan(
    table: pg_sys::Relation,
    index: pg_sys::Oid,
    snapshot: pg_sys::Snapshot,
    key: &[Key],
    mut read: impl FnMut(&Row),
) {
    let mut keys = scan_keys(key);
    let is_indexed = index != pg_sys::InvalidOid;
    // SAFETY: as declared; the keys outlive the scan, and each row is read before the scan goes on.
    unsafe {
        let scan = pg_sys::systable_beginscan(table, index, is_indexed, snapshot, keys.len() as i32, keys.as_mut_ptr());
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            read(&Row::new(tuple, (*table).rd_att));
        }
        pg_sys::systable_endscan(scan);
    }
}

/// As [`find`], many times, of a table whose first columns are its primary key. Sees what a statement would that begins when it
/// is opened.
pub struct Probe {
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
}

impl Probe {
    /// # Safety
    /// The table stays open as long as this lives; its primary key has `columns` columns.
    pub unsafe fn open(table: pg_sys::Relation, columns: usize) -> Self {
        // SAFETY: index and snapshot live until `drop`, or the end of a transaction that fails.
        unsafe {
            let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            let index = pg_sys::index_open(pg_sys::RelationGetPrimaryKeyIndex(table), lock);
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
            let scan = pg_sys::index_beginscan(table, index, snapshot, columns as i32, 0);
            Self { index, snapshot, scan, slot: pg_sys::table_slot_create(table, std::ptr::null_mut()) }
        }
    }

    /// Reads of the row with this primary key, all of its columns given; `None`: there is none.
    pub fn find<T>(&mut self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        let mut keys = scan_keys(key);
        // SAFETY: scan and slot are open; the keys are copied. The row is read before the slot gives it up.
        unsafe {
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
            if !pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot) {
                return None;
            }
            let mut is_copy = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &mut is_copy);
            let found = read(&Row::new(tuple, (*self.slot).tts_tupleDescriptor));
            pg_sys::ExecClearTuple(self.slot);
            Some(found)
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // An error that unwinds ends the transaction, which closes all.
        if !std::thread::panicking() {
            // SAFETY: opened by `open`, closed once.
            unsafe {
                pg_sys::index_endscan(self.scan);
                pg_sys::ExecDropSingleTupleTableSlot(self.slot);
                pg_sys::UnregisterSnapshot(self.snapshot);
                pg_sys::index_close(self.index, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        }
    }
}

fn scan_keys(key: &[Key]) -> Vec<pg_sys::ScanKeyData> {
    key.iter()
        .map(|key| {
            let value = key.value.unwrap_or(pg_sys::Datum::from(0_usize));
            // SAFETY: a scan key is plain data, all of which is set. Functions and values fit the columns' types, as callers say.
            unsafe {
                let mut entry = std::mem::zeroed::<pg_sys::ScanKeyData>();
                pg_sys::ScanKeyInit(&mut entry, key.column, pg_sys::BTEqualStrategyNumber as u16, key.equal, value);
                entry
            }
        })
        .collect()
}

/// The MetaTable's primary key of an entry, or of the primary attribute record.
pub fn entry_key(pid: i64, name: &str) -> [Key; 3] {
    record_key(pid, name, 0)
}

/// The MetaTable's primary key of a record; `ts` is 0 but for delta records.
pub fn record_key(pid: i64, name: &str, ts: i64) -> [Key; 3] {
    [Key::int8(1, pid), Key::text(2, name), Key::int8(3, ts)]
}
