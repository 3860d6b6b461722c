//! The tables that new entries are written to.

use std::{collections::BTreeMap, ffi::CStr, rc::Rc};

use super::elements::Element;
use crate::{
    citus::{
        placement::{local_tables_of, open_local},
        shards::TableNames,
    },
    postgres::{
        clock::clock_timestamp,
        probe::{Probe, entry_key},
        row::{Value, value},
        writer::Writer,
    },
    steps::counts::Delta,
};

/// Of table `requests`.
const REQUEST: [&CStr; 9] =
    [c"ns", c"principal", c"request_id", c"request_hash", c"verb", c"pid", c"id", c"version", c"created"];

/// The tables of one home, open for a call. `N` columns of an entry are written.
pub struct Tables<const N: usize> {
    names: Rc<TableNames>,
    /// Of the MetaTable as it was when the latches were held: it does not see what this call does. Dropped before `meta`.
    pub probe: Probe,
    meta: Writer,
    columns: [i32; N],
    requests: Writer,
    request_columns: [i32; REQUEST.len()],
}

impl<const N: usize> Tables<N> {
    fn open(names: Rc<TableNames>, columns: [&CStr; N]) -> Self {
        let (meta, requests) = (Writer::open(&names.meta), Writer::open(&names.requests));
        let (columns, request_columns) = (meta.columns(columns), requests.columns(REQUEST));
        let probe = meta.probe(entry_key(0, "").len());
        Self { names, probe, meta, columns, requests, request_columns }
    }

    /// Records the answer to a request; `false`: it has one, or is answered by another call just now.
    pub fn record(&mut self, element: &Element<'_>, verb: &str) -> bool {
        let values = [
            value(element.ns),
            value(element.principal),
            value(element.request),
            value(element.hash),
            value(verb),
            value(element.pid),
            value(element.id),
            value(1_i64),
            // When the request is recorded, not when its transaction began.
            value(clock_timestamp()),
        ];
        self.requests.insert_if_free(&self.request_columns, values)
    }

    pub fn insert(&mut self, values: [Value; N]) {
        self.meta.insert(&self.columns, values);
    }
}

/// The tables that a call writes to. Opened when the latches are held, within `Spi::connect` only.
pub struct LocalTables<const N: usize> {
    columns: [&'static CStr; N],
    /// One, except on Citus.
    open: Vec<Tables<N>>,
}

impl<const N: usize> LocalTables<N> {
    pub fn new(columns: [&'static CStr; N]) -> Self {
        Self { columns, open: Vec::new() }
    }

    /// Those of a directory's entries; `None`: on another node.
    pub fn of(&mut self, pid: i64) -> Option<&mut Tables<N>> {
        let names = local_tables_of(pid)?;
        if let Some(at) = self.open.iter().position(|tables| tables.names == names) {
            return self.open.get_mut(at);
        }
        self.open.push(open_local(pid, |names| Tables::open(names, self.columns))?);
        self.open.last_mut()
    }

    /// Adds to the counts of directories that got new entries.
    pub fn count(mut self, deltas: &BTreeMap<i64, Delta>) {
        for (pid, delta) in deltas {
            delta.add_to(*pid, self.of(*pid).map(|tables| &mut tables.meta));
        }
    }
}
