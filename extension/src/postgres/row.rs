//! Values and rows in PostgreSQL's representation.

use std::ffi::CStr;

use pgrx::{FromDatum, IntoDatum, pg_sys};

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
}

impl Row {
    /// # Safety
    /// Both outlive this row, and the description describes the tuple.
    pub unsafe fn new(tuple: pg_sys::HeapTuple, of: pg_sys::TupleDesc) -> Self {
        Self { tuple, of }
    }

    pub fn tuple(&self) -> pg_sys::HeapTuple {
        self.tuple
    }

    /// The column of this name; `None` if it is NULL or does not exist.
    pub fn named<T: FromDatum>(&self, name: &CStr) -> Option<T> {
        // SAFETY: the description is alive, and the name ends with NUL.
        self.get(unsafe { pg_sys::SPI_fnumber(self.of, name.as_ptr()) })
    }

    /// A column, numbered from 1; `None` if it is NULL.
    pub fn get<T: FromDatum>(&self, number: i32) -> Option<T> {
        // SAFETY: the statement or the table declares this type.
        self.datum(number).and_then(|datum| unsafe { T::from_datum(datum, false) })
    }

    /// The same, not converted.
    pub fn datum(&self, number: i32) -> Value {
        let mut null = false;
        // SAFETY: the tuple and its description are alive.
        let datum = unsafe { pg_sys::SPI_getbinval(self.tuple, self.of, number, &mut null) };
        (!null).then_some(datum)
    }
}
