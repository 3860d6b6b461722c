//! Rebuilds the index from PostgreSQL, beside the index that serves: epoch, slots, positions, copy, in this order
//! (P36). The epoch comes first, because the rebuild loses the locks: renames that were prepared under them can then no
//! longer commit.
//!
//! When a group is founded again, its old Raft cluster may still run, cut off from PostgreSQL, and gateways may still
//! ask it under the old epoch. So nothing is served or acknowledged before their leases have ended (P5).
//!
//! A snapshot may show commits that still wait for the standby: those that were in progress when the slot became
//! consistent, or when the server restarted. So the copy replaces the old index only when the standbys have flushed
//! everything that it may show (P5).

use std::{
    pin::pin,
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

/// Chunks buffered between the copy and the log.
const CHUNKS_AHEAD: usize = 4;
/// Proposals in flight: one chunk is applied while the next is written. Their order does not matter.
const PROPOSALS: usize = 3;
/// The first epoch of a group: no gateway has a lease under an earlier one.
const FIRST_EPOCH: Epoch = Epoch(1);
const STANDBY_POLL: Duration = Duration::from_millis(20);
/// How long the creation of a slot waits for one transaction at first, and at most.
const SLOT_LIMIT_MIN: Duration = Duration::from_secs(15);
const SLOT_LIMIT_MAX: Duration = Duration::from_secs(480);
/// How often the transaction that delays it is looked up.
const HELD_UP_POLL: Duration = Duration::from_secs(4);

/// `is_diverged`: the served index may have changes that PostgreSQL lost.
pub async fn rebuild(
    node: &Arc<Node>,
    leadership: &Leadership,
    control: &Session,
    group: &IndexGroup,
    mut connections: Vec<SourceConnection>,
    is_diverged: bool,
) -> Result<()> {
    require_bounded_slots(&connections).await?;
    let started = Instant::now();
    let progress = &node.stream.rebuild;
    progress.begun.fetch_add(1, Ordering::Relaxed);
    let epoch = epoch_for_rebuild(node, &**control, group).await?;
    let is_founding = !node.state.read().index.is_serving();
    // The leases under an earlier epoch. The epoch was raised before now, perhaps by a founder that has died since.
    let lease = if is_founding && epoch > FIRST_EPOCH { control.epoch_lease().await? } else { Duration::ZERO };
    let leases_end = time::Instant::now() + lease;
    node.propose_as(leadership, &Command::RebuildBegin { epoch, is_diverged }).await?;
    // In doubt the rebuild is of a diverged index: nothing is served until its end.
    node.doubt.note_recovered(leadership.term);

    let (mut sources, mut snapshot) = (Vec::new(), None);
    for connection in &mut connections {
        // The connection has to stay open until the copy's session has imported the snapshot.
        let slot = recreate_slot(node, connection, &group.slot_name).await?;
        let (consistent_point, lineage) = (slot.consistent_point, connection.server.lineage);
        sources.push(SourceStart { source: connection.id, lineage, consistent_point, copied: consistent_point });
        snapshot = connection.is_only.then_some(slot.snapshot);
    }
    if snapshot.is_none() {
        for (connection, source) in connections.iter().zip(&mut sources) {
            source.copied = connection.session.cut().await?;
        }
    }
    let (chunks, queue) = mpsc::channel(CHUNKS_AHEAD);
    // A task of its own: it parses while the log writes to the disk.
    let (reading, session) = (node.clone(), control.clone());
    let copying = async move { session.copy_directories(snapshot.as_deref(), chunks, &reading.stream.rebuild).await };
    let mut reader = AbortOnDropHandle::new(tokio::spawn(copying));
    let directories = async { (&mut reader).await.context("the copy panicked")? };
    let ((namespaces, directories), ()) = tokio::try_join!(directories, propose_chunks(node, leadership, queue))?;
    wait_for_standbys(&connections, &sources).await?;
    let left = leases_end.saturating_duration_since(time::Instant::now());
    if !left.is_zero() {
        tracing::info!(
            seconds = left.as_secs(),
            "the index is copied; it serves when the leases under the old epoch have ended"
        );
    }
    sleep_until(leases_end).await;
    // All namespaces are complete; another group serves one that moves here or has moved away.
    let state = |is_served| if is_served { NamespaceState::Serving } else { NamespaceState::Ready };
    let namespaces = namespaces.into_iter().map(|of| (of.ns, state(of.is_served), of.moves)).collect();
    node.propose_as(leadership, &Command::RebuildNamespaces { namespaces }).await?;
    node.propose_as(leadership, &Command::RebuildEnd { sources }).await?;
    progress.completed.fetch_add(1, Ordering::Relaxed);
    let elapsed_ms = started.elapsed().as_millis() as u64;
    progress.elapsed_us.store(started.elapsed().as_micros() as u64, Ordering::Relaxed);
    tracing::info!(directories, epoch = epoch.0, elapsed_ms, "index rebuilt from PostgreSQL");
    Ok(())
}

/// Refuses to create a slot where an unread slot keeps WAL without a bound: it would fill PostgreSQL's disk, and stop the only
/// source of truth for an index that can be rebuilt (P28).
async fn require_bounded_slots(connections: &[SourceConnection]) -> Result<()> {
    for connection in connections {
        ensure!(
            connection.session.slots_are_bounded().await?,
            "source {}: max_slot_wal_keep_size is -1 there, and a slot that nobody reads would fill the disk: set a size",
            connection.id.0
        );
    }
    Ok(())
}

/// Waits until every standby that may be promoted has flushed what the copy shows of each source.
async fn wait_for_standbys(connections: &[SourceConnection], sources: &[SourceStart]) -> Result<()> {
    for (connection, source) in connections.iter().zip(sources) {
        // A copy without the slot's snapshot shows what was visible when it was read, which this server had flushed.
        let shown = if connection.is_only { source.consistent_point } else { connection.session.flushed().await? };
        while !failpoints::is_hit(Failpoint::CopyBeyondStandby)
            && StandbyGate::new(connection.session.standby_flush().await?).passes(shown) < shown
        {
            sleep(STANDBY_POLL).await;
        }
    }
    Ok(())
}

async fn propose_chunks(
    node: &Arc<Node>,
    leadership: &Leadership,
    mut queue: mpsc::Receiver<Vec<DirectoryRecord>>,
) -> Result<()> {
    let mut proposals = JoinSet::new();
    while let Some(records) = queue.recv().await {
        if proposals.len() == PROPOSALS {
            check_proposal(proposals.join_next().await)?;
        }
        let (node, leadership) = (node.clone(), leadership.clone());
        proposals.spawn(async move { node.propose_as(&leadership, &Command::RebuildChunk { records }).await });
    }
    while let Some(ended) = proposals.join_next().await {
        check_proposal(Some(ended))?;
    }
    Ok(())
}

fn check_proposal(ended: Option<Result<mantle_types::Result<Applied>, JoinError>>) -> Result<()> {
    ended.context("nothing was proposed")?.context("a proposal panicked")??;
    Ok(())
}

/// Creates the slot of a source; an existing one is dropped first.
async fn recreate_slot(node: &Node, connection: &mut SourceConnection, name: &str) -> Result<NewSlot> {
    if let Some(slot) = connection.session.slot(name).await? {
        if let Some(pid) = slot.active_pid {
            connection.session.terminate(pid).await?;
        }
        connection.session.drop_slot(name).await?;
    }
    create_slot(node, connection).await.with_context(|| format!("source {}", connection.id.0))
}

/// Creates a slot. PostgreSQL first waits for every open transaction of any database, and one may be forgotten. So the
/// wait is bounded. The bound grows with every attempt, since a long transaction need not be a forgotten one. Meanwhile
/// log and status name the transaction that delays it.
async fn create_slot(node: &Node, connection: &mut SourceConnection) -> Result<NewSlot> {
    let SourceConnection { id, walsender, session, .. } = connection;
    let attempts = &node.stream.rebuild.slot_attempts;
    let limit = slot_limit(attempts.fetch_add(1, Ordering::Relaxed));
    let mut creating = pin!(walsender.create_slot(limit));
    let mut told: Option<String> = None;
    let begun = Instant::now();
    loop {
        tokio::select! {
            created = &mut creating => {
                if created.is_ok() {
                    attempts.store(0, Ordering::Relaxed);
                }
                let seconds = begun.elapsed().as_secs();
                return match told {
                    Some(who) => created.with_context(|| format!("no slot after {seconds} s, held up by {who}")),
                    None => created,
                };
            }
            () = sleep(HELD_UP_POLL) => {
                let who = match session.held_up_by(begun.elapsed()).await {
                    Ok(who) if who.is_empty() => continue,
                    Ok(who) => who.join("; "),
                    Err(e) => format!("{e:#}"),
                };
                let why = format!("source {}: the slot cannot be made before this ends: {who}", id.0);
                // The ages in it grow.
                if told.is_none() {
                    tracing::warn!(source = id.0, who, "the slot cannot be made before open transactions end");
                }
                told = Some(who);
                *node.stream.interruption.lock() = Some(why);
            }
        }
    }
}

/// How long attempt number `attempt`, from 0, waits for one transaction.
fn slot_limit(attempt: u32) -> Duration {
    SLOT_LIMIT_MIN.saturating_mul(1 << attempt.min(16)).min(SLOT_LIMIT_MAX)
}

/// The epoch of the rebuild: one under which no rename was prepared yet. PostgreSQL's epoch is such a one if it is ahead of the
/// index (a founder raised it, or a leader that died afterwards), or if a rebuild under it was begun and not finished: since
/// then the index has refused prepares. Else this raises it.
pub(super) async fn epoch_for_rebuild(node: &Node, control: &dyn Statements, group: &IndexGroup) -> Result<Epoch> {
    let (current, is_rebuilding) = {
        let state = node.state.read();
        (state.index.epoch(), state.index.is_rebuilding())
    };
    let is_ours = group.cluster_id.as_deref() == Some(&node.cluster_id);
    if is_ours && (group.epoch > current || (group.epoch == current && is_rebuilding)) {
        return Ok(group.epoch);
    }
    // A PostgreSQL that was restored to an earlier state may be behind: raise past the index's own epoch.
    let mut expected = group.epoch;
    loop {
        match control.raise_epoch(expected, &node.cluster_id).await? {
            Some(epoch) if epoch > current => return Ok(epoch),
            Some(epoch) => expected = epoch,
            None => bail!("the epoch was raised by somebody else meanwhile"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_at_a_slot_waits_longer() {
        assert_eq!(slot_limit(0), SLOT_LIMIT_MIN);
        assert_eq!(slot_limit(1), 2 * SLOT_LIMIT_MIN);
        assert!((1..100).all(|attempt| slot_limit(attempt) >= slot_limit(attempt - 1)));
        assert_eq!(slot_limit(u32::MAX), SLOT_LIMIT_MAX);
    }
}
