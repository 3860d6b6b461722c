//! Rebuilding the index from PostgreSQL, beside whatever it serves.
//!
//! Order (P36), each step for the next: raise the epoch (renames prepared under locks that are about to be forgotten can no
//! longer commit), begin, create the slot with an exported snapshot, copy under that snapshot, end. The stream then goes on
//! from the slot's consistent point: no gap, no duplicate.
//!
//! Several sources: no snapshot is of all of them. So all slots are created, then a position is taken in each below which
//! everything is visible, then everything is copied, by way of the node that knows them all. What a stream sends of before its
//! position is in the copy, and only its removals count (P1).
//!
//! Whoever founds a group where there has been one raises the epoch that gateways ask the old one under, which may live on,
//! cut off from PostgreSQL. So nothing is served, and nothing acknowledged, before their leases are over (P5).
//!
//! A snapshot shows commits that still wait for the standby, when the slot became consistent while they did, or when the
//! server restarted meanwhile. So the copy is swapped in only when the standbys have flushed what it may show (P5).

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use mantle_types::{Epoch, message::DirectoryRecord};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{self, sleep, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

use super::{connections::SourceConnection, standby_gate::StandbyGate};
use crate::{
    failpoints::{self, Failpoint},
    index::command::{Applied, Command, NamespaceState, SourceStart},
    node::{Leadership, Node},
    postgres::upstream::{IndexGroup, NewSlot, Session, Statements},
};

/// Chunks read ahead of the log.
const CHUNKS_AHEAD: usize = 4;
/// Chunks proposed at a time: one is applied while the next is written. Their order does not matter.
const PROPOSALS: usize = 3;
/// The epoch that the first group of all is founded under: nobody was asked before.
const FIRST_EPOCH: Epoch = Epoch(1);
/// The standbys are asked this often whether they have what a copy shows.
const STANDBY_POLL: Duration = Duration::from_millis(20);

/// Rebuilds the index. `is_diverged`: what it serves may be what PostgreSQL does not have.
pub async fn rebuild(
    node: &Arc<Node>,
    leadership: &Leadership,
    control: &Session,
    group: &IndexGroup,
    mut feeds: Vec<SourceConnection>,
    is_diverged: bool,
) -> Result<()> {
    require_bounded_slots(&feeds).await?;
    let started = Instant::now();
    let progress = &node.stream.rebuild;
    progress.begun.fetch_add(1, Ordering::Relaxed);
    let epoch = epoch_for_rebuild(node, &**control, group).await?;
    let is_founding = !node.state.read().index.is_serving();
    // Of what served under an earlier epoch; raised before now, maybe by a founder that died since.
    let leases_end = match is_founding && epoch > FIRST_EPOCH {
        true => Some(time::Instant::now() + control.epoch_lease().await?),
        false => None,
    };
    node.propose_as(leadership, &Command::RebuildBegin { epoch, is_diverged }).await?;

    let (mut sources, mut snapshot) = (Vec::new(), None);
    for feed in &mut feeds {
        // Its connection has to stay open until the copy's session has taken the snapshot over.
        let slot = make_slot(feed, &group.slot_name).await?;
        let (consistent_point, lineage) = (slot.consistent_point, feed.server.lineage);
        sources.push(SourceStart { source: feed.id, lineage, consistent_point, copied: consistent_point });
        snapshot = feed.is_only.then_some(slot.snapshot);
    }
    if snapshot.is_none() {
        for (feed, source) in feeds.iter().zip(&mut sources) {
            source.copied = feed.session.cut().await?;
        }
    }
    let (chunks, queue) = mpsc::channel(CHUNKS_AHEAD);
    // In a task of its own: it is busy with parsing while the log is with its disk.
    let (reading, copying) = (node.clone(), control.clone());
    let reader =
        tokio::spawn(
            async move { copying.copy_directories(snapshot.as_deref(), chunks, &reading.stream.rebuild).await },
        );
    let mut reader = AbortOnDropHandle::new(reader);
    let directories = async { (&mut reader).await.context("the copy panicked")? };
    let ((namespaces, directories), ()) = tokio::try_join!(directories, propose_chunks(node, leadership, queue))?;
    wait_for_standbys(&feeds, &sources).await?;
    if let Some(end) = leases_end {
        sleep_until(end).await;
    }
    // All of it is there; one that moves here, or has moved away, is served elsewhere.
    let standing = |is_served| if is_served { NamespaceState::Serving } else { NamespaceState::Ready };
    let namespaces = namespaces.into_iter().map(|of| (of.ns, standing(of.is_served), of.moves)).collect();
    node.propose_as(leadership, &Command::RebuildNamespaces { namespaces }).await?;
    node.propose_as(leadership, &Command::RebuildEnd { sources }).await?;
    progress.completed.fetch_add(1, Ordering::Relaxed);
    let elapsed_ms = started.elapsed().as_millis() as u64;
    progress.elapsed_us.store(started.elapsed().as_micros() as u64, Ordering::Relaxed);
    tracing::info!(directories, epoch = epoch.0, elapsed_ms, "index rebuilt from PostgreSQL");
    Ok(())
}

/// No slot is made where it would keep WAL without a bound while nobody reads it: the disk of PostgreSQL would fill, and the only
/// truth stop, for an index that can be rebuilt (P28).
async fn require_bounded_slots(feeds: &[SourceConnection]) -> Result<()> {
    for feed in feeds {
        ensure!(
            feed.session.slots_are_bounded().await?,
            "source {}: max_slot_wal_keep_size is -1 there, and a slot that nobody reads would fill the disk: set a size",
            feed.id.0
        );
    }
    Ok(())
}

/// Waits until every standby that may be promoted has what the copy shows of each source.
async fn wait_for_standbys(feeds: &[SourceConnection], sources: &[SourceStart]) -> Result<()> {
    for (feed, source) in feeds.iter().zip(sources) {
        // A copy without the slot's snapshot shows what was visible when it was read, which had been flushed here.
        let shown = if feed.is_only { source.consistent_point } else { feed.session.flushed().await? };
        while !failpoints::is_hit(Failpoint::CopyBeyondStandby)
            && StandbyGate::new(feed.session.standby_flush().await?).passes(shown) < shown
        {
            sleep(STANDBY_POLL).await;
        }
    }
    Ok(())
}

/// Puts the chunks into the log, in any order.
async fn propose_chunks(
    node: &Arc<Node>,
    leadership: &Leadership,
    mut queue: mpsc::Receiver<Vec<DirectoryRecord>>,
) -> Result<()> {
    let mut proposals = JoinSet::new();
    while let Some(records) = queue.recv().await {
        if proposals.len() == PROPOSALS {
            done(proposals.join_next().await)?;
        }
        let (node, leadership) = (node.clone(), leadership.clone());
        proposals.spawn(async move { node.propose_as(&leadership, &Command::RebuildChunk { records }).await });
    }
    while let Some(ended) = proposals.join_next().await {
        done(Some(ended))?;
    }
    Ok(())
}

fn done(ended: Option<Result<mantle_types::Result<Applied>, JoinError>>) -> Result<()> {
    ended.context("nothing was proposed")?.context("a proposal panicked")??;
    Ok(())
}

/// Makes a source's slot, in the place of the one that may be there.
async fn make_slot(feed: &mut SourceConnection, name: &str) -> Result<NewSlot> {
    if let Some(slot) = feed.session.slot(name).await? {
        if let Some(pid) = slot.active_pid {
            feed.session.terminate(pid).await?;
        }
        feed.session.drop_slot(name).await?;
    }
    feed.walsender.create_slot().await.with_context(|| format!("source {}", feed.id.0))
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
