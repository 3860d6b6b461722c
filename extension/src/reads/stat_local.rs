//! `mantle.stat_local`: entries by place that are on this node, each in one value.
//!
//! Invariant (P40): no read delays another. One that this node cannot answer at once is refused or left, and the gateway
//! reads it alone, by `mantle.stat`. So this function needs no fallback.

use mantle_types::ErrorCode;
use pgrx::pg_sys;

use super::{
    packed::{Pack, Packed, Read, answer},
    stat::CONDITIONS,
    tables::{Found, Tables},
};
use crate::postgres::{
    call::Arguments,
    function::{Done, c_function},
    row::Value,
};

/// The number of the last argument, from 0.
const INLINE: usize = 3;
/// The room that an entry begins with.
const ENTRY_BYTES: usize = 512;

c_function!(mantle_stat_local, pg_finfo_mantle_stat_local, |call| {
    let places = Places::of(call);
    let mut reads = Tables::begin(CONDITIONS).map(|tables| read_all(tables, &places)).unwrap_or_default();
    reads.resize_with(places.count(), || Read::Left);
    answer(call, &mut reads);
    Done::Rows
});

/// The arguments, an array each.
struct Places {
    /// One for each, or one for all.
    ns: Vec<Value>,
    pids: Vec<Value>,
    names: Vec<Value>,
    /// Whether bytes inside PostgreSQL are wanted; empty: of none.
    inline: Vec<Value>,
}

impl Places {
    fn of(call: &Arguments) -> Self {
        let vector = |at, of| call.vector(at, of).unwrap_or_default();
        let names = vector(2, pg_sys::TEXTOID);
        // An older version of the function has no such argument: the library may be newer than the database's functions.
        let inline = if call.count() > INLINE { vector(INLINE, pg_sys::BOOLOID) } else { Vec::new() };
        Self { ns: vector(0, pg_sys::INT8OID), pids: vector(1, pg_sys::INT8OID), names, inline }
    }

    fn count(&self) -> usize {
        self.pids.len().max(self.names.len())
    }

    /// `None` without one of these.
    fn place(&self, at: usize) -> Option<[pg_sys::Datum; 3]> {
        let element = |of: &[Value], at: usize| of.get(at).copied().flatten();
        let ns = element(&self.ns, if self.ns.len() == 1 { 0 } else { at })?;
        Some([ns, element(&self.pids, at)?, element(&self.names, at)?])
    }

    fn wants_bytes(&self, at: usize) -> bool {
        self.inline.get(at).copied().flatten().is_some_and(|wants| wants.value() != 0)
    }
}

/// The entries of all places; none if a shard has moved meanwhile.
fn read_all(mut tables: Tables<Packed>, places: &Places) -> Vec<Read> {
    // SAFETY: an error leaves through pgrx's guard. The text lives as long as the call.
    let json = unsafe { pg_sys::makeStringInfo() };
    let mut read = |at: usize| {
        pgrx::check_for_interrupts!();
        let Some([ns, pid, name]) = places.place(at) else { return Read::Refused(ErrorCode::NotFound) };
        let table = match tables.of(pid.value() as i64, Packed::of) {
            Found::Here(table) => table,
            Found::NotNow => return Read::Refused(ErrorCode::WrongNode),
            Found::BySql => return Read::Left,
        };
        let (mut pack, mut number) = (Pack::new(json, ENTRY_BYTES), None);
        let is_found = table.find([ns, pid, name], |row, columns| {
            number = if places.wants_bytes(at) { columns.inline_number(row) } else { None };
            pack.add(row, columns, number.is_some());
        });
        let is_whole =
            number.is_none_or(|number| table.read_inline(pid.value() as i64, number, |bytes| pack.follow(bytes)));
        match (is_found, is_whole) {
            (false, _) => Read::Refused(ErrorCode::NotFound),
            (true, true) => Read::Packed(pack),
            (true, false) => Read::Left,
        }
    };
    let reads = (0..places.count()).map(&mut read).collect();
    if tables.hold() { reads } else { Vec::new() }
}
