//! Entries in one value: rows of PostgreSQL's binary COPY format, which `mantle.list_local` and `mantle.stat_local` write.
//! To read a separate row for each entry would cost the gateway more than its content.
//!
//! Format: for each entry the number of its columns (16 bits); for each of these its length (32 bits, -1: NULL) and its
//! bytes in PostgreSQL's binary format. The columns are those that `mantle.list` answers. A single entry may have one more: its
//! bytes, if they are inside PostgreSQL (P62).

use bytes::Bytes;
use mantle_types::{ErrorCode, Result};
use tokio_postgres::types::{FromSql, Type};

use super::{record::Fields, rows::Entry};

/// The number of an entry's columns.
const COLUMNS: usize = 15;
/// Their types, in the order of [`Entry::read`].
static TYPES: [Type; COLUMNS] = [
    Type::TEXT,
    Type::INT8,
    Type::INT4,
    Type::INT4,
    Type::INT4,
    Type::INT8,
    Type::BOOL,
    Type::INT8,
    Type::BOOL,
    Type::TEXT,
    Type::TEXT,
    Type::JSONB,
    Type::TEXT,
    Type::TIMESTAMPTZ,
    Type::TIMESTAMPTZ,
];
const OTHER: &str = "it ends early, or has other columns";
/// About the bytes of an entry, to make room for a page's.
const ENTRY_BYTES: usize = 160;

/// The columns of an entry.
struct Columns<'a>([Option<&'a [u8]>; COLUMNS]);

impl Fields for Columns<'_> {
    fn field<'a, T: FromSql<'a>>(&'a self, at: usize) -> Result<T> {
        let of = TYPES.get(at).filter(|of| T::accepts(of)).ok_or_else(|| unreadable("a column of another type"))?;
        T::from_sql_nullable(of, self.0[at]).map_err(|cause| unreadable(&cause.to_string()))
    }
}

fn unreadable(cause: &str) -> mantle_types::Error {
    tracing::error!(cause, "the database answered an unexpected page");
    ErrorCode::Internal.into()
}

/// The entries of a page.
pub fn entries(mut page: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::with_capacity(page.len() / ENTRY_BYTES + 1);
    while !page.is_empty() {
        let columns = columns(&mut page, COLUMNS).ok_or_else(|| unreadable(OTHER))?;
        entries.push(Entry::read(&columns, 0)?);
    }
    Ok(entries)
}

/// The only entry of a value, perhaps with its bytes.
pub fn entry(mut value: &[u8]) -> Result<Entry> {
    let has_bytes = value.starts_with(&(COLUMNS as u16 + 1).to_be_bytes());
    let columns = columns(&mut value, COLUMNS + usize::from(has_bytes)).ok_or_else(|| unreadable(OTHER))?;
    let mut entry = Entry::read(&columns, 0)?;
    if has_bytes {
        let bytes = column(&mut value).ok_or_else(|| unreadable(OTHER))?;
        entry.inline = bytes.map(Bytes::copy_from_slice);
    }
    if value.is_empty() { Ok(entry) } else { Err(unreadable("it has more than one entry")) }
}

/// The columns of the next entry; `None` if the page ends early, or the entry has another number of columns. Those after the usual ones
/// are not taken.
fn columns<'a>(page: &mut &'a [u8], count: usize) -> Option<Columns<'a>> {
    if page.split_off(..2)? != (count as u16).to_be_bytes() {
        return None;
    }
    let mut columns = [None; COLUMNS];
    for of in &mut columns {
        *of = column(page)?;
    }
    Some(Columns(columns))
}

/// The value of the next column, which may be NULL; `None` if the page ends early.
fn column<'a>(page: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    match i32::from_be_bytes(page.split_off(..4)?.try_into().ok()?) {
        -1 => Some(None),
        length => page.split_off(..usize::try_from(length).ok()?).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two entries, as PostgreSQL copies them: an object, and a directory with little set.
    fn page() -> Vec<u8> {
        let mut page = Vec::new();
        let mut entry = |columns: [Option<&[u8]>; COLUMNS]| {
            page.extend([0, 15]);
            for column in columns {
                page.extend(column.map_or(-1, |column| column.len() as i32).to_be_bytes());
                page.extend(column.unwrap_or_default());
            }
        };
        let (one, seven) = (1_i32.to_be_bytes(), 7_i64.to_be_bytes());
        entry([
            Some("é".as_bytes()),
            Some(&seven),
            Some(&one),
            Some(&one),
            Some(&0o644_i32.to_be_bytes()),
            Some(&seven),
            None,
            Some(&seven),
            Some(&[1]),
            Some(b"etag"),
            Some(b"text/plain"),
            Some(b"\x01{\"a\": \"b\"}"),
            Some(b"locator"),
            Some(&0_i64.to_be_bytes()),
            None,
        ]);
        let mut directory = [None; COLUMNS];
        (directory[0], directory[1], directory[6]) = (Some(&b"d/"[..]), Some(&seven[..]), Some(&[1_u8][..]));
        entry(directory);
        page
    }

    #[test]
    fn entries_are_read_in_order() {
        let [object, directory] = <[Entry; 2]>::try_from(entries(&page()).unwrap()).unwrap();
        assert_eq!((object.name.as_str(), object.id.as_i64(), object.permission.mode), ("é", 7, 0o644));
        assert_eq!((object.explicit, object.size, object.synthetic, object.version), (false, 7, true, 7));
        assert_eq!((object.etag.as_deref(), object.locator.as_deref()), (Some("etag"), Some("locator")));
        assert_eq!(object.created.unwrap().to_rfc3339(), "2000-01-01T00:00:00+00:00");
        assert_eq!(object.modified, None);
        assert_eq!(object.user_metadata(), Some(&serde_json::json!({"a": "b"})));
        assert_eq!((directory.name.as_str(), directory.explicit, directory.size), ("d/", true, 0));
        assert_eq!((directory.etag.as_deref(), directory.user_metadata()), (None, None));
        assert!(entries(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_value_has_one_entry() {
        let page = page();
        let second = page.len() - (2 + COLUMNS * 4 + 2 + 8 + 1);
        assert_eq!(entry(&page[..second]).unwrap().name, "é");
        for other in [&page[..], &[]] {
            assert!(entry(other).is_err(), "{}", other.len());
        }
    }

    #[test]
    fn a_single_entry_may_have_its_bytes() {
        let page = page();
        let mut value = page[..page.len() - (2 + COLUMNS * 4 + 2 + 8 + 1)].to_vec();
        assert_eq!(entry(&value).unwrap().inline, None);
        value[1] = COLUMNS as u8 + 1;
        assert!(entry(&value).is_err(), "they are missing");
        let with = |bytes: &[u8]| [&value[..], bytes].concat();
        assert_eq!(entry(&with(&[0xff; 4])).unwrap().inline, None);
        assert_eq!(entry(&with(b"\0\0\0\x02\xffb")).unwrap().inline.as_deref(), Some(&b"\xffb"[..]));
        assert!(entry(&with(b"\0\0\0\x02\xff")).is_err() && entry(&with(b"\0\0\0\x01ab")).is_err());
        assert!(entries(&with(b"\0\0\0\x02\xffb")).is_err(), "not in a page");
    }

    #[test]
    fn a_page_that_ends_early_is_an_error() {
        let page = page();
        let first = page.len() - (2 + 15 * 4 + 2 + 8 + 1);
        for end in (1..page.len()).filter(|end| *end != first) {
            assert!(entries(&page[..end]).is_err(), "{end}");
        }
        let mut other = page.clone();
        other[1] = 14;
        assert!(entries(&other).is_err());
    }

    #[test]
    fn a_value_of_another_type_is_an_error() {
        let mut page = page();
        // The name's first byte.
        page[6] = 0xff;
        assert!(entries(&page).is_err());
    }
}
