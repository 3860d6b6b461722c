//! The map of the MetaTable's shards when Citus distributes it (P41).
//!
//! A session reads the map from Citus' catalogs once, and again after PostgreSQL has reported a change of the
//! MetaTable's definition; Citus causes such a report when a shard moves. So a map may be out of date, and every
//! mutation checks its placement after its writes (see [`super::placement`]).

use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, CString},
    rc::Rc,
};

use pgrx::prelude::*;

use crate::postgres::{
    catalog::{self, find_relation, schema},
    descriptions,
    row::value,
    saved_plan::SavedPlan,
    versions::local_transaction,
};

/// The group of a shard without a copy. Real group numbers are not negative.
const NOWHERE: i32 = -1;

thread_local! {
    static GROUP: SavedPlan = const { SavedPlan::new(c"SELECT groupid FROM pg_catalog.pg_dist_local_group", &[]) };
    // A shard with several copies counts as placed where its first copy is. Rows are written without Citus only if the
    // shard has one copy, and the shard of `requests` is colocated with it.
    static SHARDS: SavedPlan = const { SavedPlan::new(
        c"WITH c AS (SELECT t.logicalrelid, t.shardminvalue, t.shardmaxvalue, min(t.shardid) AS shardid, min(q.groupid) AS groupid,
                            min(q.placementid) AS placementid, e.colocationid
                       FROM pg_catalog.pg_dist_shard t
                       JOIN pg_catalog.pg_dist_partition e ON e.logicalrelid = t.logicalrelid AND e.partmethod = 'h'
                       JOIN pg_catalog.pg_dist_placement q ON q.shardid = t.shardid
                      WHERE t.logicalrelid IN ($2, $3) AND e.colocationid <> 0
                      GROUP BY t.logicalrelid, t.shardminvalue, t.shardmaxvalue, e.colocationid HAVING count(*) = 1)
          SELECT s.shardminvalue::int, p.groupid, s.shardid, CASE WHEN p.copies = 1 THEN r.shardid END, i.shardid, r.placementid
            FROM pg_catalog.pg_dist_shard s
            JOIN pg_catalog.pg_dist_partition d ON d.logicalrelid = s.logicalrelid AND d.partmethod = 'h'
            LEFT JOIN (SELECT q.shardid, min(q.groupid) AS groupid, count(*) AS copies FROM pg_catalog.pg_dist_placement q
                        GROUP BY q.shardid) p ON p.shardid = s.shardid
            LEFT JOIN c r
              ON r.logicalrelid = $2 AND r.shardminvalue = s.shardminvalue AND r.shardmaxvalue = s.shardmaxvalue
             AND r.colocationid = d.colocationid AND r.groupid = p.groupid
            LEFT JOIN c i
              ON i.logicalrelid = $3 AND i.shardminvalue = s.shardminvalue AND i.shardmaxvalue = s.shardmaxvalue
             AND i.colocationid = d.colocationid AND i.groupid = p.groupid
           WHERE s.logicalrelid = $1 ORDER BY s.shardminvalue::int",
        &[pg_sys::OIDOID, pg_sys::OIDOID, pg_sys::OIDOID]) };
    static MAP: RefCell<Option<Rc<Map>>> = const { RefCell::new(None) };
    /// The tables of the map that is cached or being read.
    static TABLES: Cell<Option<TableOids>> = const { Cell::new(None) };
    /// The number of maps discarded so far because they may be out of date.
    static GENERATION: Cell<i64> = const { Cell::new(0) };
    /// Whether the last map had shards.
    static DISTRIBUTED: Cell<bool> = const { Cell::new(false) };
}

/// The tables that new entries are written to, not their shards.
#[derive(Clone, Copy, Debug)]
pub struct TableOids {
    meta: pg_sys::Oid,
    requests: pg_sys::Oid,
    /// `InvalidOid` in a database of an older version.
    inline: pg_sys::Oid,
}

impl TableOids {
    fn find() -> Self {
        let find = |name| find_relation(name, schema());
        Self { meta: catalog::table(c"meta"), requests: find(c"requests"), inline: find(c"inline") }
    }

    /// Locks the MetaTable like a statement that reads it.
    pub fn lock_for_read(self) {
        // SAFETY: an error leaves through pgrx's guard.
        unsafe { pg_sys::LockRelationOid(self.meta, pg_sys::AccessShareLock as pg_sys::LOCKMODE) };
    }

    /// Locks the tables like a statement that writes: LOCK TABLE and `undistribute_table` wait for this transaction.
    pub fn lock(self) {
        for table in [self.meta, self.requests] {
            // SAFETY: an error leaves through pgrx's guard.
            unsafe { pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) };
        }
    }
}

/// The tables that hold the rows of a partition: the extension's own, or their shards.
#[derive(Debug, PartialEq, Eq)]
pub struct TableNames {
    /// Entries and counts.
    pub meta: CString,
    /// Answers to request ids.
    pub requests: CString,
    /// Bytes of small objects; `None` if they are not where the entries are.
    pub inline: Option<CString>,
}

impl TableNames {
    fn new(suffix: impl Fn(i64) -> String, [meta, requests]: [i64; 2], inline: Option<i64>) -> Rc<Self> {
        let name = |table: &CStr, shard| {
            let name = [table.to_bytes(), suffix(shard).as_bytes()].concat();
            CString::new(name).expect("numbers have no NUL")
        };
        Rc::new(Self {
            meta: name(c"meta", meta),
            requests: name(c"requests", requests),
            inline: inline.map(|shard| name(c"inline", shard)),
        })
    }
}

/// A shard of the MetaTable, with the shards that move with it.
#[derive(Debug)]
pub struct Shard {
    /// Its smallest hash value.
    least: i32,
    /// The group of nodes that has it.
    pub group: i32,
    /// Citus' shard id.
    pub id: i64,
    /// `None` if it has several copies, or no shard of `requests` is colocated with it.
    pub local: Option<Rc<TableNames>>,
    /// Citus' id of the place of the shard of `requests`. It is the same on all nodes, and another one after a move.
    pub placement: i64,
}

/// The shards of the MetaTable in order; none if it is an ordinary table.
#[derive(Debug)]
pub struct Map {
    /// The group of this node.
    pub group: i32,
    pub shards: Vec<Shard>,
    pub tables: TableOids,
    /// The names to use if there are no shards.
    pub whole: Rc<TableNames>,
    /// The transaction of this session that read the map.
    pub read_in: pg_sys::LocalTransactionId,
}

impl Map {
    fn new(tables: TableOids, group: i32, shards: Vec<Shard>) -> Self {
        let whole = TableNames::new(|_| String::new(), [0, 0], Some(0));
        Self { group, shards, tables, whole, read_in: local_transaction() }
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

/// Discards what the session knows of a table when its definition changes. Called once, when the library is loaded:
/// PostgreSQL has places for few such calls.
pub fn register_invalidation() {
    unsafe extern "C-unwind" fn changed(_: pg_sys::Datum, relation: pg_sys::Oid) {
        descriptions::forget(relation);
        catalog::forget(relation);
        let is_ours =
            |tables: TableOids| [tables.meta, tables.requests, tables.inline, pg_sys::InvalidOid].contains(&relation);
        if TABLES.get().is_some_and(is_ours) {
            TABLES.set(None);
            GENERATION.set(GENERATION.get() + 1);
            // Never borrowed here: the map is borrowed only while it is stored or cloned, which reads no catalog.
            MAP.with(|map| map.take());
        }
    }
    // SAFETY: the callback only drops this module's own state.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::null()) };
}

/// The cached map, or a new one. Reading ignores the transaction's snapshot and sees everything committed; an
/// invalidation that arrives meanwhile makes it read again. So no map is out of date when it is cached.
pub fn map() -> Rc<Map> {
    if let Some(map) = MAP.with(|map| map.borrow().clone()) {
        return map;
    }
    let map = Rc::new(Spi::connect_mut(|_| {
        loop {
            let tables = TableOids::find();
            TABLES.set(Some(tables));
            let map = read(tables);
            if TABLES.get().is_some() {
                return map;
            }
        }
    }));
    DISTRIBUTED.set(!map.shards.is_empty());
    MAP.with(|kept| kept.replace(Some(map.clone())));
    map
}

/// Whether this is the map that the session uses, after the invalidations that it has processed.
pub fn is_current(map: &Rc<Map>) -> bool {
    MAP.with(|current| current.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, map)))
}

fn read(tables: TableOids) -> Map {
    // SAFETY: the name ends with NUL; an error leaves through pgrx's guard.
    if unsafe { pg_sys::get_extension_oid(c"citus".as_ptr(), true) } == pg_sys::InvalidOid {
        return Map::new(tables, 0, Vec::new());
    }
    let group = GROUP.with(|s| s.newest_rows(&[], |row| row.get::<i32>(1))).pop().flatten().unwrap_or_default();
    let shards = SHARDS.with(|s| {
        s.newest_rows(&[value(tables.meta), value(tables.requests), value(tables.inline)], |row| {
            let id = row.get(3).unwrap_or_default();
            let local =
                row.get(4).map(|requests| TableNames::new(|shard| format!("_{shard}"), [id, requests], row.get(5)));
            let placement = row.get(6).unwrap_or_default();
            Shard { least: row.get(1).unwrap_or_default(), group: row.get(2).unwrap_or(NOWHERE), id, local, placement }
        })
    });
    Map::new(tables, group, shards)
}

/// Whether Citus distributes the MetaTable.
#[pg_extern(stable, parallel_safe)]
pub fn is_distributed() -> bool {
    !map().shards.is_empty()
}

/// The same by the last map, without reading the catalogs: after an error they cannot be read.
pub fn was_distributed() -> bool {
    DISTRIBUTED.get()
}

/// A number that changes whenever the map or the definition of its tables may have changed.
pub fn map_generation() -> i64 {
    GENERATION.get()
}
