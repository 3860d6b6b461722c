//! `mantle.list_local`: pages of several directories that are on this node, each in one value.
//!
//! Invariant (P40): no page delays another. A page that cannot be read at once is left out, and the gateway reads it
//! alone, by `mantle.list` or `mantle.list_filled`. So this function needs no fallback.

use std::ops::ControlFlow;

use mantle_types::ErrorCode;
use pgrx::{FromDatum, pg_sys};

use super::{
    packed::{Pack, Packed, Read, answer},
    page::{CONDITIONS, Page, are_directories_queued, is_implicit},
    tables::{Found, Tables, int8},
};
use crate::{
    citus::shards::is_distributed,
    postgres::{
        call::Arguments,
        function::{Done, c_function},
        row::Value,
    },
};

/// A page may pass at most this many entries of the PostgreSQL index whose rows are dead. To pass that many doubles the
/// time of a page of a thousand entries.
const UNSEEN_MAX: usize = 1000;
/// Most bytes of all pages. Later pages are left out.
const BYTES_MAX: usize = 64 << 20;
/// The room that a page begins with, for some 20 entries.
const PAGE_BYTES: usize = 4096;

c_function!(mantle_list_local, pg_finfo_mantle_list_local, |call| {
    let elements = Elements::of(call);
    let mut pages = Tables::begin(CONDITIONS).map(|tables| read_all(tables, &elements)).unwrap_or_default();
    pages.resize_with(elements.count(), || Read::Left);
    answer(call, &mut pages);
    Done::Rows
});

/// The arguments, an array each.
struct Elements {
    ns: Vec<Value>,
    pids: Vec<Value>,
    start_after: Vec<Value>,
    prefixes: Vec<Value>,
    limits: Vec<Value>,
    filled: Vec<Value>,
}

impl Elements {
    fn of(call: &Arguments) -> Self {
        let vector = |at, of| call.vector(at, of).unwrap_or_default();
        Self {
            ns: vector(0, pg_sys::INT8OID),
            pids: vector(1, pg_sys::INT8OID),
            start_after: vector(2, pg_sys::TEXTOID),
            prefixes: vector(3, pg_sys::TEXTOID),
            limits: vector(4, pg_sys::INT4OID),
            filled: vector(5, pg_sys::BOOLOID),
        }
    }

    fn count(&self) -> usize {
        self.pids.len()
    }

    /// Its directory, the page, and whether it leaves out directories that hold no key. `None` without one of these.
    fn page(&self, at: usize) -> Option<(i64, Page, bool)> {
        let element = |of: &[Value]| of.get(at).copied().flatten();
        // SAFETY: the function is declared with texts.
        let text = |of: &[Value]| element(of).and_then(|text| unsafe { <&str>::from_datum(text, false) });
        let (ns, pid) = (int8(element(&self.ns))?, int8(element(&self.pids))?);
        let limit = element(&self.limits)?.value() as i32;
        let page = Page::new(ns, pid, text(&self.start_after), text(&self.prefixes), limit)?;
        Some((pid, page, element(&self.filled)?.value() != 0))
    }
}

/// The pages of all elements; none if a shard has moved meanwhile.
fn read_all(mut tables: Tables<Packed>, elements: &Elements) -> Vec<Read> {
    // SAFETY: an error leaves through pgrx's guard. The text lives as long as the call.
    let json = unsafe { pg_sys::makeStringInfo() };
    let (mut bytes, mut may_be_empty) = (0, None);
    let mut read = |at: usize| {
        let Some((pid, page, is_filled)) = elements.page(at) else { return Read::Left };
        let table = match tables.of(pid, Packed::of) {
            Found::Here(table) => table,
            Found::NotNow => return Read::Refused(ErrorCode::WrongNode),
            Found::BySql => return Read::Left,
        };
        let mut pack = Pack::new(json, PAGE_BYTES);
        let whole = page.read(table, UNSEEN_MAX, |row, columns| {
            // Whether it holds a key is not known at once (P54). On Citus even that is not: another node may know.
            let is_unclear = is_filled
                && is_implicit(row)
                && *may_be_empty.get_or_insert_with(|| is_distributed() || are_directories_queued());
            if is_unclear || bytes + pack.size() > BYTES_MAX {
                return ControlFlow::Break(());
            }
            pack.add(row, columns, false);
            ControlFlow::Continue(())
        });
        if whole.is_break() {
            return Read::Left;
        }
        bytes += pack.size();
        Read::Packed(pack)
    };
    let pages = (0..elements.count()).map(&mut read).collect();
    if tables.hold() { pages } else { Vec::new() }
}
