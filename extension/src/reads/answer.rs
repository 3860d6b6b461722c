//! The rows that a read returns. Columns of the MetaTable are copied as they are, also toasted ones: the statement's
//! snapshot keeps the values that they point to until the statement has read its result.

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::postgres::{call::Arguments, probe::Columns, row::Value, versions::attributes};

/// Columns that answer something else than the entry's column of that name.
const NO_COLUMNS: [&CStr; 2] = [c"ord", c"code"];

/// The columns to copy: their places in the answer and in the table, from 0.
pub struct Copied(Vec<(usize, usize)>);

/// The result of a call that is running, and its next row.
pub struct Answer {
    result: *mut pg_sys::ReturnSetInfo,
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
}

impl Answer {
    pub fn begin(call: &Arguments) -> Self {
        // SAFETY: raises unless the caller expects rows. The result lives as long as the call.
        unsafe {
            pg_sys::InitMaterializedSRF(call.0, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
            let result = (*call.0).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let width = (*(*result).setDesc).natts as usize;
            Self { result, values: vec![pg_sys::Datum::null(); width], nulls: vec![true; width] }
        }
    }

    /// Finds the table's columns by the names of the result's.
    pub fn copied(&self, table: pg_sys::Relation) -> Copied {
        // SAFETY: the result and the table are alive.
        let (result, table) = unsafe { (attributes((*self.result).setDesc), attributes((*table).rd_att)) };
        let named = result.iter().enumerate().filter(|(_, column)| !NO_COLUMNS.contains(&name(column)));
        let mut next = 0;
        let pairs = named.map(|(at, column)| {
            let is = |found: &usize| {
                let found = &table[*found];
                !found.attisdropped && name(found) == name(column) && found.atttypid == column.atttypid
            };
            let Some(from) = (next..table.len()).chain(0..next).find(is) else {
                pgrx::error!("the MetaTable has no column {:?} of the type that is to be answered", name(column));
            };
            next = from + 1;
            (at, from)
        });
        Copied(pairs.collect())
    }

    /// Sets a column of the next row, numbered from 0.
    pub fn set(&mut self, at: usize, value: Value) {
        self.values[at] = value.unwrap_or(pg_sys::Datum::null());
        self.nulls[at] = value.is_none();
    }

    pub fn copy(&mut self, row: &Columns<'_>, copied: &Copied) {
        for (to, from) in &copied.0 {
            self.values[*to] = row.values[*from];
            self.nulls[*to] = row.nulls[*from];
        }
    }

    /// Ends the next row. Its values need not live longer than this call. All columns of the row after it are NULL.
    pub fn put(&mut self) {
        // SAFETY: there are as many values as columns.
        unsafe {
            let (rows, of) = ((*self.result).setResult, (*self.result).setDesc);
            pg_sys::tuplestore_putvalues(rows, of, self.values.as_mut_ptr(), self.nulls.as_mut_ptr());
        }
        self.nulls.fill(true);
    }

    /// Takes the rows back, so that another function answers.
    pub fn discard(self) {
        // SAFETY: the result was begun here, and nothing has read it.
        unsafe {
            pg_sys::tuplestore_end((*self.result).setResult);
            (*self.result).setResult = std::ptr::null_mut();
            (*self.result).setDesc = std::ptr::null_mut();
        }
    }
}

pub fn name(attribute: &pg_sys::FormData_pg_attribute) -> &CStr {
    // SAFETY: a name ends with NUL.
    unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) }
}
