//! The change stream of the group: proposes the transactions that the readers of all sources have released, one Raft entry at
//! a time. Transactions of all sources that arrive while an entry is in flight share the next one.
//!
//! Invariant: an entry has a maximum size in bytes (P28). Only a transaction that is larger is split over several
//! entries; the position passes it with the last of them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use mantle_types::Lsn;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::Instrument;

use super::{
    InFlight,
    assignments::ForeignNamespaces,
    connections::{self, SourceConnections},
    continuity::{RebuildReason, end_of},
    flushed,
    moves::Moves,
    poll_or_pend,
    reader::{Inbox, Reader},
    retrace::Retrace,
    verify::Verifier,
};
use crate::{
    config::RaftSettings,
    index::command::{Command, SourceId},
    node::{Leadership, Node},
    postgres::upstream::{Database, IndexGroup, Session, Statements},
    settled::{self, Covered, SampledSource},
};

/// While nothing changes, the position is proposed this often, so that PostgreSQL can free WAL.
const IDLE_POSITION: Duration = Duration::from_secs(10);
const CHECK: Duration = Duration::from_secs(2);

/// Reads all sources, until the session with PostgreSQL has to begin again.
pub struct Stream<'a> {
    node: &'a Arc<Node>,
    leadership: &'a Leadership,
    database: &'a Database,
    control: &'a Session,
    group: &'a IndexGroup,
    away: BTreeSet<SourceId>,
    inboxes: Vec<Arc<Inbox>>,
    sessions: Vec<(SourceId, Session)>,
    sampled: Vec<SampledSource>,
    arrived: Arc<Notify>,
    readers: JoinSet<Result<RebuildReason>>,
}

/// Why the session has to begin again: a reason to rebuild; or `None` when the group's row or its sources have changed, or an
/// unreachable source is back.
type Ended = Option<RebuildReason>;

impl<'a> Stream<'a> {
    /// Begins to read every connected source at the position of the index.
    pub async fn start(
        node: &'a Arc<Node>,
        leadership: &'a Leadership,
        control: &'a Session,
        (database, group): (&'a Database, &'a IndexGroup),
        connections: SourceConnections,
    ) -> Result<Self> {
        let (arrived, mut readers) = (Arc::new(Notify::new()), JoinSet::new());
        let (mut inboxes, mut sessions, mut sampled) = (Vec::new(), Vec::new(), Vec::new());
        for connection in connections.connected {
            let source = connection.id.0;
            if !connection.session.slots_are_bounded().await? {
                tracing::warn!(source, "max_slot_wal_keep_size is -1: a slot that nobody reads fills the disk");
            }
            if let Some(pid) = connection.slot.and_then(|slot| slot.active_pid) {
                tracing::info!(source, pid, "taking the slot over");
                connection.session.terminate(pid).await?;
            }
            sampled.push(SampledSource::new(connection.id, connection.database, connection.server.incarnation()));
            let start = connection.known.as_ref().map_or(Lsn::INVALID, end_of);
            // Again: until it was ended, another reader moved the slot.
            let slot = connection.session.slot(&group.slot_name).await?.context("the slot is gone")?;
            let retrace =
                Retrace::new(connection.last_seen, (start, connection.reached), connection.from, slot.confirmed);
            let client = connection.walsender.start().await?;
            let inbox = Arc::new(Inbox::new(connection.id, start, node.config.raft.entry_bytes_max, retrace));
            sessions.push((connection.id, connection.session.clone()));
            let reader = Reader {
                node: node.clone(),
                inbox: inbox.clone(),
                arrived: arrived.clone(),
                session: connection.session,
                slot_name: group.slot_name.clone(),
            };
            inboxes.push(inbox);
            readers.spawn(reader.run(client));
        }
        let away = connections.away;
        tracing::info!(slot = %group.slot_name, sources = inboxes.len(), away = away.len(), "reading the change stream");
        Ok(Self { node, leadership, database, control, group, away, inboxes, sessions, sampled, arrived, readers })
    }

    /// Proposes what the readers release, until an error, or until the session has to begin again.
    pub async fn run(mut self) -> Result<Ended> {
        let progress = &self.node.stream;
        let _streaming = progress.streaming();
        let foreign = tokio::sync::Mutex::new(ForeignNamespaces::default());
        let mut in_flight: InFlight<'_, Vec<(SourceId, Lsn)>> = None;
        let mut last_proposal = Instant::now();
        let mut tasks = self.spawn_background_tasks();
        let covered = watch::Sender::new(Covered::new());
        let _settling = self.serve_settled(&covered);
        loop {
            if in_flight.is_none() {
                // Everything that was taken is applied.
                self.publish_covered(&covered);
                if let Some(entry) = self.next_entry(last_proposal) {
                    last_proposal = Instant::now();
                    progress.proposals.fetch_add(1, Ordering::Relaxed);
                    in_flight = Some(Box::pin(propose(self.node, self.leadership, &**self.control, &foreign, entry)));
                }
            }
            tokio::select! {
                biased;
                positions = poll_or_pend(&mut in_flight) => {
                    in_flight = None;
                    self.confirm(&positions?);
                }
                () = self.arrived.notified() => {}
                () = progress.wake.notified() => self.inboxes.iter().for_each(|inbox| inbox.nudge.notify_one()),
                Some(ended) = self.readers.join_next() => {
                    return ended.context("a reader of the change stream panicked")?.map(Some);
                }
                Some(ended) = tasks.join_next() => match ended.context("a background task of the change stream panicked")? {
                    Ok(ended) => return Ok(ended),
                    // A node that the task needs may be unreachable. The readers find out whether their sources still are there.
                    Err(e) => {
                        tracing::warn!(error = format!("{e:#}"), "the change stream is read without its background tasks");
                        tasks = self.spawn_wait_for_return();
                    }
                },
            }
        }
    }

    /// Lets misses be final (P58). Not while a source is unreachable: what it has committed is not known.
    fn serve_settled(&mut self, covered: &watch::Sender<Covered>) -> Option<settled::Serving<'a>> {
        let sources = std::mem::take(&mut self.sampled);
        let session = settled::Session { sources, state: self.node.state.clone(), covered: covered.subscribe() };
        self.away.is_empty().then(|| self.node.settled.begin(session))
    }

    fn publish_covered(&self, covered: &watch::Sender<Covered>) {
        let now = || self.inboxes.iter().map(|inbox| (inbox.source, inbox.backlog.lock().covered()));
        covered.send_if_modified(|known| {
            let has_moved = !now().eq(known.iter().map(|(source, end)| (*source, *end)));
            if has_moved {
                *known = now().collect();
            }
            has_moved
        });
    }

    /// Starts the tasks that need every source and the coordinator.
    fn spawn_background_tasks(&self) -> JoinSet<Result<Ended>> {
        if !self.away.is_empty() {
            return self.spawn_wait_for_return();
        }
        let mut tasks = JoinSet::new();
        let (node, leadership, control) = (self.node.clone(), self.leadership.clone(), self.control.clone());
        let verifier = Verifier { node: node.clone(), control: control.clone(), sessions: self.sessions.clone() };
        tasks.spawn(async move { verifier.run().await.map(Some) });
        let (group, sessions) = (self.group.clone(), self.sessions.clone());
        let moves = Moves {
            node: node.clone(),
            leadership: leadership.clone(),
            database: self.database.clone(),
            control: control.clone(),
            sessions: sessions.clone(),
            since: HashMap::new(),
        };
        tasks.spawn(async move { moves.run().await.map(Some) }.in_current_span());
        tasks.spawn(async move { watch_group(&node, &leadership, &*control, &group, &sessions).await.map(|()| None) });
        tasks
    }

    /// Instead of them, while a source is unreachable.
    fn spawn_wait_for_return(&self) -> JoinSet<Result<Ended>> {
        let mut tasks = JoinSet::new();
        let (node, database, group) = (self.node.clone(), self.database.clone(), self.group.clone());
        let away = self.away.clone();
        tasks.spawn(async move {
            connections::returned(&node, &database, &group.slot_name, &away).await;
            Ok(None)
        });
        tasks
    }

    fn next_entry(&self, last_proposal: Instant) -> Option<Command> {
        let is_idle = last_proposal.elapsed() >= IDLE_POSITION;
        // True if an entry is due that only moves the position.
        let wants_position = |inbox: &Inbox, released| {
            let applied = self.node.state.source_end(inbox.source);
            // After a rebuild, lookups wait for the position that was served before.
            let is_due = || is_idle || !self.node.state.is_serving();
            released > applied && (is_due() || self.node.stream.is_wanted(inbox.source, applied, released))
        };
        next_entry(&self.inboxes, &self.node.config.raft, wants_position)
    }

    fn confirm(&self, positions: &[(SourceId, Lsn)]) {
        for (source, position) in positions {
            for inbox in self.inboxes.iter().filter(|inbox| inbox.source == *source) {
                inbox.confirmed.send_replace(*position);
            }
        }
    }
}

/// The next entry, if one is due. Without batching it has one transaction.
fn next_entry(
    inboxes: &[Arc<Inbox>],
    settings: &RaftSettings,
    wants_position: impl Fn(&Inbox, Lsn) -> bool,
) -> Option<Command> {
    let mut bytes_left = if settings.log_batching { settings.entry_bytes_max } else { 1 };
    let mut batches = Vec::new();
    for inbox in inboxes {
        let mut backlog = inbox.backlog.lock();
        if batches.is_empty() {
            if let Some(piece) = backlog.take_piece() {
                return Some(Command::TransactionPiece(piece));
            }
        } else if !backlog.is_next_within(bytes_left) {
            continue;
        }
        if bytes_left > 0 && (backlog.has_transactions() || wants_position(inbox, backlog.released())) {
            let (batch, bytes) = backlog.take(bytes_left);
            bytes_left = bytes_left.saturating_sub(bytes);
            batches.push(batch);
        }
    }
    (!batches.is_empty()).then_some(Command::Stream(batches))
}

/// Proposes an entry; returns the positions to confirm. Only one call runs at a time, so `foreign` is free.
async fn propose(
    node: &Node,
    leadership: &Leadership,
    control: &dyn Statements,
    foreign: &tokio::sync::Mutex<ForeignNamespaces>,
    entry: Command,
) -> Result<Vec<(SourceId, Lsn)>> {
    foreign.lock().await.decide(node, leadership, control, &entry).await?;
    let _order = node.stream.proposal_lock.lock().await;
    node.propose_as(leadership, &entry).await?;
    Ok(match entry {
        Command::Stream(batches) => batches.iter().map(|batch| (batch.source, batch.position)).collect(),
        _ => Vec::new(),
    })
}

/// Checks periodically that epoch, cluster, slot and sources are unchanged in PostgreSQL; returns when they are not.
async fn watch_group(
    node: &Node,
    leadership: &Leadership,
    control: &dyn Statements,
    group: &IndexGroup,
    sessions: &[(SourceId, Session)],
) -> Result<()> {
    let mut check = interval(CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        check.tick().await;
        if control.index_group().await? != *group {
            tracing::warn!("epoch, cluster or slot of the group changed in PostgreSQL");
            return Ok(());
        }
        if !control.sources().await?.iter().map(|(id, _)| id).eq(sessions.iter().map(|(id, _)| id)) {
            tracing::warn!("the group has other PostgreSQL nodes than before");
            return Ok(());
        }
        move_horizon(node, leadership, sessions).await?;
    }
}

/// Lets the index drop old removals. What another source had recorded of those directories is below its flush position now;
/// once that is applied, the removals are no longer needed (P1).
async fn move_horizon(node: &Node, leadership: &Leadership, sessions: &[(SourceId, Session)]) -> Result<()> {
    if !node.state.read().index.needs_horizon() {
        return Ok(());
    }
    let after = node.state.positions().borrow().applied_end.saturating_sub(1);
    let positions = flushed(sessions).await?;
    node.propose_as(leadership, &Command::Horizon { after, positions }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{index::command::SourceBatch, source::backlog::tests::arrived};

    /// The inboxes of two sources with so many transactions each.
    fn inboxes(transactions: [u64; 2]) -> [Arc<Inbox>; 2] {
        [0, 1].map(|source| {
            let inbox =
                Inbox::new(SourceId(source), Lsn(0), RaftSettings::default().entry_bytes_max, Retrace::default());
            inbox.backlog.lock().open_gate(Lsn(u64::MAX));
            for commit in 1..=transactions[source as usize] {
                arrived(&mut inbox.backlog.lock(), commit * 100, 1);
            }
            Arc::new(inbox)
        })
    }

    fn entries(inboxes: &[Arc<Inbox>], log_batching: bool) -> Vec<Vec<SourceBatch>> {
        let settings = RaftSettings { log_batching, ..RaftSettings::default() };
        let next = || match next_entry(inboxes, &settings, |_, _| false)? {
            Command::Stream(batches) => Some(batches),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    fn commits(entry: &[SourceBatch]) -> Vec<(u32, u64)> {
        let of = |batch: &SourceBatch| batch.transactions.iter().map(|t| t.commit_lsn.0).collect::<Vec<_>>();
        entry.iter().flat_map(|batch| of(batch).into_iter().map(|lsn| (batch.source.0, lsn))).collect()
    }

    #[test]
    fn with_batching_all_that_has_arrived_is_one_entry() {
        let entries = entries(&inboxes([3, 2]), true);
        assert_eq!(entries.len(), 1);
        assert_eq!(commits(&entries[0]), [(0, 100), (0, 200), (0, 300), (1, 100), (1, 200)]);
    }

    #[test]
    fn without_batching_each_transaction_is_an_entry() {
        let entries = entries(&inboxes([3, 2]), false);
        let commits: Vec<_> = entries.iter().map(|entry| commits(entry)).collect();
        assert_eq!(commits, [[(0, 100)], [(0, 200)], [(0, 300)], [(1, 100)], [(1, 200)]]);
    }

    #[test]
    fn a_piece_goes_by_itself_and_what_does_not_fit_goes_next() {
        let (inboxes, settings) = (inboxes([1, 0]), RaftSettings::default());
        // One and a half times what an entry takes.
        arrived(&mut inboxes[1].backlog.lock(), 100, settings.entry_bytes_max * 3 / 2 / 56);
        assert_eq!(entries(&inboxes[..1], true).len(), 1);
        arrived(&mut inboxes[0].backlog.lock(), 200, 1);
        let first = next_entry(&inboxes, &settings, |_, _| false);
        assert!(matches!(first, Some(Command::Stream(batches)) if batches.len() == 1));
        let second = next_entry(&inboxes, &settings, |_, _| false);
        assert!(matches!(second, Some(Command::TransactionPiece(piece)) if piece.source == SourceId(1)));
        assert_eq!(entries(&inboxes, true).len(), 1);
    }
}
