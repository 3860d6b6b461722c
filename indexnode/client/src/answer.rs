//! Answers to a batch of lookups on the wire: rows of fixed width, written and read without decoding. Columns remain for a
//! gateway or a replica of the previous release.

use mantle_types::{DirectoryId, Error, ErrorCode, NamespaceId, Permission, Result};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{convert::error_code, model::Resolution, proto::ResolveResponse};

/// The answer to one query; the fields are those of [`Resolution`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Row {
    pub namespace: U64,
    pub id: U64,
    pub parent_id: U64,
    pub version: U64,
    pub depth: U32,
    pub owner: U32,
    pub group: U32,
    pub mode: U16,
    /// 0, or an error code as in `Outcome`.
    pub code: U16,
    /// 0 or 1.
    pub crossed_lock: u8,
}

impl From<Row> for Resolution {
    fn from(row: Row) -> Self {
        Self {
            outcome: match row.code.get() {
                0 => Ok(()),
                code => Err(Error::new(error_code(code.into()), "")),
            },
            ns: NamespaceId(row.namespace.get()),
            id: DirectoryId(row.id.get()),
            depth: row.depth.get() as usize,
            parent_id: DirectoryId(row.parent_id.get()),
            permission: Permission { owner: row.owner.get(), group: row.group.get(), mode: row.mode.get() },
            version: row.version.get(),
            crossed_lock: row.crossed_lock != 0,
            is_settled: false,
        }
    }
}

/// Adds the answer to the next query. `as_rows`: the request reads rows.
pub fn push(response: &mut ResolveResponse, row: &Row, as_rows: bool) {
    if as_rows {
        response.rows.extend_from_slice(row.as_bytes());
        return;
    }
    response.codes.push(row.code.into());
    response.namespaces.push(row.namespace.get());
    response.ids.push(row.id.get());
    response.depths.push(row.depth.get());
    response.parent_ids.push(row.parent_id.get());
    response.owners.push(row.owner.get());
    response.groups.push(row.group.get());
    response.modes.push(row.mode.into());
    response.versions.push(row.version.get());
    response.crossed_locks.push(row.crossed_lock != 0);
}

/// The answers to `expected` queries, decoded lazily. `internal` if their number differs.
pub fn resolutions(response: &ResolveResponse, expected: usize) -> Result<impl Iterator<Item = Resolution> + use<'_>> {
    let unfit = || Error::new(ErrorCode::Internal, "an index replica answered another number of queries");
    let rows = <[Row]>::ref_from_bytes(&response.rows).map_err(|_| unfit())?;
    let columns = Columns(response);
    let by_columns = columns.len().ok_or_else(unfit)?;
    if rows.len() + by_columns != expected || (by_columns > 0 && !rows.is_empty()) {
        return Err(unfit());
    }
    let rows = rows.iter().copied().chain((0..by_columns).map(move |at| columns.row(at)));
    Ok(rows.map(|row| Resolution { is_settled: response.settled, ..row.into() }))
}

struct Columns<'a>(&'a ResolveResponse);

impl Columns<'_> {
    /// The number of answers; `None` if the columns differ in length.
    fn len(&self) -> Option<usize> {
        let r = self.0;
        let lengths = [r.depths.len(), r.owners.len(), r.groups.len(), r.modes.len(), r.crossed_locks.len()];
        let more = [r.namespaces.len(), r.ids.len(), r.parent_ids.len(), r.versions.len()];
        let length = r.codes.len();
        lengths.iter().chain(&more).all(|other| *other == length).then_some(length)
    }

    fn row(&self, at: usize) -> Row {
        let r = self.0;
        Row {
            namespace: r.namespaces[at].into(),
            id: r.ids[at].into(),
            parent_id: r.parent_ids[at].into(),
            version: r.versions[at].into(),
            depth: r.depths[at].into(),
            owner: r.owners[at].into(),
            group: r.groups[at].into(),
            mode: (r.modes[at] as u16).into(),
            // A code of a newer replica that does not fit is an unknown one.
            code: u16::try_from(r.codes[at]).unwrap_or(u16::MAX).into(),
            crossed_lock: r.crossed_locks[at].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64, code: u16) -> Row {
        Row {
            namespace: 3.into(),
            id: id.into(),
            parent_id: (id - 1).into(),
            version: u64::MAX.into(),
            depth: 128.into(),
            owner: 7.into(),
            group: u32::MAX.into(),
            mode: 0o750.into(),
            code: code.into(),
            crossed_lock: u8::from(id.is_multiple_of(2)),
        }
    }

    /// docs/formats.md: a change needs another field of `ResolveResponse`, and one of the request that says it is read.
    #[test]
    fn a_row_is_as_the_protocol_says() {
        let bytes = row(0x0102, 23).as_bytes().to_vec();
        let (ids, numbers) =
            ("0300000000000000 0201000000000000 0101000000000000 ffffffffffffffff", "80000000 07000000 ffffffff");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            format!("{ids}{numbers}e801170001").replace(' ', ""),
            "the row has changed: see docs/formats.md"
        );
        assert_eq!(Row::ref_from_bytes(&bytes), Ok(&row(0x0102, 23)));
    }

    #[test]
    fn rows_and_columns_say_the_same() {
        let sent = [row(10, 0), row(11, 23)];
        let [rows, columns] = [true, false].map(|as_rows| {
            let mut response = ResolveResponse::default();
            sent.iter().for_each(|row| push(&mut response, row, as_rows));
            resolutions(&response, 2).unwrap().collect::<Vec<_>>()
        });
        assert_eq!(rows, columns);
        assert_eq!(rows[0], Resolution::from(sent[0]));
        assert!(rows[0].outcome.is_ok() && rows[0].crossed_lock && !rows[1].crossed_lock);
        assert_eq!(rows[1].outcome.as_ref().unwrap_err().code(), error_code(23));
        assert_eq!((rows[1].depth, rows[1].permission.mode), (128, 0o750));
    }

    #[test]
    fn answers_that_do_not_fit_are_refused() {
        assert_eq!(resolutions(&ResolveResponse::default(), 0).map(Iterator::count), Ok(0));
        assert!(resolutions(&ResolveResponse::default(), 1).is_err());
        let mut good = ResolveResponse::default();
        push(&mut good, &row(10, 0), true);
        assert!(resolutions(&good, 1).is_ok() && resolutions(&good, 2).is_err());
        let mut cut = good.clone();
        cut.rows.pop();
        assert!(resolutions(&cut, 1).is_err());
        push(&mut good, &row(10, 0), false);
        assert!(resolutions(&good, 2).is_err(), "rows and columns");
        good.rows.clear();
        assert!(resolutions(&good, 1).is_ok());
        good.versions.push(1);
        assert!(resolutions(&good, 1).is_err());
    }
}
