//! Statements that are planned once a session and kept, run through SPI without plpgsql around them: in a short
//! transaction plpgsql prepares each of its expressions anew, which cost more than the statements (a put of one new object
//! took 306 µs of processor time in plpgsql).
//!
//! Functions that use them, and whatever calls those, fix their `search_path`: else a caller could put its own operators in.

use std::{cell::Cell, ffi::CStr};

use pgrx::pg_sys;

use super::row::{Row, Value};

/// One statement. Lives in a `thread_local!`.
pub struct SavedPlan {
    text: &'static CStr,
    types: &'static [pg_sys::Oid],
    plan: Cell<pg_sys::SPIPlanPtr>,
}

impl SavedPlan {
    /// A statement and the types of its parameters.
    pub const fn new(text: &'static CStr, types: &'static [pg_sys::Oid]) -> Self {
        Self { text, types, plan: Cell::new(std::ptr::null_mut()) }
    }

    /// Runs it; how many rows it touched or found. Within `Spi::connect` only.
    pub fn run(&self, arguments: &[Value]) -> u64 {
        let processed = self.execute(arguments);
        // SAFETY: the table of the statement just run, if it made one; not used after this.
        unsafe { pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable) };
        processed
    }

    /// Runs it; reads each row's columns, from 1.
    pub fn rows<T>(&self, arguments: &[Value], read: impl Fn(&Row) -> T) -> Vec<T> {
        Self::read_all(self.execute(arguments), read)
    }

    /// As [`rows`](Self::rows), but sees all that is committed by now, in a transaction with an older snapshot too.
    pub fn newest_rows<T>(&self, arguments: &[Value], read: impl Fn(&Row) -> T) -> Vec<T> {
        // SAFETY: as a catalog's: always taken anew, and of no table in particular. Given back below, or by the end of a
        // transaction that fails.
        let snapshot = unsafe { pg_sys::RegisterSnapshot(pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid)) };
        let found = Self::read_all(self.execute_under(snapshot, arguments), read);
        // SAFETY: registered above.
        unsafe { pg_sys::UnregisterSnapshot(snapshot) };
        found
    }

    fn read_all<T>(found: u64, read: impl Fn(&Row) -> T) -> Vec<T> {
        // SAFETY: the table of the statement just run; freed below, after everything in it was read.
        unsafe {
            let table = pg_sys::SPI_tuptable;
            let rows =
                (0..found as usize).map(|at| read(&Row::new(*(*table).vals.add(at), (*table).tupdesc))).collect();
            pg_sys::SPI_freetuptable(table);
            rows
        }
    }

    fn execute(&self, arguments: &[Value]) -> u64 {
        self.execute_under(std::ptr::null_mut(), arguments)
    }

    /// Null: under the snapshot of a statement.
    fn execute_under(&self, snapshot: pg_sys::Snapshot, arguments: &[Value]) -> u64 {
        assert_eq!(arguments.len(), self.types.len(), "parameters of {:?}", self.text);
        pgrx::check_for_interrupts!();
        let nulls: Vec<std::ffi::c_char> =
            arguments.iter().map(|a| if a.is_some() { b' ' } else { b'n' } as _).collect();
        let mut values: Vec<pg_sys::Datum> =
            arguments.iter().map(|a| a.unwrap_or(pg_sys::Datum::from(0_usize))).collect();
        // SAFETY: as many values and nulls as the plan has parameters; an error leaves through pgrx's guard.
        let result = unsafe {
            let (plan, none) = (self.plan(), std::ptr::null_mut());
            pg_sys::SPI_execute_snapshot(plan, values.as_mut_ptr(), nulls.as_ptr(), snapshot, none, false, true, 0)
        };
        if result < 0 {
            pgrx::error!("SPI answered {result} to {:?}", self.text);
        }
        // SAFETY: a plain read.
        unsafe { pg_sys::SPI_processed }
    }

    fn plan(&self) -> pg_sys::SPIPlanPtr {
        if self.plan.get().is_null() {
            // SAFETY: text and types outlive the call; a plan that is kept lives as long as the session, and PostgreSQL
            // makes it anew when a table in it changes.
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
