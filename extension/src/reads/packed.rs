//! Entries in one value: the rows of PostgreSQL's binary COPY format, without its header and trailer. A row for each
//! entry would cost PostgreSQL, PgBouncer and the gateway several times as much as its content.
//!
//! Format: for each entry the number of its columns (16 bits); for each of these its length (32 bits, -1: NULL) and its
//! bytes, as the type's function for binary output writes them. `sql/reads/list.sql` names the columns. An entry whose bytes
//! are inside PostgreSQL may have these as one more column (P62).

use std::ffi::CStr;

use mantle_types::{ErrorCode, inline::inline_number};
use pgrx::{FromDatum, pg_sys, varlena};

use super::answer::{Answer, name};
use crate::{
    fault::sqlstate,
    postgres::{
        call::Arguments,
        probe::Columns,
        row::{Value, value},
        versions::attributes,
    },
};

/// Columns of an answer, from 0.
const ORD: usize = 0;
const CODE: usize = 1;
const ENTRIES: usize = 2;

/// The columns of an entry that reads return, in this order.
const ENTRY: &[&CStr] = &include!(concat!(env!("OUT_DIR"), "/entry.rs"));
/// The place of the locator among them.
const LOCATOR: usize = 12;
/// The version of the binary form of `jsonb`.
const JSONB_VERSION: u8 = 1;

/// How a column is written.
#[derive(Clone, Copy)]
enum Form {
    /// 8 bytes: numbers and times.
    Long,
    /// 4 bytes.
    Int,
    Bool,
    Text,
    Jsonb,
}

impl Form {
    fn of(column: &pg_sys::FormData_pg_attribute) -> Option<Self> {
        Some(match column.atttypid {
            pg_sys::INT8OID | pg_sys::TIMESTAMPTZOID => Self::Long,
            pg_sys::INT4OID => Self::Int,
            pg_sys::BOOLOID => Self::Bool,
            pg_sys::TEXTOID => Self::Text,
            pg_sys::JSONBOID => Self::Jsonb,
            _ => return None,
        })
    }
}

/// The columns of a table that are written: their places, from 0.
pub struct Packed(Vec<(usize, Form)>);

impl Packed {
    pub fn of(table: pg_sys::Relation) -> Self {
        // SAFETY: the table is open.
        let columns = unsafe { attributes((*table).rd_att) };
        let find = |wanted: &&CStr| {
            let found = columns.iter().position(|column| !column.attisdropped && name(column) == *wanted);
            let Some(found) = found.and_then(|at| Some((at, Form::of(&columns[at])?))) else {
                pgrx::error!("the MetaTable has no column {wanted:?} of a type that can be packed");
            };
            found
        };
        debug_assert_eq!(ENTRY[LOCATOR], c"locator");
        Self(ENTRY.iter().map(find).collect())
    }

    /// The number in the locator of an entry whose bytes are inside PostgreSQL.
    pub fn inline_number(&self, row: &Columns<'_>) -> Option<i64> {
        let (at, _) = self.0[LOCATOR];
        // SAFETY: a text, which is read at once.
        let locator = unsafe { <&str>::from_datum(row.values[at], row.nulls[at]) }?;
        inline_number(locator)
    }
}

/// A value that entries are written to.
pub struct Pack {
    /// Its header, then the entries.
    bytes: Vec<u8>,
    /// Where PostgreSQL writes a document as text.
    json: pg_sys::StringInfo,
}

impl Pack {
    /// `room`: for so many bytes, to begin with.
    pub fn new(json: pg_sys::StringInfo, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(room);
        bytes.extend([0; pg_sys::VARHDRSZ]);
        Self { bytes, json }
    }

    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Adds an entry. With `is_followed` a column more is to follow.
    pub fn add(&mut self, row: &Columns<'_>, columns: &Packed, is_followed: bool) {
        self.bytes.extend((columns.0.len() as i16 + i16::from(is_followed)).to_be_bytes());
        for (at, form) in &columns.0 {
            let value = row.values[*at];
            match form {
                _ if row.nulls[*at] => self.bytes.extend((-1_i32).to_be_bytes()),
                Form::Long => self.field(&(value.value() as i64).to_be_bytes()),
                Form::Int => self.field(&(value.value() as i32).to_be_bytes()),
                Form::Bool => self.field(&[u8::from(value.value() as u8 != 0)]),
                Form::Text => self.text(value),
                Form::Jsonb => self.jsonb(value),
            }
        }
    }

    /// Adds the column that follows: a byte string, or NULL.
    pub fn follow(&mut self, value: Value) {
        match value {
            // Stored like a text.
            Some(value) => self.text(value),
            None => self.bytes.extend((-1_i32).to_be_bytes()),
        }
    }

    fn field(&mut self, value: &[u8]) {
        self.bytes.extend((value.len() as i32).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }

    fn text(&mut self, value: pg_sys::Datum) {
        let stored = value.cast_mut_ptr::<pg_sys::varlena>();
        // SAFETY: a text, as it is stored; it is read before it is freed.
        unsafe {
            if varlena::varatt_is_4b_c(stored) || varlena::varatt_is_1b_e(stored) {
                let whole = pg_sys::pg_detoast_datum_packed(stored);
                self.field(varlena::varlena_to_byte_slice(whole));
                pg_sys::pfree(whole.cast());
            } else {
                self.field(varlena::varlena_to_byte_slice(stored));
            }
        }
    }

    fn jsonb(&mut self, value: pg_sys::Datum) {
        let stored = value.cast_mut_ptr::<pg_sys::varlena>();
        // SAFETY: a jsonb, as it is stored. The text is read before anything else is written there; its memory lives as
        // long as the call.
        unsafe {
            let whole = pg_sys::pg_detoast_datum(stored);
            let document = whole.cast::<pg_sys::Jsonb>();
            (*self.json).len = 0;
            pg_sys::JsonbToCString(self.json, &raw mut (*document).root, varlena::varsize_4b(whole) as i32);
            let text = std::slice::from_raw_parts((*self.json).data.cast::<u8>(), (*self.json).len as usize);
            self.bytes.extend((text.len() as i32 + 1).to_be_bytes());
            self.bytes.push(JSONB_VERSION);
            self.bytes.extend_from_slice(text);
            if whole != stored {
                pg_sys::pfree(whole.cast());
            }
        }
    }

    /// The value, a `bytea`. It lives as long as the pack.
    pub fn value(&mut self) -> Value {
        // SAFETY: the value begins with room for its header, where memory begins that is aligned for it.
        unsafe {
            let start = self.bytes.as_mut_ptr().cast::<pg_sys::varlena>();
            varlena::set_varsize_4b(start, self.bytes.len() as i32);
            Some(pg_sys::Datum::from(start))
        }
    }
}

/// What becomes of an element of a call.
pub enum Read {
    Packed(Pack),
    Refused(ErrorCode),
    /// It has to be read alone.
    Left,
}

/// Answers the number of each element, from 1, and its code or its entries; neither for one that is left.
pub fn answer(call: &Arguments, reads: &mut [Read]) {
    let mut answer = Answer::begin(call);
    for (at, read) in reads.iter_mut().enumerate() {
        answer.set(ORD, value(at as i32 + 1));
        match read {
            Read::Packed(pack) => answer.set(ENTRIES, pack.value()),
            Read::Refused(code) => answer.set(CODE, value(sqlstate(*code))),
            Read::Left => {}
        }
        answer.put();
    }
}
