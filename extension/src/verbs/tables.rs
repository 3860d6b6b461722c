//! The tables that the fast path writes to: on Citus there may be several shards in one call.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::CStr,
    iter::zip,
    rc::Rc,
};

use super::elements::Element;
use crate::{
    citus::{
        placement::{local_tables_of, open_local},
        shards::TableNames,
    },
    postgres::{
        probe::Probe,
        row::{Value, value, values},
        writer::Writer,
    },
    steps::{
        answers::{Answers, Request},
        counts::{Delta, Seen},
        key::entry_key,
    },
};

/// The columns that every entry has.
const ENTRY: [&CStr; 9] = [c"pid", c"name", c"ts", c"ns", c"id", c"owner", c"grp", c"mode", c"version"];

/// The columns of bytes inside PostgreSQL.
const INLINE: [&CStr; 3] = [c"pid", c"id", c"bytes"];

/// The table of bytes inside PostgreSQL, or a shard of it, open for a call.
struct Inline {
    table: Writer,
    columns: [i32; INLINE.len()],
}

impl Inline {
    fn open(name: &CStr) -> Self {
        let table = Writer::open(name);
        let columns = table.columns(INLINE);
        Self { table, columns }
    }
}

/// The MetaTable and `requests`, or a shard of each, open for a call. A verb writes `N` more columns of its
/// own.
pub struct Tables<const N: usize> {
    names: Rc<TableNames>,
    /// Reads the MetaTable as it was after the latches were taken, without this call's writes. Dropped before `meta`.
    pub probe: Probe,
    meta: Writer,
    entry_columns: [i32; ENTRY.len()],
    columns: [i32; N],
    answers: Answers,
    /// Opened for the first object that has such bytes.
    inline: Option<Inline>,
}

impl<const N: usize> Tables<N> {
    fn open(names: Rc<TableNames>, columns: [&CStr; N]) -> Self {
        let (meta, answers) = (Writer::open(&names.meta), Answers::open(&names.requests));
        let (entry_columns, columns) = (meta.columns(ENTRY), meta.columns(columns));
        let probe = meta.probe(entry_key(0, "").len());
        Self { names, probe, meta, entry_columns, columns, answers, inline: None }
    }

    /// Records the answer to a request; `false` if there is one, or another call has just recorded it.
    pub fn record(&mut self, element: &Element<'_>, verb: &str) -> bool {
        let Element { ns, principal, request: id, hash, .. } = *element;
        self.answers.record(&Request { ns, principal, id, hash }, verb, [element.pid, element.id, 1])
    }

    pub fn insert(&mut self, e: &Element<'_>, values: [Value; N]) {
        let entry = values![e.pid, e.name, 0_i64, e.ns, e.id, e.owner, e.grp, e.mode, 1_i64];
        self.meta.insert(zip(self.entry_columns, entry).chain(zip(self.columns, values)));
    }

    /// Whether bytes can be written where the entries are.
    pub fn take_inline(&self) -> bool {
        self.names.inline.is_some()
    }

    /// Writes the bytes of an entry, under its id (P62). Its table moves with that of the entries, which is locked already, so its
    /// name needs no second look ([`open_local`]).
    pub fn insert_inline(&mut self, pid: i64, id: i64, bytes: Value) {
        let Some(name) = &self.names.inline else { return };
        let Inline { table, columns } = self.inline.get_or_insert_with(|| Inline::open(name));
        table.insert(zip(*columns, [value(pid), value(id), bytes]));
    }
}

/// The tables that a call writes to, opened when needed. Only after the latches, and within `Spi::connect`.
pub struct LocalTables<const N: usize> {
    columns: [&'static CStr; N],
    /// One element, except on Citus.
    open: Vec<Tables<N>>,
}

impl<const N: usize> LocalTables<N> {
    pub fn new(columns: [&'static CStr; N]) -> Self {
        Self { columns, open: Vec::new() }
    }

    /// The tables of a directory's entries; `None` if only Citus can write them.
    pub fn of(&mut self, pid: i64) -> Option<&mut Tables<N>> {
        let names = local_tables_of(pid)?;
        if let Some(at) = self.open.iter().position(|tables| tables.names == names) {
            return self.open.get_mut(at);
        }
        self.open.push(open_local(pid, |names| Tables::open(names, self.columns))?);
        self.open.last_mut()
    }

    /// Adds to the counts of the directories that have new entries, whose attribute `records` this call has read.
    pub fn count(mut self, deltas: &BTreeMap<i64, Delta>, records: &mut HashMap<i64, Seen>) {
        for (pid, delta) in deltas {
            match self.of(*pid) {
                Some(tables) => delta.add_to_seen(*pid, &mut tables.meta, records.remove(pid).flatten()),
                None => delta.add_to(*pid, None),
            }
        }
    }
}
