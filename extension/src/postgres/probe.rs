//! Reads of single rows by primary key, and scans, without the executor.
//!
//! Starting and ending a statement costs several times as much as the probe itself; a put of one new object makes five
//! probes. If Citus distributes a table, callers open one of its shards: the table itself is empty.

use std::ffi::CStr;

use pgrx::{IntoDatum, pg_sys};

use super::{
    catalog,
    row::{Row, Value},
    versions::{begin_index_scan, primary_key},
};

/// A condition on a column of a key: an operator and its right side. The text column has collation "C".
pub struct Key {
    column: i16,
    strategy: u32,
    operator: pg_sys::RegProcedure,
    value: Value,
}

impl Key {
    pub fn int8(column: i16, value: i64) -> Self {
        Self::new(column, pg_sys::F_INT8EQ, value)
    }

    pub fn int4(column: i16, value: i32) -> Self {
        Self::new(column, pg_sys::F_INT4EQ, value)
    }

    pub fn oid(column: i16, value: pg_sys::Oid) -> Self {
        Self::new(column, pg_sys::F_OIDEQ, value)
    }

    pub fn text(column: i16, value: &str) -> Self {
        Self::new(column, pg_sys::F_TEXTEQ, value)
    }

    pub fn uuid(column: i16, value: pgrx::Uuid) -> Self {
        Self::new(column, pg_sys::F_UUID_EQ, value)
    }

    /// Above the value.
    pub fn int8_above(column: i16, value: i64) -> Self {
        Self { strategy: pg_sys::BTGreaterStrategyNumber, ..Self::new(column, pg_sys::F_INT8GT, value) }
    }

    /// The text column is at least this, or greater than it.
    pub fn text_from(column: i16, value: &str, is_included: bool) -> Self {
        let (strategy, operator) = match is_included {
            true => (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_TEXT_GE),
            false => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT),
        };
        Self { strategy, ..Self::new(column, operator, value) }
    }

    /// The text column is less than this.
    pub fn text_below(column: i16, value: &str) -> Self {
        Self { strategy: pg_sys::BTLessStrategyNumber, ..Self::new(column, pg_sys::F_TEXT_LT, value) }
    }

    fn new(column: i16, operator: u32, value: impl IntoDatum) -> Self {
        let strategy = pg_sys::BTEqualStrategyNumber;
        Self { column, strategy, operator: pg_sys::Oid::from(operator), value: value.into_datum() }
    }
}

/// Conditions in PostgreSQL's form. Kept for many reads that differ in their values only.
pub struct ScanKeys(Vec<pg_sys::ScanKeyData>);

impl ScanKeys {
    pub fn new(key: &[Key]) -> Self {
        Self(scan_keys(key))
    }

    /// Replaces a value by one of the same type, which outlives the next scan.
    pub fn set(&mut self, at: usize, value: pg_sys::Datum) {
        self.0[at].sk_argument = value;
    }
}

/// Opens a table of schema `mantle`.
pub fn open(name: &CStr, lock: u32) -> pg_sys::Relation {
    // SAFETY: an error leaves through pgrx's guard.
    unsafe { pg_sys::table_open(catalog::table(name), lock as pg_sys::LOCKMODE) }
}

/// A table of schema `mantle`, open for reading.
pub struct Table(pg_sys::Relation);

impl Table {
    pub fn open(name: &CStr) -> Self {
        Self(open(name, pg_sys::AccessShareLock))
    }

    /// A table that is locked for reading; `None` if it does not exist any more.
    pub fn open_locked(table: pg_sys::Oid) -> Option<Self> {
        // SAFETY: an error leaves through pgrx's guard.
        let opened = unsafe { pg_sys::try_table_open(table, pg_sys::NoLock as pg_sys::LOCKMODE) };
        (!opened.is_null()).then_some(Self(opened))
    }

    pub fn relation(&self) -> pg_sys::Relation {
        self.0
    }

    /// See [`find`].
    pub fn find<T>(&self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        // SAFETY: the table is open until `drop`.
        unsafe { find(self.0, key, read) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // During a panic the failed transaction closes everything.
        if !std::thread::panicking() {
            // SAFETY: opened by `open`, closed once. The lock lasts until the transaction ends, like a statement's.
            unsafe { pg_sys::table_close(self.0, pg_sys::NoLock as pg_sys::LOCKMODE) };
        }
    }
}

/// Reads the row with this primary key, given with all its columns; `None` if there is no such row. It sees what a
/// new statement would see: under READ COMMITTED, everything committed so far and this transaction's own changes.
///
/// # Safety
/// The table is open and has a primary key of these columns.
pub unsafe fn find<T>(table: pg_sys::Relation, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
    // SAFETY: see above.
    unsafe { find_by(table, primary_key(table), key, read) }
}

/// As [`find`](fn@find), by the first columns of a PostgreSQL index of the table.
///
/// # Safety
/// The table is open, and the index is one of its own that begins with these columns.
pub unsafe fn find_by<T>(
    table: pg_sys::Relation,
    index: pg_sys::Oid,
    key: &[Key],
    read: impl FnOnce(&Row) -> T,
) -> Option<T> {
    let mut keys = scan_keys(key);
    // SAFETY: table and snapshot stay open until the end; the keys outlive the scan, and the row is read before it
    // ends. After an error the failed transaction closes everything.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
        let scan = pg_sys::systable_beginscan(table, index, true, snapshot, keys.len() as i32, keys.as_mut_ptr());
        let tuple = pg_sys::systable_getnext(scan);
        let found = (!tuple.is_null()).then(|| read(&Row::new(tuple, (*table).rd_att)));
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        found
    }
}

/// Reads the rows with this key: of the primary key's columns the first, or all, in any relation. See [`find`](fn@find).
///
/// # Safety
/// As for [`find`](fn@find).
pub unsafe fn find_all<T>(table: pg_sys::Relation, key: &[Key], mut read: impl FnMut(&Row) -> T) -> Vec<T> {
    let mut keys = scan_keys(key);
    let mut found = Vec::new();
    // SAFETY: as for `find`; each row is read before the scan moves on.
    unsafe {
        let index = primary_key(table);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
        let scan = pg_sys::systable_beginscan(table, index, true, snapshot, keys.len() as i32, keys.as_mut_ptr());
        while let Some(tuple) = Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null()) {
            found.push(read(&Row::new(tuple, (*table).rd_att)));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
    }
    found
}

/// As [`find`](fn@find), and answers how many entries of the PostgreSQL index it passed whose rows it does not see: each
/// leads to a chain of old versions, which nobody removes while an old snapshot may see them.
///
/// # Safety
/// The table is open and has a primary key of these columns.
pub unsafe fn find_counting<T>(
    table: pg_sys::Relation,
    key: &[Key],
    read: impl FnOnce(&Row) -> T,
) -> Option<(T, usize)> {
    // SAFETY: the table outlives the probe.
    unsafe { Probe::open(table, key.len()) }.find_counting(key, read)
}

/// Reads each row of a table with this key; without a key, all rows. A null snapshot means a new catalog snapshot.
///
/// # Safety
/// The snapshot is registered, active or null. The PostgreSQL index is `InvalidOid`, or begins with the key's columns.
pub unsafe fn scan(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    snapshot: pg_sys::Snapshot,
    key: &[Key],
    mut read: impl FnMut(&Row),
) {
    let mut keys = scan_keys(key);
    let is_indexed = index != pg_sys::InvalidOid;
    // SAFETY: see above; the keys outlive the scan, and each row is read before the scan moves on.
    unsafe {
        let table = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::systable_beginscan(table, index, is_indexed, snapshot, keys.len() as i32, keys.as_mut_ptr());
        while let Some(tuple) = Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null()) {
            read(&Row::new(tuple, (*table).rd_att));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as i32);
    }
}

/// Whether the snapshot shows no row of a table. Reads the PostgreSQL index from its end: the rows at the beginning of a
/// queue may be dead and not vacuumed yet.
///
/// # Safety
/// The snapshot is valid, and the PostgreSQL index is the table's.
pub unsafe fn is_empty(table: pg_sys::Oid, index: pg_sys::Oid, snapshot: pg_sys::Snapshot) -> bool {
    let (lock, kept) = (pg_sys::AccessShareLock as pg_sys::LOCKMODE, pg_sys::NoLock as pg_sys::LOCKMODE);
    // SAFETY: everything is closed below, or at the end of a failed transaction.
    unsafe {
        let (table, index) = (pg_sys::table_open(table, lock), pg_sys::index_open(index, lock));
        let scan = begin_index_scan(table, index, snapshot, 0);
        let slot = pg_sys::table_slot_create(table, std::ptr::null_mut());
        pg_sys::index_rescan(scan, std::ptr::null_mut(), 0, std::ptr::null_mut(), 0);
        let is_found = pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::BackwardScanDirection, slot);
        pg_sys::index_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::index_close(index, kept);
        pg_sys::table_close(table, kept);
        !is_found
    }
}

/// All columns of a row, not copied.
pub struct Columns<'a> {
    pub values: &'a [pg_sys::Datum],
    pub nulls: &'a [bool],
}

impl Columns<'_> {
    /// A column, numbered from 1.
    pub fn datum(&self, number: i32) -> Value {
        let at = number as usize - 1;
        (!self.nulls[at]).then(|| self.values[at])
    }
}

/// Many reads of one table, like [`find`]. The primary key must be the table's first columns. All reads see what a
/// statement that begins when the probe is opened would see.
pub struct Probe {
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
}

impl Probe {
    /// # Safety
    /// The table outlives the probe; its primary key has `columns` columns.
    pub unsafe fn open(table: pg_sys::Relation, columns: usize) -> Self {
        // SAFETY: see above.
        unsafe { Self::open_under(pg_sys::GetTransactionSnapshot(), table, columns) }
    }

    /// For scans with this number of conditions. All see what the snapshot shows.
    ///
    /// # Safety
    /// The table outlives the probe; the snapshot is valid now.
    pub unsafe fn open_under(snapshot: pg_sys::Snapshot, table: pg_sys::Relation, conditions: usize) -> Self {
        // SAFETY: index and snapshot live until `drop`, or until the end of a failed transaction.
        unsafe {
            let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            let index = pg_sys::index_open(primary_key(table), lock);
            let snapshot = pg_sys::RegisterSnapshot(snapshot);
            let scan = begin_index_scan(table, index, snapshot, conditions);
            Self { index, snapshot, scan, slot: pg_sys::table_slot_create(table, std::ptr::null_mut()) }
        }
    }

    /// See [`find`](fn@find).
    pub fn find<T>(&mut self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        let mut keys = scan_keys(key);
        // SAFETY: scan and slot are open, and the scan copies the keys. The row is read before the slot is cleared.
        unsafe {
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
            let is_found =
                pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot);
            is_found.then(|| self.read_slot(read))
        }
    }

    /// See [`find_counting`](fn@find_counting).
    pub fn find_counting<T>(&mut self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<(T, usize)> {
        let mut keys = scan_keys(key);
        let mut passed = 0;
        // SAFETY: as for `find`.
        unsafe {
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
            while !pg_sys::index_getnext_tid(self.scan, pg_sys::ScanDirection::ForwardScanDirection).is_null() {
                if pg_sys::index_fetch_heap(self.scan, self.slot) {
                    return Some((self.read_slot(read), passed));
                }
                passed += 1;
            }
        }
        None
    }

    /// Reads the rows that meet the conditions, in the order of the primary key, until `read` answers false. There must be
    /// as many conditions as the probe was opened for.
    pub fn scan(&mut self, keys: &mut ScanKeys, mut read: impl FnMut(&Columns) -> bool) {
        // SAFETY: scan and slot are open, the scan copies the keys, and a row is read before the slot is cleared.
        unsafe {
            self.begin(keys);
            while pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot) {
                if !read(&self.columns()) {
                    break;
                }
            }
            pg_sys::ExecClearTuple(self.slot);
        }
    }

    /// As [`scan`](Self::scan), and counts down for each entry of the PostgreSQL index whose row it does not see. False if it
    /// met more of them than were left: then rows are missing.
    pub fn scan_within(
        &mut self,
        keys: &mut ScanKeys,
        unseen_left: &mut usize,
        mut read: impl FnMut(&Columns) -> bool,
    ) -> bool {
        let mut is_whole = true;
        // SAFETY: as for `scan`. A snapshot of this kind shows at most one row of an entry.
        unsafe {
            self.begin(keys);
            while !pg_sys::index_getnext_tid(self.scan, pg_sys::ScanDirection::ForwardScanDirection).is_null() {
                if pg_sys::index_fetch_heap(self.scan, self.slot) {
                    if !read(&self.columns()) {
                        break;
                    }
                } else if *unseen_left == 0 {
                    is_whole = false;
                    break;
                } else {
                    *unseen_left -= 1;
                }
            }
            pg_sys::ExecClearTuple(self.slot);
        }
        is_whole
    }

    /// # Safety
    /// The values of the conditions are alive until the scan has copied them.
    unsafe fn begin(&mut self, keys: &mut ScanKeys) {
        // SAFETY: the scan is open, and copies the keys.
        unsafe {
            assert_eq!(keys.0.len() as i32, (*self.scan).numberOfKeys);
            let (keys, count) = (keys.0.as_mut_ptr(), keys.0.len() as i32);
            pg_sys::index_rescan(self.scan, keys, count, std::ptr::null_mut(), 0);
        }
    }

    /// # Safety
    /// The slot holds a row until the columns are dropped.
    unsafe fn columns(&self) -> Columns<'_> {
        // SAFETY: see above.
        unsafe {
            pg_sys::slot_getsomeattrs_int(self.slot, (*(*self.slot).tts_tupleDescriptor).natts);
            let width = (*self.slot).tts_nvalid as usize;
            Columns {
                values: std::slice::from_raw_parts((*self.slot).tts_values, width),
                nulls: std::slice::from_raw_parts((*self.slot).tts_isnull, width),
            }
        }
    }

    /// # Safety
    /// The slot holds a row.
    unsafe fn read_slot<T>(&mut self, read: impl FnOnce(&Row) -> T) -> T {
        let mut is_copy = false;
        // SAFETY: the row is read before the slot is cleared.
        unsafe {
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &mut is_copy);
            let found = read(&Row::new(tuple, (*self.slot).tts_tupleDescriptor));
            pg_sys::ExecClearTuple(self.slot);
            found
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // During a panic the failed transaction closes everything.
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
            let value = key.value.unwrap_or(pg_sys::Datum::null());
            // SAFETY: a scan key is plain data, and ScanKeyInit sets all of it. Callers choose the type that the column
            // has.
            unsafe {
                let mut entry = std::mem::zeroed::<pg_sys::ScanKeyData>();
                pg_sys::ScanKeyInit(&mut entry, key.column, key.strategy as u16, key.operator, value);
                entry
            }
        })
        .collect()
}
