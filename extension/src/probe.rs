//! One row of a table of ours by its primary key, without the executor: starting a statement and ending it costs several
//! times what the probe does (a put of one new object makes five).
//!
//! Not for tables that Citus distributes: what stands here under their names is empty there.

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::kept::{Argument, Row, argument};

/// A column of a key, and its value.
pub struct Key {
    column: i16,
    equal: pg_sys::RegProcedure,
    value: Argument,
}

impl Key {
    /// A column, by its number from 1.
    pub fn int8(column: i16, value: i64) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_INT8EQ), value: argument(value) }
    }

    /// The same.
    pub fn int4(column: i16, value: i32) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_INT4EQ), value: argument(value) }
    }

    /// The same, of a column with the collation "C".
    pub fn text(column: i16, value: &str) -> Self {
        Self { column, equal: pg_sys::Oid::from(pg_sys::F_TEXTEQ), value: argument(value) }
    }
}

/// Opens a table of schema `mantle`.
pub fn open(name: &CStr, lock: u32) -> pg_sys::Relation {
    // SAFETY: names are NUL-terminated; errors (no such table) leave through pgrx's guard.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"mantle".as_ptr(), false);
        pg_sys::table_open(pg_sys::get_relname_relid(name.as_ptr(), schema), lock as pg_sys::LOCKMODE)
    }
}

/// A table of schema `mantle`, open for probes. Sees what a statement would that begins when it is opened.
pub struct Table {
    relation: pg_sys::Relation,
    index: pg_sys::Oid,
    snapshot: pg_sys::Snapshot,
}

impl Table {
    /// Opens it. Under READ COMMITTED: sees all that committed before.
    pub fn open(name: &CStr) -> Self {
        let relation = open(name, pg_sys::AccessShareLock);
        // SAFETY: the table is open. All is closed by `drop`, or by the end of a transaction that fails.
        unsafe {
            let index = pg_sys::RelationGetPrimaryKeyIndex(relation);
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
            Self { relation, index, snapshot }
        }
    }

    /// Reads of the row with this primary key, all of its columns given; `None`: there is none.
    pub fn find<T>(&self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        // SAFETY: a scan key is plain data, filled in below.
        let mut keys = vec![unsafe { std::mem::zeroed::<pg_sys::ScanKeyData>() }; key.len()];
        // SAFETY: table, index and snapshot are open as long as this lives; the keys outlive the scan, and the row is read
        // before it ends. Functions and values fit the columns' types, as callers say.
        unsafe {
            for (entry, key) in keys.iter_mut().zip(key) {
                let value = key.value.unwrap_or(pg_sys::Datum::from(0_usize));
                pg_sys::ScanKeyInit(entry, key.column, pg_sys::BTEqualStrategyNumber as u16, key.equal, value);
            }
            let scan = pg_sys::systable_beginscan(
                self.relation,
                self.index,
                true,
                self.snapshot,
                keys.len() as i32,
                keys.as_mut_ptr(),
            );
            let tuple = pg_sys::systable_getnext(scan);
            let found = (!tuple.is_null()).then(|| read(&Row::new(tuple, (*self.relation).rd_att)));
            pg_sys::systable_endscan(scan);
            found
        }
    }

    /// Is there a row with this primary key?
    pub fn has(&self, key: &[Key]) -> bool {
        self.find(key, |_| ()).is_some()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // An error that unwinds ends the transaction, which closes all.
        if !std::thread::panicking() {
            // SAFETY: opened by `open`, closed once. The lock stays until the transaction ends, as a statement's does.
            unsafe {
                pg_sys::UnregisterSnapshot(self.snapshot);
                pg_sys::table_close(self.relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        }
    }
}

/// The MetaTable's primary key of an entry, or of the primary attribute record.
pub fn entry_key(pid: i64, name: &str) -> [Key; 3] {
    record_key(pid, name, 0)
}

/// The MetaTable's primary key of a record; `ts` is 0 but for delta records.
pub fn record_key(pid: i64, name: &str, ts: i64) -> [Key; 3] {
    [Key::int8(1, pid), Key::text(2, name), Key::int8(3, ts)]
}
