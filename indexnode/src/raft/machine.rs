//! The state machine: applies committed entries to the index, and publishes what readers and waiters wait for.
//!
//! Invariant: an entry's effects are visible to readers before its index is published as applied, and published before
//! anybody who waits for a request of it is told. The write lock is held for one entry at a time, so readers get in
//! between. The state lives in memory; snapshots and the log bring it back.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt};
use mantle_types::Lsn;
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use super::{
    TypeConfig,
    offload::Offload,
    snapshot::{SnapshotFile, SnapshotStore},
    types::{LogId, Snapshot, SnapshotMeta, StoredMembership},
};
use crate::{
    failpoints::{self, Failpoint},
    index::{
        Effects, Index,
        command::{Applied, Command, SourceId},
    },
    requests::FinishedRequests,
};

/// The one PostgreSQL node that feeds a group today.
pub const SOURCE: SourceId = SourceId(0);

/// What the log amounts to so far.
pub struct Replicated {
    /// The index.
    pub index: Index,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl Replicated {
    /// The last entry applied.
    pub fn applied(&self) -> Option<LogId> {
        self.applied
    }
}

/// Positions that are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Log index of the next entry to apply: everything below is applied.
    pub applied_end: u64,
    /// Everything that the source committed below this LSN is applied.
    pub source_end: Lsn,
    /// Are lookups answered?
    pub is_serving: bool,
}

/// The replicated state, shared by the state machine and the services.
pub struct IndexState {
    replicated: RwLock<Replicated>,
    positions: watch::Sender<Positions>,
    /// Requests that are applied, and those who wait for one.
    pub requests: FinishedRequests,
    /// Counters of apply.
    pub counters: ApplyCounters,
}

/// What apply has done since the process started.
#[derive(Debug, Default)]
pub struct ApplyCounters {
    /// Entries applied.
    pub entries: AtomicU64,
    /// Operations of the change stream applied.
    pub operations: AtomicU64,
    /// Time spent applying, in nanoseconds.
    pub busy_ns: AtomicU64,
}

impl IndexState {
    /// An empty state.
    pub fn new() -> Self {
        let replicated = Replicated { index: Index::new(), applied: None, membership: StoredMembership::default() };
        Self {
            replicated: RwLock::new(replicated),
            positions: watch::Sender::new(Positions::default()),
            requests: FinishedRequests::default(),
            counters: ApplyCounters::default(),
        }
    }

    /// Reads the index.
    pub fn read(&self) -> RwLockReadGuard<'_, Replicated> {
        self.replicated.read()
    }

    /// Follows the positions.
    pub fn positions(&self) -> watch::Receiver<Positions> {
        self.positions.subscribe()
    }

    /// Waits until the entry at `log_index` is applied.
    pub async fn wait_applied(&self, log_index: u64) {
        let mut positions = self.positions.subscribe();
        // The sender lives as long as `self`.
        let _ = positions.wait_for(|p| p.applied_end > log_index).await;
    }

    fn publish(&self, replicated: &Replicated) -> Positions {
        Positions {
            applied_end: replicated.applied.map_or(0, |id| id.index + 1),
            source_end: Lsn(replicated.index.applied_lsn(SOURCE).0.saturating_add(1)),
            is_serving: replicated.index.is_serving(),
        }
    }

    fn apply(
        &self,
        log_id: LogId,
        payload: EntryPayload<super::Proposal, u64, openraft::BasicNode>,
    ) -> io::Result<Applied> {
        let started = Instant::now();
        let mut effects = Effects::default();
        let mut applied = Applied::Done;
        // Decoding needs no lock.
        let command = match &payload {
            EntryPayload::Normal(proposal) => Some(proposal.decode().map_err(io::Error::other)?),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let operations = command.as_ref().map_or(0, operations);
        let positions = {
            let mut replicated = self.replicated.write();
            match (command, payload) {
                (Some(command), _) => applied = replicated.index.apply(log_id.index, command, &mut effects),
                (None, EntryPayload::Membership(membership)) => {
                    replicated.membership = StoredMembership::new(Some(log_id), membership);
                }
                (None, _) => {}
            }
            replicated.applied = Some(log_id);
            self.publish(&replicated)
        };
        self.positions.send_replace(positions);
        self.requests.finish(&effects.finished);
        self.counters.entries.fetch_add(1, Ordering::Relaxed);
        self.counters.operations.fetch_add(operations as u64, Ordering::Relaxed);
        self.counters.busy_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(applied)
    }
}

impl Default for IndexState {
    fn default() -> Self {
        Self::new()
    }
}

fn operations(command: &Command) -> usize {
    match command {
        Command::Stream { transactions, .. } => transactions.iter().map(|t| t.ops.len()).sum(),
        Command::RebuildChunk { records } => records.len(),
        _ => 1,
    }
}

/// openraft's handle on the state.
pub struct Machine {
    state: Arc<IndexState>,
    snapshots: SnapshotStore,
    offload: Offload,
}

impl Machine {
    /// A state machine over a shared state.
    pub fn new(state: Arc<IndexState>, snapshots: SnapshotStore, offload: Offload) -> Self {
        Self { state, snapshots, offload }
    }
}

impl Machine {
    /// See [`Failpoint::PublishBeforeInstall`].
    async fn publish_too_early(&self, meta: &SnapshotMeta) {
        let applied_end = meta.last_log_id.map_or(0, |id| id.index + 1);
        self.state.positions.send_modify(|positions| positions.applied_end = applied_end);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let replicated = self.state.read();
        Ok((replicated.applied, replicated.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let applied = self.state.apply(entry.log_id, entry.payload)?;
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder { state: self.state.clone(), snapshots: self.snapshots.clone(), offload: self.offload.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        let snapshots = self.snapshots.clone();
        if failpoints::is_hit(Failpoint::PublishBeforeInstall) {
            self.publish_too_early(meta).await;
        }
        let index = self.offload.run(move || snapshots.install(snapshot)).await?;
        let (positions, old) = {
            let mut replicated = self.state.replicated.write();
            let old = std::mem::replace(&mut replicated.index, index);
            replicated.applied = meta.last_log_id;
            replicated.membership = meta.last_membership.clone();
            (self.state.publish(&replicated), old)
        };
        self.state.positions.send_replace(positions);
        drop(old);
        tracing::info!(last = ?meta.last_log_id, "snapshot installed");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.snapshots.current()?.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// Builds a snapshot of whatever is applied when it begins to.
pub struct SnapshotBuilder {
    state: Arc<IndexState>,
    snapshots: SnapshotStore,
    offload: Offload,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let (state, snapshots) = (self.state.clone(), self.snapshots.clone());
        let work = move || {
            let started = Instant::now();
            // Lookups go on; apply waits for the copy into the page cache, not for the disk.
            let unfinished = {
                let replicated = state.read();
                let meta =
                    SnapshotMeta { last_log_id: replicated.applied, last_membership: replicated.membership.clone() };
                snapshots.write(&meta, &replicated.index)?
            };
            snapshots.finish(unfinished)?;
            let current = snapshots.current()?;
            let (meta, snapshot) = current.ok_or_else(|| io::Error::other("the snapshot vanished"))?;
            let elapsed_ms = started.elapsed().as_millis() as u64;
            tracing::info!(last = ?meta.last_log_id, bytes = snapshot.bytes, elapsed_ms, "snapshot built");
            Ok(Snapshot { meta, snapshot })
        };
        self.offload.run(work).await
    }
}
