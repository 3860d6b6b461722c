//! The tables that a read opens: the MetaTable, or its shards on this node.
//!
//! Invariant (P57): a shard's rows count only if the shard was on this node before the statement took its snapshot, and
//! still is after the last row was read. So the map of shards must be older than the transaction, and must not change:
//! [`Tables::hold`]. Rows of a shard that has moved away may be older than an acknowledged change. Rows of a shard that
//! has moved here may be newer than the snapshot, which then shows none of them.
//!
//! Unlike [`crate::citus::placement`], a read announces no change to Citus and takes no lock on the shard's metadata.
//! It does not wait for the lock of a shard, because other elements of the call may be in other shards.

use std::{ffi::CStr, rc::Rc};

use pgrx::pg_sys;

use crate::{
    citus::shards::{Map, Shard, TableNames, is_current, map},
    citus::transaction::announce_read,
    postgres::{
        catalog::{accept_invalidations, find_relation, schema},
        probe::{Columns, Key, Probe, ScanKeys, Table},
        row::Value,
        versions::{self, local_transaction},
    },
    steps::key::entry_key,
};

/// Columns of the MetaTable, from 1 (`sql/tables/meta.sql`).
const NS: i32 = 4;
const ID: i32 = 5;
/// The column of bytes inside PostgreSQL, from 1 (`sql/tables/inline.sql`).
const BYTES: i32 = 3;

/// Whether this node can read a partition at once.
pub enum Found<'a, C> {
    Here(&'a mut OpenTable<C>),
    /// Another node has it, or its shard is locked. A read of it alone may take its time.
    NotNow,
    /// Only SQL can read it here: through Citus, or without a primary key.
    BySql,
}

/// The table of bytes inside PostgreSQL, or a shard of it. Fields are dropped in this order.
struct Inline {
    probe: Probe,
    _table: Table,
}

/// Fields are dropped in this order.
pub struct OpenTable<C> {
    /// Keeps `names` apart.
    names: Rc<TableNames>,
    /// Where the columns are that are answered.
    pub columns: C,
    /// Of one entry.
    entry: ScanKeys,
    pub probe: Probe,
    /// Opened for the first entry whose bytes are wanted.
    inline: Option<Inline>,
    is_shard: bool,
    _table: Table,
}

impl<C> OpenTable<C> {
    fn new(names: Rc<TableNames>, is_shard: bool, table: Table, conditions: usize, columns: C) -> Self {
        // SAFETY: the table outlives the probe, and the calling statement has an active snapshot.
        let probe = unsafe { Probe::open_under(pg_sys::GetActiveSnapshot(), table.relation(), conditions) };
        Self { names, columns, entry: ScanKeys::new(&entry_key(0, "")), probe, inline: None, is_shard, _table: table }
    }
}

impl<C> OpenTable<C> {
    /// Reads the entry of a name, if there is one, and it is of this namespace.
    pub fn find(&mut self, [ns, pid, name]: [pg_sys::Datum; 3], mut take: impl FnMut(&Columns<'_>, &C)) -> bool {
        self.entry.set(0, pid);
        self.entry.set(1, name);
        let (columns, mut is_found) = (&self.columns, false);
        self.probe.scan(&mut self.entry, |row| {
            is_found = row.datum(NS) == Some(ns) && row.datum(ID).is_some();
            if is_found {
                take(row, columns);
            }
            false
        });
        is_found
    }

    /// Reads bytes inside PostgreSQL, under the snapshot that showed the entry: `take` gets them, or `None` if they are not there.
    /// `false`, and nothing read, if the table cannot be opened at once.
    pub fn read_inline(&mut self, pid: i64, number: i64, take: impl FnOnce(Value)) -> bool {
        if self.inline.is_none() {
            self.inline = open_inline(&self.names, self.is_shard);
        }
        let Some(Inline { probe, .. }) = &mut self.inline else { return false };
        let mut take = Some(take);
        probe.scan(&mut ScanKeys::new(&[Key::int8(1, pid), Key::int8(2, number)]), |row| {
            if let Some(take) = take.take() {
                take(row.datum(BYTES));
            }
            false
        });
        if let Some(take) = take {
            take(None);
        }
        true
    }
}

/// The table of bytes that belongs to a table of entries. It moves with that one, so [`Tables::hold`] also tells of it.
fn open_inline(names: &TableNames, is_shard: bool) -> Option<Inline> {
    let name = names.inline.as_deref()?;
    let table = if is_shard { open_unlocked(name) } else { Some(Table::open(name)) }?;
    if primary_key(&table) == pg_sys::InvalidOid {
        return None;
    }
    // SAFETY: the table outlives the probe, and the calling statement has an active snapshot.
    let probe = unsafe { Probe::open_under(pg_sys::GetActiveSnapshot(), table.relation(), 2) };
    Some(Inline { probe, _table: table })
}

/// The tables that a call has opened.
pub struct Tables<C> {
    map: Rc<Map>,
    /// The number of conditions of each scan.
    conditions: usize,
    is_announced: bool,
    /// One element, except on Citus.
    open: Vec<OpenTable<C>>,
}

impl<C> Tables<C> {
    /// `None` if the session knows no map that is older than its transaction. The next transaction will.
    pub fn begin(conditions: usize) -> Option<Self> {
        let map = map();
        if !map.shards.is_empty() {
            if map.read_in == local_transaction() {
                return None;
            }
            map.tables.lock_for_read();
        }
        Some(Self { map, conditions, is_announced: false, open: Vec::new() })
    }

    /// The table that has a partition; `columns` finds those of a table that is opened.
    pub fn of(&mut self, pid: i64, columns: impl FnOnce(pg_sys::Relation) -> C) -> Found<'_, C> {
        let shard = self.map.shard_of(pid);
        let names = match shard {
            None => &self.map.whole,
            Some(Shard { local: None, .. }) => return Found::BySql,
            Some(shard) if shard.group != self.map.group => return Found::NotNow,
            Some(Shard { local: Some(names), .. }) => names,
        };
        if let Some(at) = self.open.iter().position(|open| Rc::ptr_eq(&open.names, names)) {
            return Found::Here(&mut self.open[at]);
        }
        let (names, is_shard) = (names.clone(), shard.is_some());
        if is_shard && !self.is_announced {
            if !announce_read() {
                return Found::BySql;
            }
            self.is_announced = true;
        }
        let table = if is_shard { open_unlocked(&names.meta) } else { Some(Table::open(&names.meta)) };
        let Some(table) = table else { return Found::NotNow };
        if primary_key(&table) == pg_sys::InvalidOid {
            return Found::BySql;
        }
        let columns = columns(table.relation());
        self.open.push(OpenTable::new(names, is_shard, table, self.conditions, columns));
        self.open.last_mut().map_or(Found::NotNow, Found::Here)
    }

    /// Whether all shards have been where they were found, from before the statement's snapshot until now.
    pub fn hold(&self) -> bool {
        accept_invalidations();
        self.map.shards.is_empty() || is_current(&self.map)
    }
}

/// Opens a shard and its primary key, unless that would have to wait.
fn open_unlocked(name: &CStr) -> Option<Table> {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    let shard = find_relation(name, schema());
    // SAFETY: an error leaves through pgrx's guard.
    if shard == pg_sys::InvalidOid || unsafe { !pg_sys::ConditionalLockRelationOid(shard, lock) } {
        return None;
    }
    let table = Table::open_locked(shard)?;
    let index = primary_key(&table);
    // SAFETY: an error leaves through pgrx's guard.
    let is_free = index == pg_sys::InvalidOid || unsafe { pg_sys::ConditionalLockRelationOid(index, lock) };
    is_free.then_some(table)
}

fn primary_key(table: &Table) -> pg_sys::Oid {
    // SAFETY: the table is open.
    unsafe { versions::primary_key(table.relation()) }
}

/// An integer, if it is not NULL.
pub fn int8(value: Value) -> Option<i64> {
    value.map(|datum| datum.value() as i64)
}
