//! Where a partition's rows are when Citus distributes the MetaTable: on this node, or another.
//!
//! The map of shards is read from Citus' catalogs once a session, and again when PostgreSQL says that the MetaTable's
//! definition changed, as Citus makes it say when a shard moves. Invariant: a map that is out of date is slower, never
//! wrong: after its writes, which keep the shard from moving until the commit, a mutation asks [`placement_fault`], which
//! listens for such news first (P14). One made of parts on several nodes asks [`placements_fault`] too: each part
//! knows only that its shard is where it wrote, not that it was latched there.
//!
//! Rows of a partition on this node are read and written in the shard itself ([`home_of`]), under the lock that Citus takes
//! for a change: its own way to a statement costs several times what the statement does.

use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, CString},
    rc::Rc,
};

use mantle_types::ErrorCode;
use pgrx::prelude::*;

use crate::{
    citus,
    guard::{Fault, sqlstate},
    kept::{Kept, argument},
};

/// Delta records are told apart by a number that each node counts for itself, below this many bits of its group's number:
/// so a directory whose shard moves never meets the same one again.
const GROUP_SHIFT: u32 = 48;

/// The group of a shard that has no copy; groups' numbers are not negative.
const NOWHERE: i32 = -1;

thread_local! {
    static GROUP: Kept = const { Kept::new(c"SELECT groupid FROM pg_catalog.pg_dist_local_group", &[]) };
    // A shard with several copies is where the first of them is, and its rows are never written without Citus; nor are those of
    // one whose requests are elsewhere, or may go without it.
    static SHARDS: Kept = const { Kept::new(
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
    static TABLES: Cell<Option<Tables>> = const { Cell::new(None) };
    /// How many maps were dropped, or read in vain, because they may be out of date.
    static DROPPED: Cell<i64> = const { Cell::new(0) };
    /// Was the last map not empty?
    static DISTRIBUTED: Cell<bool> = const { Cell::new(false) };
}

/// The tables that new entries are written to, as they are known to whoever knows nothing of shards.
#[derive(Clone, Copy, Debug)]
struct Tables {
    meta: pg_sys::Oid,
    requests: pg_sys::Oid,
}

impl Tables {
    /// By a look at the catalogs that hears of all changes committed before.
    fn find() -> Self {
        // SAFETY: names are NUL-terminated; errors leave through pgrx's guard.
        let find = |name: &CStr| unsafe {
            let schema = pg_sys::get_namespace_oid(c"mantle".as_ptr(), false);
            pg_sys::get_relname_relid(name.as_ptr(), schema)
        };
        let tables = Self { meta: find(c"meta"), requests: find(c"requests") };
        if tables.meta == pg_sys::InvalidOid {
            pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, "relation \"mantle.meta\" does not exist");
        }
        tables
    }

    /// As a statement that writes does: LOCK TABLE, and what makes them other than distributed, wait for its transaction.
    fn lock(self) {
        for table in [self.meta, self.requests] {
            // SAFETY: an error leaves through pgrx's guard.
            unsafe { pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) };
        }
    }
}

/// The tables that rows of a partition are in: the extension's own, or shards of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Home {
    /// Entries and counts.
    pub meta: CString,
    /// Answers to request ids.
    pub requests: CString,
}

impl Home {
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
struct Shard {
    /// The smallest hash value in it.
    least: i32,
    /// The nodes that have it.
    group: i32,
    /// Citus' number of it.
    id: i64,
    /// `None`: it has several copies, or the table of request ids does not go where this goes.
    home: Option<Rc<Home>>,
}

/// The shards of the MetaTable in order; none where it is an ordinary table.
#[derive(Debug)]
struct Map {
    /// This node's.
    group: i32,
    shards: Vec<Shard>,
    tables: Tables,
    /// Where all is if there are none.
    whole: Rc<Home>,
}

impl Map {
    fn new(tables: Tables, group: i32, shards: Vec<Shard>) -> Self {
        Self { group, shards, tables, whole: Home::new(|_| String::new(), [0, 0]) }
    }

    fn shard_of(&self, pid: i64) -> Option<&Shard> {
        // SAFETY: hashint8 takes one value and calls nothing.
        let hash = unsafe {
            pgrx::direct_function_call_as_datum(pg_sys::hashint8, &[pid.into_datum()]).map_or(0, |d| d.value() as i32)
        };
        let after = self.shards.partition_point(|shard| shard.least <= hash);
        after.checked_sub(1).map(|at| &self.shards[at])
    }

    fn is_local(&self, pid: i64) -> bool {
        self.shard_of(pid).is_none_or(|shard| shard.group == self.group)
    }
}

/// Asks to be told when a table's definition changes. Called once, when the library is loaded.
pub fn listen() {
    unsafe extern "C-unwind" fn changed(_: pg_sys::Datum, relation: pg_sys::Oid) {
        let is_ours = |tables: Tables| [tables.meta, tables.requests, pg_sys::InvalidOid].contains(&relation);
        if TABLES.get().is_some_and(is_ours) {
            TABLES.set(None);
            DROPPED.set(DROPPED.get() + 1);
            // Borrowed only while the map is put in, which reads no catalog.
            MAP.with(|map| map.take());
            crate::create::forget();
        }
    }
    // SAFETY: the callback only drops what this module keeps.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::from(0_usize)) };
}

/// The map that is kept, or a new one. What is committed before its invalidation is heard is read, whatever the transaction's
/// snapshot; what is heard of while it is read makes it be read again. So none is kept that is out of date already.
fn map() -> Rc<Map> {
    if let Some(map) = MAP.with(|map| map.borrow().clone()) {
        return map;
    }
    let map = Rc::new(Spi::connect_mut(|_| {
        loop {
            let tables = Tables::find();
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

fn read(tables: Tables) -> Map {
    // SAFETY: the name ends with NUL; reads the catalog as it is now.
    if unsafe { pg_sys::get_extension_oid(c"citus".as_ptr(), true) } == pg_sys::InvalidOid {
        return Map::new(tables, 0, Vec::new());
    }
    let group = GROUP.with(|s| s.newest_rows(&[], |row| row.get::<i32>(1))).pop().flatten().unwrap_or_default();
    let shards = SHARDS.with(|s| {
        s.newest_rows(&[argument(tables.meta), argument(tables.requests)], |row| {
            let id = row.get(3).unwrap_or_default();
            let home = row.get(4).map(|requests| Home::new(|shard| format!("_{shard}"), [id, requests]));
            Shard { least: row.get(1).unwrap_or_default(), group: row.get(2).unwrap_or(NOWHERE), id, home }
        })
    });
    Map::new(tables, group, shards)
}

/// The tables in which a partition's rows may be written, `None` when that is left to Citus: they are on another node, mostly.
/// Until the transaction ends the shard stays where it is ([`citus::announce_change`]), and the tables what they are.
pub fn home_of(pid: i64) -> Option<Rc<Home>> {
    loop {
        let before = map();
        let Some(shard) = before.shard_of(pid) else { return Some(before.whole.clone()) };
        if shard.group != before.group {
            return None;
        }
        citus::use_two_phases();
        let home = shard.home.clone()?;
        before.tables.lock();
        if !citus::announce_change(shard.id) {
            return None;
        }
        // SAFETY: listens for other sessions' changes, as every statement does: who held the lock may have moved it.
        unsafe { pg_sys::AcceptInvalidationMessages() };
        if Rc::ptr_eq(&before, &map()) {
            return Some(home);
        }
    }
}

/// What is opened of the tables that a partition's rows are in, as [`home_of`] says. Whoever waited to open them may have
/// waited for them to be distributed: they are asked for again then.
pub fn at_home<T>(pid: i64, open: impl Fn(Rc<Home>) -> T) -> Option<T> {
    loop {
        let home = home_of(pid)?;
        let opened = open(home.clone());
        if home_of(pid).as_ref() == Some(&home) {
            return Some(opened);
        }
    }
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

/// Are the rows of these partitions on this node? NULL elements are.
#[pg_extern(volatile)]
fn is_local(pids: Array<i64>) -> bool {
    are_local(&pids)
}

/// The same, for Rust.
pub fn are_local(pids: &Array<i64>) -> bool {
    let map = map();
    map.shards.is_empty() || pids.iter().flatten().all(|pid| map.is_local(pid))
}

/// After the writes: are these partitions' shards on this node still? Else row and message may be in two nodes' WAL.
#[pg_extern(volatile)]
fn placement_fault(pids: Array<i64>) -> Fault {
    // SAFETY: listens for other sessions' changes, as every statement does.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    (!are_local(&pids)).then(|| sqlstate(ErrorCode::WrongNode))
}

/// Which map of shards this session goes by: another number whenever any shard may have moved.
#[pg_extern(volatile)]
pub fn placements() -> i64 {
    map();
    DROPPED.get()
}

/// After the writes of a change that was latched, read and written in parts: does this session go by the map still, by which
/// it sent the first of them? Else a part may have been latched on the node that its shard has left.
#[pg_extern(volatile)]
pub fn placements_fault(since: i64) -> Fault {
    // SAFETY: listens for other sessions' changes, as every statement does.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    (is_distributed() && DROPPED.get() != since).then(|| sqlstate(ErrorCode::WrongNode))
}

/// What this node adds to the numbers of its delta records.
#[pg_extern(stable, parallel_safe)]
pub fn delta_ts_base() -> i64 {
    i64::from(map().group) << GROUP_SHIFT
}

/// One partition on each node that has any, this node's included: what has to run on every node is sent there.
#[pg_extern(volatile)]
fn node_partitions() -> SetOfIterator<'static, i64> {
    let map = map();
    let mut groups: Vec<i32> = map.shards.iter().map(|shard| shard.group).collect();
    groups.sort_unstable();
    groups.dedup();
    // Hash values are spread evenly: a few tries a shard find every one.
    SetOfIterator::new(
        groups
            .into_iter()
            .filter_map(move |group| (2..).find(|pid| map.shard_of(*pid).is_some_and(|shard| shard.group == group))),
    )
}
