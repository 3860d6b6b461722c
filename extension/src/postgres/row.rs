//! Values and rows as PostgreSQL has them.

use std::ffi::CStr;

use pgrx::{FromDatum, IntoDatum, pg_sys};

/// `None` is NULL.
pub type Value = Option<pg_sys::Datum>;

/// Converts to PostgreSQL's representation.
pub fn value(of: impl IntoDatum) -> Value {
    of.into_datum()
}

/// A row of an answer.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    of: pg_sys::TupleDesc,
}

impl Row {
    /// # Safety
    /// Both are alive while this is, and the tuple is as the description says.
    pub unsafe fn new(tuple: pg_sys::HeapTuple, of: pg_sys::TupleDesc) -> Self {
        Self { tuple, of }
    }

    /// As PostgreSQL has it.
    pub fn tuple(&self) -> pg_sys::HeapTuple {
        self.tuple
    }

    /// The column of this name; NULL is none.
    pub fn named<T: FromDatum>(&self, name: &CStr) -> Option<T> {
        // SAFETY: the description is alive, the name NUL-terminated.
        self.get(unsafe { pg_sys::SPI_fnumber(self.of, name.as_ptr()) })
    }

    /// Column `number`, from 1; NULL is none.
    pub fn get<T: FromDatum>(&self, number: i32) -> Option<T> {
        // SAFETY: the type is what the statement says.
        self.datum(number).and_then(|datum| unsafe { T::from_datum(datum, false) })
    }

    /// Column `number`, from 1, as PostgreSQL has it.
    pub fn datum(&self, number: i32) -> Value {
        let mut null = false;
        // SAFETY: the tuple and its description are alive.
        let datum = unsafe { pg_sys::SPI_getbinval(self.tuple, self.of, number, &mut null) };
        (!null).then_some(datum)
    }
}
