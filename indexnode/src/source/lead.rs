//! What a replica does while it leads: rebuild when needed, read the change stream, look after rename locks.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use mantle_types::{Error, ErrorCode, RequestKey, Result as MantleResult};
use tokio::time::sleep;

use super::{
    locks,
    rebuild::rebuild,
    stream::{Consumer, StreamEnd},
    upstream::{Database, IndexGroup, Slot},
};
use crate::{
    membership::{self, view},
    node::{Leadership, Node, NodeEnd},
};

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Runs for the life of a node: leads whenever it is the leader. Ends only when the node has to be reset.
pub async fn run(node: Arc<Node>, database: Database) -> NodeEnd {
    loop {
        let leadership = node.wait_leadership().await;
        tracing::info!(term = leadership.term, "this replica leads its group");
        tokio::select! {
            end = lead(&node, &leadership, &database) => return end,
            () = node.wait_leadership_lost(&leadership) => {
                tracing::info!(term = leadership.term, "this replica no longer leads");
            }
        }
    }
}

async fn lead(node: &Arc<Node>, leadership: &Leadership, database: &Database) -> NodeEnd {
    let streaming = async {
        let mut retry = RETRY_MIN;
        let mut must_rebuild = None;
        loop {
            match session(node, leadership, database, &mut must_rebuild).await {
                Ok(Some(end)) => return end,
                Ok(None) => retry = RETRY_MIN,
                Err(e) => {
                    tracing::warn!(error = format!("{e:#}"), "the change stream is interrupted");
                    sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
        }
    };
    tokio::select! {
        end = streaming => end,
        () = locks::expire(node, leadership, database) => unreachable!("locks are looked after for the whole term"),
    }
}

/// One session with PostgreSQL: until an error, a reason to rebuild (then `None`), or to leave the cluster.
async fn session(
    node: &Arc<Node>,
    leadership: &Leadership,
    database: &Database,
    must_rebuild: &mut Option<String>,
) -> Result<Option<NodeEnd>> {
    // A new leader applies through its own term's first entry before it touches the slot (PROTOCOLS 4).
    let read_index = node.reads.read_index().await.map_err(|e| anyhow::anyhow!("{e}"))?;
    node.state.wait_applied(read_index).await;

    let control = database.connect().await?;
    let system = control.system().await?;
    let mut group = control.index_group().await?;
    if let Some(end) = check_abandoned(node, &group).await? {
        return Ok(Some(end));
    }
    let slot = control.slot(&group.slot_name).await?;
    let reason = must_rebuild.take().or_else(|| reason_to_rebuild(node, &group, slot.as_ref(), system));
    let mut active_pid = slot.and_then(|slot| slot.active_pid);
    if let Some(reason) = reason {
        if node.state.read().index.system().is_none() {
            tracing::info!(reason, "building the index");
        } else {
            tracing::warn!(reason, "rebuilding the index");
        }
        *must_rebuild = Some(reason);
        rebuild(node, leadership, database, &*control, &group, system).await.context("rebuild")?;
        *must_rebuild = None;
        group = control.index_group().await?;
        active_pid = None;
    }
    if let Some(pid) = active_pid {
        tracing::info!(pid, "taking the slot over");
        control.terminate(pid).await?;
    }
    let start = node.state.positions().borrow().source_end;
    let client = database.replication(&group.slot_name, start).await?;
    let consumer = Consumer { node, leadership, control: &*control, group: &group };
    let StreamEnd::Rebuild(reason) = consumer.run(client).await?;
    *must_rebuild = Some(reason);
    Ok(None)
}

/// PostgreSQL names another cluster: if that one lives, this one was abandoned and its state is worth nothing; if not
/// (PostgreSQL was restored), this cluster takes over by raising the epoch.
async fn check_abandoned(node: &Node, group: &IndexGroup) -> Result<Option<NodeEnd>> {
    let Some(recorded) = group.cluster_id.as_ref().filter(|id| **id != node.cluster_id) else { return Ok(None) };
    let views = view::poll(&node.config, &node.peers, None).await;
    if membership::leader_of(&views, recorded).is_some() {
        tracing::warn!(%recorded, "PostgreSQL names another cluster, and it has a leader: leaving this one");
        return Ok(Some(NodeEnd::Reset));
    }
    Ok(None)
}

fn reason_to_rebuild(node: &Node, group: &IndexGroup, slot: Option<&Slot>, system: (u64, u32)) -> Option<String> {
    let state = node.state.read();
    let index = &state.index;
    if group.cluster_id.as_deref() != Some(&node.cluster_id) {
        return Some("PostgreSQL does not know this cluster".to_owned());
    }
    if index.is_rebuilding() {
        return Some("a rebuild was not finished".to_owned());
    }
    match index.system() {
        None => return Some("the index is empty".to_owned()),
        Some(known) if known != system => return Some(format!("PostgreSQL is {system:?}, the index is of {known:?}")),
        Some(_) => {}
    }
    if group.epoch != index.epoch() {
        return Some(format!("the epoch is {}, the index has {}", group.epoch, index.epoch()));
    }
    drop(state);
    let applied = node.state.positions().borrow().source_end;
    match slot {
        None => Some("the slot is gone".to_owned()),
        Some(slot) if slot.is_lost => Some("the slot's WAL is gone".to_owned()),
        Some(slot) if slot.confirmed > applied => {
            Some(format!("the slot is confirmed up to {}, the index has {applied}", slot.confirmed))
        }
        Some(_) => None,
    }
}

/// Writes the abort record of an attempt in a session of its own, because it may wait for a transaction that is about to
/// commit. `false`: the attempt is committed.
pub async fn abort_rename(database: &Database, request: &RequestKey, attempt: u64) -> MantleResult<bool> {
    let aborted = async {
        let session = database.connect().await?;
        session.abort_rename(request, attempt).await
    };
    aborted.await.map_err(|e: anyhow::Error| {
        tracing::warn!(%request, attempt, error = format!("{e:#}"), "cannot write an abort record");
        Error::new(ErrorCode::DatabaseUnavailable, "the abort record cannot be written now")
    })
}
