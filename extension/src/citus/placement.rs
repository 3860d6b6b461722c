//! Which node has a partition's rows, and the tables to write them to.
//!
//! Rows of a partition on this node are read and written in the shard itself ([`local_tables_of`]), under the lock that
//! Citus takes for a change. Citus' own path costs several times what the statement does.
//!
//! Invariant (P14): an outdated map of shards costs time but never correctness. After its writes, which keep the shard
//! in place until the commit, a mutation calls [`placement_fault`], which processes invalidations first. A mutation
//! made of parts on several nodes also calls [`placements_fault`]: each part knows that its shard is where it wrote,
//! but not that it was latched there.

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

/// The number of a delta record has the group's number above this many bits, and the node's own counter below. So a
/// directory whose shard moves does not reuse a number.
const GROUP_SHIFT: u32 = 48;

/// The tables to write a partition's rows to. `None` if only Citus can write them, mostly because another node has
/// them. Until the transaction ends, the shard cannot move ([`announce_change`]) and the tables stay distributed.
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
        // A session that held the lock may have moved the shard.
        accept_invalidations();
        if Rc::ptr_eq(&before, &map()) {
            return Some(local);
        }
    }
}

/// Opens the tables that [`local_tables_of`] names. It checks the names again afterwards, because the wait for a
/// table's lock may have been a wait for its distribution.
pub fn open_local<T>(pid: i64, open: impl Fn(Rc<TableNames>) -> T) -> Option<T> {
    loop {
        let local = local_tables_of(pid)?;
        let opened = open(local.clone());
        if local_tables_of(pid).as_ref() == Some(&local) {
            return Some(opened);
        }
    }
}

/// Whether this node has the rows of all these partitions. NULL elements count as local.
#[pg_extern(volatile)]
fn is_local(pids: Array<i64>) -> bool {
    are_local(&pids)
}

/// See [`is_local`].
pub fn are_local(pids: &Array<i64>) -> bool {
    let map = map();
    map.shards.is_empty() || pids.iter().flatten().all(|pid| map.is_local(pid))
}

/// MT043 if a partition is not on this node; called after writing to it. Otherwise row and message could be in the WAL
/// of two nodes.
#[pg_extern(volatile)]
fn placement_fault(pids: Array<i64>) -> Fault {
    accept_invalidations();
    (!are_local(&pids)).then(|| sqlstate(ErrorCode::WrongNode))
}

/// The generation of this session's shard map, which changes whenever any shard may have moved; `placements_fault`
/// compares it.
#[pg_extern(volatile)]
pub fn placements() -> i64 {
    map();
    map_generation()
}

/// MT043 if shards may have moved since [`placements`] returned this; called after all writes of a change made of
/// parts. Otherwise a part may have been latched on a node that its shard has left.
#[pg_extern(volatile)]
pub fn placements_fault(since: i64) -> Fault {
    accept_invalidations();
    (is_distributed() && map_generation() != since).then(|| sqlstate(ErrorCode::WrongNode))
}

/// The number that this node adds to its counter of delta records.
#[pg_extern(stable, parallel_safe)]
pub fn delta_ts_base() -> i64 {
    i64::from(map().group) << GROUP_SHIFT
}

/// One partition on each node that has any, including this node. Calls that must run on every node are sent to these.
#[pg_extern(volatile)]
fn node_partitions() -> SetOfIterator<'static, i64> {
    let map = map();
    let mut groups: Vec<i32> = map.shards.iter().map(|shard| shard.group).collect();
    groups.sort_unstable();
    groups.dedup();
    // Hash values are spread evenly, so a few tries find each shard.
    SetOfIterator::new(
        groups
            .into_iter()
            .filter_map(move |group| (2..).find(|pid| map.shard_of(*pid).is_some_and(|shard| shard.group == group))),
    )
}
