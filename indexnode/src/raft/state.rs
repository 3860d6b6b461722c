//! The replicated state: applies committed entries to the index, and publishes the positions that readers and waiters wait for.
//!
//! Invariant: an entry's effects are visible to readers before its log index is published as applied, and that is published
//! before the waiters for its requests are answered. The write lock is held for one part of an entry at a time, so readers get
//! in between. The state is in memory; snapshots and the log restore it.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use mantle_types::{DirectoryId, Lsn};
use openraft::EntryPayload;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::{Mutex, watch};

use super::{
    fingerprint::{Fingerprint, Fingerprints, history_after},
    snapshot::SnapshotHead,
    types::{LogId, SnapshotMeta, StoredMembership},
};
use crate::{
    config::LookupSettings,
    failpoints::{self, Failpoint},
    index::{
        Effects, Index, LogEntry, SnapshotWriter,
        command::{Applied, Command, FIRST_RULE, PrepareByRule, SourceId, newest_rule},
    },
    lookup::PathCache,
    requests::FinishedRequests,
};

/// Operations applied under one write guard. Measured: such a part takes at most 20 µs.
pub(crate) const OPERATIONS_PER_PART: usize = 32;

/// The state after the entries that are applied.
pub struct Replicated {
    /// The index.
    pub index: Index,
    /// The last entry applied.
    pub applied: Option<LogId>,
    pub(super) membership: StoredMembership,
    /// Hash of the applied entries; see `fingerprint.rs`.
    history: u64,
    /// The index was dropped, and the index of a snapshot is not read yet.
    is_installing: bool,
}

impl Replicated {
    fn positions(&self) -> (Positions, SourceEnds) {
        let applied_end = self.applied.map_or(0, |id| id.index + 1);
        let ends = self.index.sources().map(|(id, source)| (id, Lsn(source.applied.0.saturating_add(1)))).collect();
        (Positions { applied_end, is_serving: self.index.is_serving() }, ends)
    }
}

/// The positions that callers wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Log index of the next entry to apply: everything below is applied.
    pub applied_end: u64,
    /// True if lookups are answered.
    pub is_serving: bool,
}

/// For every source, in the order of the ids, the LSN below which everything that it committed is applied.
pub type SourceEnds = Vec<(SourceId, Lsn)>;

/// The replicated state, shared by the state machine and the services.
pub struct IndexState {
    replicated: RwLock<Replicated>,
    pub(super) positions: watch::Sender<Positions>,
    source_ends: watch::Sender<SourceEnds>,
    /// The cache of resolved prefixes, for lookups.
    pub cache: PathCache,
    /// Held from the first part of an entry to the last, and by callers that must not see a partly applied entry.
    entry: Mutex<()>,
    /// Applied requests, and the callers that wait for one.
    pub requests: FinishedRequests,
    /// The state after each of the last entries.
    pub(crate) fingerprints: Fingerprints,
    /// Counters of apply.
    pub counters: ApplyCounters,
}

/// Counters of apply since the node started.
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
    pub fn new(lookup: &LookupSettings) -> Self {
        let (index, membership) = (Index::default(), StoredMembership::default());
        let replicated = Replicated { index, applied: None, membership, history: 0, is_installing: false };
        Self {
            replicated: RwLock::new(replicated),
            positions: watch::Sender::new(Positions::default()),
            source_ends: watch::Sender::new(SourceEnds::new()),
            cache: PathCache::new(lookup.clone()),
            entry: Mutex::new(()),
            requests: FinishedRequests::default(),
            fingerprints: Fingerprints::default(),
            counters: ApplyCounters::default(),
        }
    }

    /// Locks the state for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Replicated> {
        self.replicated.read()
    }

    /// Subscribes to the positions.
    pub fn positions(&self) -> watch::Receiver<Positions> {
        self.positions.subscribe()
    }

    /// Subscribes to the positions of the sources.
    pub fn source_ends(&self) -> watch::Receiver<SourceEnds> {
        self.source_ends.subscribe()
    }

    /// The LSN below which everything that the source committed is applied; 0 for an unknown source.
    pub fn source_end(&self, source: SourceId) -> Lsn {
        end_of(&self.source_ends.borrow(), source)
    }

    /// True if lookups are answered.
    pub fn is_serving(&self) -> bool {
        self.positions.borrow().is_serving
    }

    /// Waits until the entry at `log_index` is applied.
    pub async fn wait_applied(&self, log_index: u64) {
        if self.positions.borrow().applied_end > log_index {
            return;
        }
        let mut positions = self.positions.subscribe();
        // The sender lives as long as `self`.
        let _ = positions.wait_for(|p| p.applied_end > log_index).await;
    }

    fn note_fingerprint(&self, replicated: &Replicated) {
        if let Some(applied) = replicated.applied {
            self.fingerprints.note(Fingerprint::of(applied.index, replicated.history, &replicated.index));
        }
    }

    /// Publishes positions. Called after the lock on `replicated` is released, in the order of the entries.
    fn publish(&self, (positions, source_ends): (Positions, SourceEnds)) {
        self.positions.send_replace(positions);
        self.source_ends.send_if_modified(|old| {
            let is_new = *old != source_ends;
            *old = source_ends;
            is_new
        });
    }

    /// Begins a snapshot of the applied state, never of a partly applied entry. `None` while a received one is being installed.
    pub(super) async fn begin_snapshot(&self) -> io::Result<Option<(SnapshotHead, SnapshotWriter)>> {
        let _entry = self.entry.lock().await;
        let mut replicated = self.replicated.write();
        if replicated.is_installing {
            return Ok(None);
        }
        let meta = SnapshotMeta { last_log_id: replicated.applied, last_membership: replicated.membership.clone() };
        let head = SnapshotHead { meta, history: replicated.history };
        Ok(Some((head, replicated.index.begin_snapshot()?)))
    }

    /// Takes the index out, so that the snapshot's index does not grow beside it. From here on lookups are refused and go to
    /// another replica: this one is behind entries that the leader has already purged.
    pub(super) fn begin_install(&self) -> Index {
        let old = {
            let mut replicated = self.replicated.write();
            replicated.is_installing = true;
            self.cache.invalidate(&[DirectoryId::SUPER_ROOT]);
            replicated.index.take()
        };
        self.positions.send_modify(|positions| positions.is_serving = false);
        old
    }

    pub(super) fn end_install(&self, SnapshotHead { meta, history }: SnapshotHead, index: Index) {
        // The snapshot may be later than the rebuild of a diverged index.
        self.requests.forget();
        let positions = {
            let mut replicated = self.replicated.write();
            replicated.index = index;
            self.cache.invalidate(&[DirectoryId::SUPER_ROOT]);
            replicated.applied = meta.last_log_id;
            replicated.membership = meta.last_membership;
            replicated.history = history;
            replicated.is_installing = false;
            self.note_fingerprint(&replicated);
            replicated.positions()
        };
        self.publish(positions);
    }

    pub(super) async fn apply(
        &self,
        log_id: LogId,
        payload: EntryPayload<super::Proposal, u64, openraft::BasicNode>,
    ) -> io::Result<Applied> {
        let started = Instant::now();
        // Decoding needs no lock.
        let command = match &payload {
            EntryPayload::Normal(proposal) => {
                Some(by_own_rule(proposal.decode(newest_rule()).map_err(io::Error::other)?))
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let operations = command.as_ref().map_or(0, operations);
        let _entry = self.entry.lock().await;
        if matches!(command, Some(Command::RebuildBegin { is_diverged: true, .. })) {
            self.requests.forget();
        }
        let begins_rebuild = matches!(command, Some(Command::RebuildBegin { .. }));
        let ends_rebuild = matches!(command, Some(Command::RebuildEnd { .. }));
        let publish = |applied, effects: Effects| {
            let positions = {
                let mut replicated = self.replicated.write();
                replicated.history = history_after(replicated.history, log_id, &payload, begins_rebuild);
                if let EntryPayload::Membership(membership) = payload {
                    replicated.membership = StoredMembership::new(Some(log_id), membership);
                }
                replicated.applied = Some(log_id);
                self.note_fingerprint(&replicated);
                replicated.positions()
            };
            self.publish(positions);
            self.requests.finish(&effects.finished);
            if ends_rebuild {
                self.requests.supersede();
            }
            applied
        };
        let applied = match command {
            // Lookups get in between the parts.
            Some(command) => {
                let entry = LogEntry::new(log_id.index, command);
                self.cache.apply(&self.replicated, |all| &mut all.index, entry, OPERATIONS_PER_PART, publish).await
            }
            None => publish(Applied::Done, Effects::default()),
        };
        self.counters.entries.fetch_add(1, Ordering::Relaxed);
        self.counters.operations.fetch_add(operations as u64, Ordering::Relaxed);
        self.counters.busy_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(applied)
    }
}

/// The position of one source.
pub fn end_of(ends: &SourceEnds, source: SourceId) -> Lsn {
    ends.iter().find(|(id, _)| *id == source).map_or(Lsn::INVALID, |(_, end)| *end)
}

/// With [`Failpoint::DecideByOwnRule`] a prepare is decided by the newest rule that this replica knows.
fn by_own_rule(command: Command) -> Command {
    match command {
        Command::Prepare(prepare) if newest_rule() > FIRST_RULE && failpoints::is_hit(Failpoint::DecideByOwnRule) => {
            Command::PrepareByRule(PrepareByRule { prepare, rule: newest_rule(), below: Vec::new() })
        }
        command => command,
    }
}

fn operations(command: &Command) -> usize {
    match command {
        Command::Stream(_) | Command::TransactionPiece(_) => command.stream_operations().count(),
        Command::RebuildChunk { records } | Command::CopyChunk { records, .. } => records.len(),
        Command::Forget { ids, .. } => ids.len(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use mantle_types::{Epoch, NamespaceId, RequestKey};
    use openraft::vote::RaftLeaderId;
    use uuid::Uuid;

    use super::*;
    use crate::raft::{Proposal, types::CommittedLeaderId};

    /// PostgreSQL may have lost the change of a finished request, which may then commit again.
    #[test]
    fn nothing_is_finished_after_the_index_has_diverged() {
        let state = IndexState::new(&LookupSettings::default());
        let request = RequestKey { principal: 1, ns: NamespaceId(1), id: Uuid::from_u128(1) };
        let rebuild = |index, is_diverged| {
            let command = Command::RebuildBegin { epoch: Epoch(index), is_diverged };
            let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
            block_on(state.apply(log_id, EntryPayload::Normal(Proposal::encode(&command)))).unwrap();
        };
        state.requests.finish(&[request]);
        rebuild(1, false);
        assert!(state.requests.wait(request).unwrap().is_none());
        rebuild(2, true);
        assert!(state.requests.wait(request).unwrap().is_some());
    }
}
