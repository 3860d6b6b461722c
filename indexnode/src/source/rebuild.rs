//! Rebuilding the index from PostgreSQL, beside whatever it serves.
//!
//! Order, each step for the next: raise the epoch (renames prepared under locks that are about to be forgotten can no
//! longer commit), begin, create the slot with an exported snapshot, copy under that snapshot, end. The stream then goes on
//! from the slot's consistent point: no gap, no duplicate.

use std::time::Instant;

use anyhow::{Result, bail};
use mantle_types::{Epoch, Lsn};
use tokio::sync::mpsc;

use super::upstream::{Database, IndexGroup, Statements};
use crate::{
    index::command::Command,
    node::{Leadership, Node},
    raft::machine::SOURCE,
};

/// Chunks read ahead of the log.
const CHUNKS_AHEAD: usize = 4;

/// Rebuilds the index; returns the slot's consistent point.
pub async fn rebuild(
    node: &Node,
    leadership: &Leadership,
    database: &Database,
    control: &dyn Statements,
    group: &IndexGroup,
    system: (u64, u32),
) -> Result<Lsn> {
    let started = Instant::now();
    let epoch = epoch_for_rebuild(node, control, group).await?;
    let begin = Command::RebuildBegin { epoch, system_identifier: system.0, timeline: system.1 };
    node.propose_as(leadership, &begin).await?;

    if let Some(slot) = control.slot(&group.slot_name).await? {
        if let Some(pid) = slot.active_pid {
            control.terminate(pid).await?;
        }
        control.drop_slot(&group.slot_name).await?;
    }
    // This connection has to stay open until the copy's session has taken the snapshot over.
    let mut replication = database.replication(&group.slot_name, Lsn::INVALID).await?;
    let (consistent_point, snapshot) = replication.create_slot(&group.slot_name).await?;

    let session = database.connect().await?;
    let (chunks, mut queue) = mpsc::channel(CHUNKS_AHEAD);
    let reader = session.copy_directories(&snapshot, chunks);
    let proposer = async {
        let mut records_copied = 0;
        while let Some(records) = queue.recv().await {
            records_copied += records.len();
            node.propose_as(leadership, &Command::RebuildChunk { records }).await?;
        }
        anyhow::Ok(records_copied)
    };
    let ((), directories) = tokio::try_join!(reader, proposer)?;
    let end = Command::RebuildEnd { source: SOURCE, consistent_point };
    node.propose_as(leadership, &end).await?;
    let elapsed_ms = started.elapsed().as_millis() as u64;
    tracing::info!(directories, epoch = epoch.0, %consistent_point, elapsed_ms, "index rebuilt from PostgreSQL");
    Ok(consistent_point)
}

/// The epoch for a rebuild: one under which no rename was prepared yet. That is PostgreSQL's when it is ahead of the index
/// (a founder, or a leader that died after raising it, did) or when the index has been refusing prepares under it since an
/// unfinished rebuild began; else it is raised.
async fn epoch_for_rebuild(node: &Node, control: &dyn Statements, group: &IndexGroup) -> Result<Epoch> {
    let (current, is_rebuilding) = {
        let state = node.state.read();
        (state.index.epoch(), state.index.is_rebuilding())
    };
    let is_ours = group.cluster_id.as_deref() == Some(&node.cluster_id);
    if is_ours && (group.epoch > current || (group.epoch == current && is_rebuilding)) {
        return Ok(group.epoch);
    }
    // A PostgreSQL that was restored to an earlier state may be behind: it is raised past the index's own epoch.
    let mut expected = group.epoch;
    loop {
        match control.raise_epoch(expected, &node.cluster_id).await? {
            Some(epoch) if epoch > current => return Ok(epoch),
            Some(epoch) => expected = epoch,
            None => bail!("the epoch was raised by somebody else meanwhile"),
        }
    }
}
