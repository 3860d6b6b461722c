//! SQL statements that a session plans once and runs through SPI.
//!
//! plpgsql prepares each of its expressions anew in every short transaction, which cost more than the statements
//! themselves (a put of one new object took 306 µs of processor time in plpgsql).
//!
//! SQL functions that lead here must fix their `search_path`; else a caller could substitute its own operators.

use std::{cell::Cell, ffi::CStr};

use pgrx::pg_sys;

use super::row::{Row, Value};

/// One statement, in a `thread_local!`.
pub struct SavedPlan {
    text: &'static CStr,
    types: &'static [pg_sys::Oid],
    plan: Cell<pg_sys::SPIPlanPtr>,
}

impl SavedPlan {
    pub const fn new(text: &'static CStr, types: &'static [pg_sys::Oid]) -> Self {
        Self { text, types, plan: Cell::new(std::ptr::null_mut()) }
    }

    /// Runs the statement and returns the number of rows that it changed or found. Only within `Spi::connect`.
    pub fn run(&self, arguments: &[Value]) -> u64 {
        let processed = self.execute(arguments);
        // SAFETY: this is the result of the statement just run, if it has one; nothing uses it later.
        unsafe { pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable) };
        processed
    }

    /// Runs the statement and reads each row. Only within `Spi::connect`.
    pub fn rows<T>(&self, arguments: &[Value], read: impl Fn(&Row) -> T) -> Vec<T> {
        Self::read_all(self.execute(arguments), read)
    }

    /// Like [`rows`](Self::rows), but under the caller's snapshot, as in a stable function. It may not write.
    pub fn stable_rows<T>(&self, arguments: &[Value], read: impl Fn(&Row) -> T) -> Vec<T> {
        Self::read_all(self.execute_under(std::ptr::null_mut(), arguments, true), read)
    }

    /// Like [`rows`](Self::rows), but sees everything committed by now, even if the transaction's snapshot is older.
    pub fn newest_rows<T>(&self, arguments: &[Value], read: impl Fn(&Row) -> T) -> Vec<T> {
        // SAFETY: a catalog snapshot is always new, and InvalidOid names no table in particular. It is released below,
        // or at the end of a failed transaction.
        let snapshot = unsafe { pg_sys::RegisterSnapshot(pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid)) };
        let found = Self::read_all(self.execute_under(snapshot, arguments, false), read);
        // SAFETY: registered above.
        unsafe { pg_sys::UnregisterSnapshot(snapshot) };
        found
    }

    /// Reads all rows, then frees them. Otherwise a page of `list_tree`, with a statement for each directory, would
    /// keep some kilobytes for each until its end.
    fn read_all<T>(found: u64, read: impl Fn(&Row) -> T) -> Vec<T> {
        // SAFETY: this is the result of the statement just run; it is freed once, after all rows were read.
        unsafe {
            let table = pg_sys::SPI_tuptable;
            let rows =
                (0..found as usize).map(|at| read(&Row::new(*(*table).vals.add(at), (*table).tupdesc))).collect();
            pg_sys::SPI_freetuptable(table);
            rows
        }
    }

    fn execute(&self, arguments: &[Value]) -> u64 {
        self.execute_under(std::ptr::null_mut(), arguments, false)
    }

    /// With a null snapshot PostgreSQL takes one for the statement, or the caller's if the statement only reads.
    fn execute_under(&self, snapshot: pg_sys::Snapshot, arguments: &[Value], only_reads: bool) -> u64 {
        assert_eq!(arguments.len(), self.types.len(), "parameters of {:?}", self.text);
        pgrx::check_for_interrupts!();
        let nulls: Vec<std::ffi::c_char> =
            arguments.iter().map(|a| if a.is_some() { b' ' } else { b'n' } as _).collect();
        let mut values: Vec<pg_sys::Datum> = arguments.iter().map(|a| a.unwrap_or(pg_sys::Datum::null())).collect();
        // SAFETY: there are as many values and nulls as parameters; an error leaves through pgrx's guard.
        let result = unsafe {
            let (plan, none) = (self.plan(), std::ptr::null_mut());
            pg_sys::SPI_execute_snapshot(plan, values.as_mut_ptr(), nulls.as_ptr(), snapshot, none, only_reads, true, 0)
        };
        if result < 0 {
            pgrx::error!("SPI answered {result} to {:?}", self.text);
        }
        // SAFETY: a plain read.
        unsafe { pg_sys::SPI_processed }
    }

    fn plan(&self) -> pg_sys::SPIPlanPtr {
        if self.plan.get().is_null() {
            // SAFETY: text and types outlive the call. A kept plan lives as long as the session; PostgreSQL replans it
            // when one of its tables changes.
            unsafe {
                let plan = pg_sys::SPI_prepare_cursor(
                    self.text.as_ptr(),
                    self.types.len() as i32,
                    self.types.as_ptr().cast_mut(),
                    pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
                );
                if plan.is_null() || pg_sys::SPI_keepplan(plan) != 0 {
                    pgrx::error!("SPI does not prepare {:?}", self.text);
                }
                self.plan.set(plan);
            }
        }
        self.plan.get()
    }
}
