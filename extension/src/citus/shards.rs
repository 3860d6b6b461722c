//! The map of the MetaTable's shards.

use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, CString},
    rc::Rc,
};

use pgrx::prelude::*;

use crate::postgres::{
    catalog::{self, find_relation, schema},
    row::value,
    saved_plan::SavedPlan,
};

/// The group of a shard that has no copy; groups' numbers are not negative.
const NOWHERE: i32 = -1;

thread_local! {
    static GROUP: SavedPlan = const { SavedPlan::new(c"SELECT groupid FROM pg_catalog.pg_dist_local_group", &[]) };
    // A shard with several copies is where the first of them is, and its rows are never written without Citus; nor are those of
    // one whose requests are elsewhere, or may go without it.
    static SHARDS: SavedPlan = const { SavedPlan::new(
        c"SELECT s.shardminvalue::int, p.groupid, s.shardid, CASE WHEN p.copies = 1 THEN r.shardid END
            FROM pg_catalog.pg_dist_shard s
            JOIN pg_catalog.pg_dist_partition d ON d.logicalrelid = s.logicalrelid AND d.partmethod = 'h'
            LEFT JOIN (SELECT q.shardid, min(q.groupid) AS groupid, count(*) AS copies FROM pg_catalog.pg_dist_placement q
                        GROUP BY q.shardid) p ON p.shardid = s.shardid
            LEFT JOIN (SELECT t.shardminvalue, t.shardmaxvalue, min(t.shardid) AS shardid, min(q.groupid) AS groupid, e.colocationid
                         FROM pg_catalog.pg_dist_shard t
                         JOIN pg_catalog.pg_dist_partition e ON e.logicalrelid = t.logicalrelid AND e.partmethod = 'h'
                         JOIN pg_catalog.pg_dist_placement q ON q.shardid = t.shardid
                        WHERE t.logicalrelid = $2 AND e.colocationid <> 0
                        GROUP BY t.shardminvalue, t.shardmaxvalue, e.colocationid HAVING count(*) = 1) r
              ON r.shardminvalue = s.shardminvalue AND r.shardmaxvalue = s.shardmaxvalue AND r.colocationid = d.colocationid
             AND r.groupid = p.groupid
           WHERE s.logicalrelid = $1 ORDER BY s.shardminvalue::int", &[pg_sys::OIDOID, pg_sys::OIDOID]) };
    static MAP: RefCell<Option<Rc<Map>>> = const { RefCell::new(None) };
    /// The tables of which a map is kept, or being read.
    static TABLES: Cell<Option<TableOids>> = const { Cell::new(None) };
    /// How many maps were dropped, or read in vain, because they may be out of date.
    static GENERATION: Cell<i64> = const { Cell::new(0) };
    /// Was the last map not empty?
    static DISTRIBUTED: Cell<bool> = const { Cell::new(false) };
}

/// The tables that new entries are written to, as they are known to whoever knows nothing of shards.
#[derive(Clone, Copy, Debug)]
pub struct TableOids {
    meta: pg_sys::Oid,
    requests: pg_sys::Oid,
}

impl TableOids {
    /// Reads the catalogs; sees all changes committed before.
    fn find() -> Self {
        Self { meta: catalog::table(c"meta"), requests: find_relation(c"requests", schema()) }
    }

    /// As a statement that writes does: LOCK TABLE, and what makes them other than distributed, wait for its transaction.
    pub fn lock(self) {
        for table in [self.meta, self.requests] {
            // SAFETY: an error leaves through pgrx's guard.
            unsafe { pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) };
        }
    }
}

/// The tables that rows of a partition are in: the extension's own, or shards of them.
#[derive(Debug, PartialEq, Eq)]
pub struct TableNames {
    /// Entries and counts.
    pub meta: CString,
    /// Answers to request ids.
    pub requests: CString,
}

impl TableNames {
    fn new(suffix: impl Fn(i64) -> String, [meta, requests]: [i64; 2]) -> Rc<Self> {
        let name = |table: &CStr, shard| {
            let name = [table.to_bytes(), suffix(shard).as_bytes()].concat();
            CString::new(name).expect("numbers have no NUL")
        };
        Rc::new(Self { meta: name(c"meta", meta), requests: name(c"requests", requests) })
    }
}

/// A shard of the MetaTable, with those of the other tables that go where it goes.
#[derive(Debug)]
pub struct Shard {
    /// The smallest hash value in it.
    least: i32,
    /// The nodes that have it.
    pub group: i32,
    /// Citus' number of it.
    pub id: i64,
    /// `None`: it has several copies, or the table of request ids does not go where this goes.
    pub local: Option<Rc<TableNames>>,
}

/// The shards of the MetaTable in order; none where it is an ordinary table.
#[derive(Debug)]
pub struct Map {
    /// This node's.
    pub group: i32,
    pub shards: Vec<Shard>,
    pub tables: TableOids,
    /// Where all is if there are none.
    pub whole: Rc<TableNames>,
}

impl Map {
    fn new(tables: TableOids, group: i32, shards: Vec<Shard>) -> Self {
        Self { group, shards, tables, whole: TableNames::new(|_| String::new(), [0, 0]) }
    }

    pub fn shard_of(&self, pid: i64) -> Option<&Shard> {
        // SAFETY: hashint8 takes one value and calls nothing.
        let hash = unsafe {
            pgrx::direct_function_call_as_datum(pg_sys::hashint8, &[pid.into_datum()]).map_or(0, |d| d.value() as i32)
        };
        let after = self.shards.partition_point(|shard| shard.least <= hash);
        after.checked_sub(1).map(|at| &self.shards[at])
    }

    pub fn is_local(&self, pid: i64) -> bool {
        self.shard_of(pid).is_none_or(|shard| shard.group == self.group)
    }
}

/// Asks to be told when a table's definition changes. Called once, when the library is loaded.
pub fn register_invalidation() {
    unsafe extern "C-unwind" fn changed(_: pg_sys::Datum, relation: pg_sys::Oid) {
        let is_ours = |tables: TableOids| [tables.meta, tables.requests, pg_sys::InvalidOid].contains(&relation);
        if TABLES.get().is_some_and(is_ours) {
            TABLES.set(None);
            GENERATION.set(GENERATION.get() + 1);
            // Borrowed only while the map is put in, which reads no catalog.
            MAP.with(|map| map.take());
        }
    }
    // SAFETY: the callback only drops what this module keeps.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::from(0_usize)) };
}

/// The map that is kept, or a new one. What is committed before its invalidation is heard is read, whatever the transaction's
/// snapshot; what is heard of while it is read makes it be read again. So none is kept that is out of date already.
pub fn map() -> Rc<Map> {
    if let Some(map) = MAP.with(|map| map.borrow().clone()) {
        return map;
    }
    let map = Rc::new(Spi::connect_mut(|_| {
        loop {
            let tables = TableOids::find();
            TABLES.set(Some(tables));
            let map = read(tables);
            // Nothing changed while it was read.
            if TABLES.get().is_some() {
                return map;
            }
        }
    }));
    DISTRIBUTED.set(!map.shards.is_empty());
    MAP.with(|kept| kept.replace(Some(map.clone())));
    map
}

fn read(tables: TableOids) -> Map {
    // SAFETY: the name ends with NUL; reads the catalog as it is now.
    if unsafe { pg_sys::get_extension_oid(c"citus".as_ptr(), true) } == pg_sys::InvalidOid {
        return Map::new(tables, 0, Vec::new());
    }
    let group = GROUP.with(|s| s.newest_rows(&[], |row| row.get::<i32>(1))).pop().flatten().unwrap_or_default();
    let shards = SHARDS.with(|s| {
        s.newest_rows(&[value(tables.meta), value(tables.requests)], |row| {
            let id = row.get(3).unwrap_or_default();
            let local = row.get(4).map(|requests| TableNames::new(|shard| format!("_{shard}"), [id, requests]));
            Shard { least: row.get(1).unwrap_or_default(), group: row.get(2).unwrap_or(NOWHERE), id, local }
        })
    });
    Map::new(tables, group, shards)
}

/// Is the MetaTable distributed by Citus?
#[pg_extern(stable, parallel_safe)]
pub fn is_distributed() -> bool {
    !map().shards.is_empty()
}

/// The same as far as is known without a look at the catalogs, which an error forbids. Once found so, it stays so.
pub fn was_distributed() -> bool {
    DISTRIBUTED.get()
}

/// Another number whenever the map of shards, or the definition of its tables, may have changed.
pub fn map_generation() -> i64 {
    GENERATION.get()
}
