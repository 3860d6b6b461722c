//! Values and rows in PostgreSQL's representation.

use std::{cell::OnceCell, ffi::CStr};

use pgrx::{FromDatum, IntoDatum, pg_sys};

use super::versions::attributes;

/// A datum; `None` is NULL.
pub type Value = Option<pg_sys::Datum>;

pub fn value(of: impl IntoDatum) -> Value {
    of.into_datum()
}

/// Values for columns, in order.
macro_rules! values {
    ($($of:expr),+ $(,)?) => { [$($crate::postgres::row::value($of)),+] };
}
pub(crate) use values;

/// A row of a table or a result.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    of: pg_sys::TupleDesc,
    /// All columns, taken from the tuple at the first use of one: each by itself would begin at the tuple's start.
    columns: OnceCell<Vec<Value>>,
}

impl Row {
    /// # Safety
    /// Both outlive this row, and the description describes the tuple.
    pub unsafe fn new(tuple: pg_sys::HeapTuple, of: pg_sys::TupleDesc) -> Self {
        Self { tuple, of, columns: OnceCell::new() }
    }

    pub fn tuple(&self) -> pg_sys::HeapTuple {
        self.tuple
    }

    /// The column of this name; `None` if it is NULL or does not exist.
    pub fn named<T: FromDatum>(&self, name: &CStr) -> Option<T> {
        // SAFETY: the description is alive, and the names end with NUL.
        let attributes = unsafe { attributes(self.of) };
        let is_it = |attribute: &pg_sys::FormData_pg_attribute| {
            // SAFETY: see above.
            !attribute.attisdropped && unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) } == name
        };
        self.get(attributes.iter().position(is_it)? as i32 + 1)
    }

    /// A column, numbered from 1; `None` if it is NULL.
    pub fn get<T: FromDatum>(&self, number: i32) -> Option<T> {
        // SAFETY: the statement or the table declares this type.
        self.datum(number).and_then(|datum| unsafe { T::from_datum(datum, false) })
    }

    /// The same, not converted.
    pub fn datum(&self, number: i32) -> Value {
        self.columns.get_or_init(|| self.all_columns()).get(number as usize - 1).copied().flatten()
    }

    fn all_columns(&self) -> Vec<Value> {
        let width = self.width();
        let (mut values, mut nulls) = (vec![pg_sys::Datum::null(); width], vec![true; width]);
        // SAFETY: the tuple and its description are alive, and there is room for all columns.
        unsafe { pg_sys::heap_deform_tuple(self.tuple, self.of, values.as_mut_ptr(), nulls.as_mut_ptr()) };
        values.into_iter().zip(nulls).map(|(value, is_null)| (!is_null).then_some(value)).collect()
    }

    fn width(&self) -> usize {
        // SAFETY: the description is alive.
        unsafe { (*self.of).natts as usize }
    }
}
