//! Where a partition's rows are when Citus distributes the MetaTable: on this node, or another.
//!
//! The map of shards is read from Citus' catalogs once a session, and again when PostgreSQL says that the MetaTable's
//! definition changed, as Citus makes it say when a shard moves. Invariant: a map that is out of date is slower, never
//! wrong: after its writes, which keep the shard from moving until the commit, a mutation asks [`placement_fault`], which
//! listens for such news first (P14). One made of parts on several nodes asks [`placements_fault`] too: each part
//! knows only that its shard is where it wrote, not that it was latched there.
//!
//! Rows of a partition on this node are read and written in the shard itself ([`local_tables_of`]), under the lock that Citus takes
//! for a change: its own way to a statement costs several times what the statement does.

use std::rc::Rc;

use mantle_types::ErrorCode;
use pgrx::prelude::*;

use super::{
    shards::{TableNames, is_distributed, map, map_generation},
    transaction::{announce_change, use_two_phases},
};
use crate::{
    fault::{Fault, sqlstate},
    postgres::catalog::accept_invalidations,
};

/// Delta records are told apart by a number that each node counts for itself, below this many bits of its group's number:
/// so a directory whose shard moves never meets the same one again.
const GROUP_SHIFT: u32 = 48;

/// The tables in which a partition's rows may be written, `None` when that is left to Citus: they are on another node, mostly.
/// Until the transaction ends the shard stays where it is ([`announce_change`]), and the tables what they are.
pub fn local_tables_of(pid: i64) -> Option<Rc<TableNames>> {
    loop {
        let before = map();
        let Some(shard) = before.shard_of(pid) else { return Some(before.whole.clone()) };
        if shard.group != before.group {
            return None;
        }
        use_two_phases();
        let local = shard.local.clone()?;
        before.tables.lock();
        if !announce_change(shard.id) {
            return None;
        }
        // The session that held the lock may have moved the shard.
        accept_invalidations();
        if Rc::ptr_eq(&before, &map()) {
            return Some(local);
        }
    }
}

/// What is opened of the tables that a partition's rows are in, as [`local_tables_of`] says. Whoever waited to open them may have
/// waited for them to be distributed: they are asked for again then.
pub fn open_local<T>(pid: i64, open: impl Fn(Rc<TableNames>) -> T) -> Option<T> {
    loop {
        let local = local_tables_of(pid)?;
        let opened = open(local.clone());
        if local_tables_of(pid).as_ref() == Some(&local) {
            return Some(opened);
        }
    }
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
    accept_invalidations();
    (!are_local(&pids)).then(|| sqlstate(ErrorCode::WrongNode))
}

/// Which map of shards this session goes by: another number whenever any shard may have moved.
#[pg_extern(volatile)]
pub fn placements() -> i64 {
    map();
    map_generation()
}

/// After the writes of a change that was latched, read and written in parts: does this session go by the map still, by which
/// it sent the first of them? Else a part may have been latched on the node that its shard has left.
#[pg_extern(volatile)]
pub fn placements_fault(since: i64) -> Fault {
    accept_invalidations();
    (is_distributed() && map_generation() != since).then(|| sqlstate(ErrorCode::WrongNode))
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
