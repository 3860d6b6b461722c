//! One incarnation of a replica: a Raft node over a data directory, until it stops or the directory is reset.

mod prepare_key;
mod prepares;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use mantle_types::{Error, ErrorCode, GroupId, Result as MantleResult};
use openraft::{
    BasicNode, ChangeMembers, Instant as _, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, ForwardReason},
    impls::ProgressResponder,
    metrics::RaftServerMetrics,
    raft::AppendEntriesRequest,
    storage::{RaftLogReader, RaftLogStorage},
    vote::RaftLeaderId,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    config::Config,
    failpoints::{self, Failpoint},
    index::command::{Applied, Command},
    postgres::{kept_sessions::KeptSessions, upstream::ReplicaProblem},
    progress::StreamProgress,
    proto::peer,
    raft::{
        NodeId, Proposal, Raft, TypeConfig,
        commit_notices::GivenReadIndexes,
        disk_executor::DiskExecutor,
        doubt::Doubt,
        durable,
        fault::{Fault, FaultCell, FaultKind},
        identity::Identity,
        log::LogStore,
        machine::Machine,
        network::{Known, Network},
        openraft_config,
        peers::Peers,
        promises::{Promise, Promises},
        read_index::{Knows, ReadIndexBatcher},
        snapshot::SnapshotStore,
        state::IndexState,
        terms::TermCheck,
        types::{CommittedLeaderId, LogId, StoredMembership},
    },
    settled::Settled,
};

use prepare_key::PrepareKey;
use prepares::PrepareQueue;

/// A leader's lease begins with the first answers of a quorum, and ends while none answers. Without a lease openraft refuses
/// proposals; they are repeated after this time.
const LEASE_RETRY: Duration = Duration::from_millis(2);
const LEASE_WAIT_MAX: Duration = Duration::from_secs(5);
const ASKED_POLL: Duration = Duration::from_millis(5);
/// A leader without contact for this many leases is not a working leader.
const WORKING_LEASES: u32 = 2;

/// Why a node ended.
#[derive(Debug)]
pub enum NodeEnd {
    /// The replica has to be reset, and joins or founds a cluster anew: its cluster is gone, or it has a fault.
    Reset(Option<Fault>),
    /// The replica cannot go on.
    Failed(anyhow::Error),
}

/// A term in which this replica leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The Raft term.
    pub term: u64,
    id: CommittedLeaderId,
}

/// A member of a Raft cluster.
pub struct Node {
    pub(crate) config: Arc<Config>,
    pub(crate) group: GroupId,
    /// This replica's Raft id.
    pub node_id: NodeId,
    /// The Raft cluster that it belongs to.
    pub cluster_id: String,
    /// The Raft handle.
    pub raft: Raft,
    /// The replicated state.
    pub state: Arc<IndexState>,
    pub(crate) log: LogStore,
    pub(crate) snapshots: SnapshotStore,
    pub(crate) disk: DiskExecutor,
    pub(crate) peers: Peers,
    pub(crate) reads: ReadIndexBatcher,
    /// The read indexes that it has given to other replicas.
    pub(crate) given: Arc<GivenReadIndexes>,
    pub(crate) stream: StreamProgress,
    pub(crate) settled: Settled,
    /// The key that signs prepared renames.
    pub(crate) prepare_key: PrepareKey,
    /// Sessions for abort records.
    pub(crate) abort_sessions: KeptSessions,
    /// Prepares that wait for the next entry.
    prepares: Mutex<PrepareQueue>,
    /// The membership, by its log index, whose members are known to know the newest rule.
    pub(crate) ruled: AtomicU64,
    /// What the other members have promised.
    pub(crate) promises: Arc<Promises>,
    /// Whether this replica's leadership may lack committed entries.
    pub(crate) doubt: Arc<Doubt>,
    /// What makes this replica unfit, once something does.
    pub(crate) fault: Arc<FaultCell>,
    /// While this replica leads: the members that do not answer lookups.
    pub(crate) problems: Mutex<Vec<ReplicaProblem>>,
    /// While this replica leads: the rename locks whose time is over and that could not be released yet.
    pub(crate) expired_locks: AtomicU64,
    /// The terms that this replica believes.
    pub(crate) terms: TermCheck,
    /// Held during a membership change.
    pub(crate) membership_lock: tokio::sync::Mutex<()>,
    /// The end of the leases that this replica may have granted before a restart; until then it does not vote.
    votes_from: Option<Instant>,
    /// The other members were asked what this replica has promised.
    has_asked: AtomicBool,
    /// When the last message of a leader was accepted.
    leader_contact: Mutex<Option<Instant>>,
}

impl Node {
    pub(crate) fn waiters(&self) -> usize {
        self.state.requests.waiters() + self.stream.waiters()
    }

    /// Opens log and snapshots and starts Raft. The state machine is brought to the last known commit.
    pub async fn start(
        config: Arc<Config>,
        group: GroupId,
        folder: &Path,
        identity: &Identity,
        peers: Peers,
        disk: DiskExecutor,
    ) -> Result<Arc<Self>> {
        let cluster_id = identity.cluster_id.clone().context("a replica without a cluster cannot be started")?;
        // The log is durable only if a power failure cannot remove its directory.
        durable::create_dir(folder).context("Raft directory")?;
        let mut log = LogStore::open_with(&folder.join("log"), &disk, config.raft.log_batching).context("Raft log")?;
        let snapshots = SnapshotStore::open(&folder.join("snapshots")).context("snapshots")?;
        let state = Arc::new(IndexState::new(&config.lookup));
        let has_promised = log.read_vote().await?.is_some() || log.get_log_state().await?.last_log_id.is_some();
        let machine = Machine::new(state.clone(), snapshots.clone(), disk.clone());
        let raft_config = openraft_config(group, &config.raft)?;
        check_folder(&log, &snapshots)?;
        let promises = Arc::new(Promises::open(identity.node_id, folder));
        let (doubt, fault) = (Arc::new(Doubt::new(!has_promised)), Arc::<FaultCell>::default());
        let terms = TermCheck::new(log.clone());
        let known = Known { log: log.clone(), promises: promises.clone(), doubt: doubt.clone(), terms: terms.clone() };
        let given = Arc::<GivenReadIndexes>::default();
        let network = Network {
            group,
            cluster_id: cluster_id.clone(),
            peers: peers.clone(),
            disk: disk.clone(),
            known,
            given: given.clone(),
        };
        let raft = Raft::new(identity.node_id, raft_config, network, log.clone(), machine).await.context("Raft")?;
        let knows = Knows { state: state.clone(), doubt: doubt.clone(), fault: fault.clone() };
        let reads = ReadIndexBatcher::spawn(raft.clone(), peers.clone(), (group, cluster_id.clone()), knows);
        // A restarted follower does not remember whether it granted a lease. So it neither votes nor campaigns for the length of
        // one, unless it is the only voter (P38).
        let id = identity.node_id;
        // Read from Raft's state, because its metrics have no membership just after the start.
        let is_alone = raft.with_raft_state(move |state| state.membership_state.effective().voter_ids().eq([id]));
        let is_alone = is_alone.await.context("Raft")?;
        let is_bound = !is_alone && !failpoints::is_hit(Failpoint::VoteWithinLease);
        let votes_from = (has_promised && is_bound).then(|| Instant::now() + config.raft.lease());
        if votes_from.is_some() {
            raft.runtime_config().elect(false);
        }
        Ok(Arc::new(Self {
            config,
            group,
            node_id: identity.node_id,
            cluster_id,
            raft,
            state,
            log,
            snapshots,
            disk,
            peers,
            reads,
            given,
            stream: StreamProgress::default(),
            settled: Settled::default(),
            prepare_key: PrepareKey::default(),
            abort_sessions: KeptSessions::default(),
            prepares: Mutex::default(),
            ruled: AtomicU64::default(),
            promises,
            doubt,
            fault,
            problems: Mutex::default(),
            expired_locks: AtomicU64::default(),
            terms,
            membership_lock: tokio::sync::Mutex::default(),
            votes_from,
            has_asked: AtomicBool::new(!is_bound || !has_promised),
            leader_contact: Mutex::new(None),
        }))
    }

    /// The commit index of a replica that believes that it leads, for [`Failpoint::ReadIndexOfOldLeader`].
    pub fn unconfirmed_read_index(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state == ServerState::Leader;
        leads.then(|| metrics.local_committed.map_or(0, |id| id.index))
    }

    /// True once every lease that this replica may have granted before a restart has ended, and the other members were asked
    /// what it has promised.
    pub fn may_vote(&self) -> bool {
        self.votes_from.is_none_or(|from| Instant::now() >= from) && self.has_asked.load(Ordering::SeqCst)
    }

    /// The other members were asked what this replica has promised, and those that live have answered.
    pub(crate) fn note_asked(&self) {
        self.has_asked.store(true, Ordering::SeqCst);
    }

    /// Learns what members have promised. If it is more than this replica has, its folder went back (P48).
    ///
    /// A replica that believes a forged one discards its log, so one of an impossible term is ignored.
    pub(crate) fn learn_promises(&self, promises: &[peer::Promise]) {
        for message in promises {
            let promise = Promise::of_message(message);
            if self.terms.check_promised(promise.highest_term()).is_err() {
                continue;
            }
            if message.node_id != self.node_id {
                self.promises.note(message.node_id, promise);
                continue;
            }
            let (last, vote) = self.log.last_and_vote();
            if promise.broken_by(vote, last).is_none() || failpoints::is_hit(Failpoint::KeepLostLog) {
                continue;
            }
            // A snapshot may be on disk before the log says so.
            let last = last.max(self.state.read().applied);
            if let Some(why) = promise.broken_by(vote, last) {
                self.fault.raise(Fault::new(FaultKind::LogLost, why));
                self.raft.runtime_config().elect(false);
            }
        }
    }

    /// Checks that the entries of a leader do not contradict committed ones of this replica, which openraft takes for granted
    /// (P49). Only entries that do not simply follow the log are looked at.
    pub(crate) async fn check_append(&self, rpc: &AppendEntriesRequest<TypeConfig>) -> Result<(), Fault> {
        let (last, _) = self.log.last_and_vote();
        let is_left_out = failpoints::is_hit(Failpoint::ServeDifferingState);
        if is_left_out || rpc.prev_log_id.is_none_or(|prev| Some(prev) == last) {
            return Ok(());
        }
        let ids: Vec<LogId> = rpc.prev_log_id.into_iter().chain(rpc.entries.iter().map(|entry| entry.log_id)).collect();
        let contradiction = self.raft.with_raft_state(move |state| {
            let committed = state.local_committed().copied()?;
            // No leader has an entry of a later term at or before a committed one.
            let contradicts = |id: &&LogId| id.index <= committed.index && **id > committed;
            ids.iter().find(contradicts).map(|id| format!("entry {id} of the leader contradicts a committed one"))
        });
        let Ok(Some(why)) = contradiction.await else { return Ok(()) };
        self.raft.runtime_config().elect(false);
        Err(self.fault.raise(Fault::new(FaultKind::LogDiffers, why)))
    }

    /// True if this replica leads and may lack committed entries.
    pub fn is_in_doubt(&self, leadership: &Leadership) -> bool {
        self.doubt.covers(leadership.term)
    }

    /// Lets the replica campaign from that time on.
    pub async fn enable_elections(&self) {
        if let Some(from) = self.votes_from {
            sleep_until(from).await;
            while !self.may_vote() {
                sleep(ASKED_POLL).await;
            }
            if self.fault.get().is_none() {
                self.raft.runtime_config().elect(true);
            }
        }
    }

    pub(crate) fn note_leader_contact(&self) {
        *self.leader_contact.lock() = Some(Instant::now());
    }

    /// True if there is a working leader. openraft's metrics do not say so: they still name a leader that died, and a leader that
    /// lost its quorum still names itself.
    pub fn has_working_leader(&self) -> bool {
        let limit = self.config.raft.lease() * WORKING_LEASES;
        if self.leadership().is_some() {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let acked = metrics.last_quorum_acked.is_some_and(|at| at.into_inner().elapsed() < limit);
            return acked || metrics.membership_config.voter_ids().all(|id| id == self.node_id);
        }
        self.leader_contact.lock().is_some_and(|at| at.elapsed() < limit)
    }

    /// The leader's id and address, if one is known.
    pub fn leader(&self) -> Option<(NodeId, String)> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        Some((id, metrics.membership_config.membership().get_node(&id)?.addr.clone()))
    }

    pub(crate) fn is_voter(&self, id: NodeId) -> bool {
        self.membership().voter_ids().any(|voter| voter == id)
    }

    /// The membership that this replica knows.
    pub fn membership(&self) -> Arc<StoredMembership> {
        self.raft.server_metrics().borrow_watched().membership_config.clone()
    }

    pub(crate) fn not_leader(&self) -> Error {
        Error::new(ErrorCode::NotLeader, "this replica does not lead the group")
    }

    /// The current leadership of this replica. A restarted leader still has its committed vote, but does not lead before it is
    /// elected again.
    pub fn leadership(&self) -> Option<Leadership> {
        leadership_in(&self.raft.server_metrics().borrow_watched())
    }

    /// Waits until this replica leads.
    pub async fn wait_leadership(&self) -> Leadership {
        let mut metrics = self.raft.server_metrics();
        loop {
            if let Some(leadership) = leadership_in(&metrics.borrow_and_update()) {
                return leadership;
            }
            if metrics.changed().await.is_err() {
                // Raft has stopped: this node will not lead again.
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) async fn wait_leadership_lost(&self, leadership: &Leadership) {
        let mut metrics = self.raft.server_metrics();
        loop {
            let leads = leadership_in(&metrics.borrow_and_update()).as_ref() == Some(leadership);
            if !leads || metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Proposes a command in a term of this replica; returns when it is applied here. After an error other than
    /// `invalid_argument`, the command may still be applied.
    pub async fn propose_as(&self, leadership: &Leadership, command: &Command) -> MantleResult<Applied> {
        let proposal = Proposal::encode(command);
        let deadline = Instant::now() + LEASE_WAIT_MAX;
        loop {
            let (responder, answer) = ProgressResponder::complete_only();
            let request = self.raft.write(proposal.clone()).with_leader(leadership.id).responder(responder);
            let stopped = |e| Error::new(ErrorCode::IndexUnavailable, format!("Raft has stopped: {e}"));
            request.await.map_err(stopped)?;
            match answer.await {
                Ok(Ok(response)) => return Ok(response.data),
                Ok(Err(ClientWriteError::ForwardToLeader(forward)))
                    if forward.reason == ForwardReason::LeaseExpired && Instant::now() < deadline =>
                {
                    sleep(LEASE_RETRY).await;
                }
                Ok(Err(e)) => {
                    tracing::debug!(error = %e, "a proposal was refused");
                    return Err(self.not_leader());
                }
                Err(_) => return Err(Error::new(ErrorCode::IndexUnavailable, "this replica is stopping")),
            }
        }
    }

    /// Changes the membership, through a joint one if needed; with `retain`, removed voters stay learners. After `not_leader` the
    /// change is committed partly or not at all, and may be repeated.
    pub async fn change_membership(&self, change: ChangeMembers<NodeId, BasicNode>, retain: bool) -> MantleResult<()> {
        let deadline = Instant::now() + LEASE_WAIT_MAX;
        loop {
            let Err(e) = self.raft.change_membership(change.clone(), retain).await else { return Ok(()) };
            match e.forward_to_leader() {
                Some(forward) if forward.reason == ForwardReason::LeaseExpired && Instant::now() < deadline => {
                    sleep(LEASE_RETRY).await;
                }
                Some(_) => return Err(self.not_leader()),
                None => return Err(Error::new(ErrorCode::Internal, e.to_string())),
            }
        }
    }

    /// Stops Raft. Everything acknowledged is on disk.
    pub async fn shutdown(&self) {
        if let Err(e) = self.raft.shutdown().await {
            tracing::warn!(error = %e, "Raft did not stop cleanly");
        }
    }

    /// Waits until Raft has failed (a disk that cannot be written).
    pub async fn wait_failed(&self) -> anyhow::Error {
        let mut metrics = self.raft.metrics();
        loop {
            if let Err(e) = &metrics.borrow_and_update().running_state {
                return anyhow::anyhow!("Raft has stopped: {e}");
            }
            if metrics.changed().await.is_err() {
                return anyhow::anyhow!("Raft has stopped");
            }
        }
    }
}

/// Checks that vote, log and snapshot belong together. If one of them was put back from a copy, they may not.
fn check_folder(log: &LogStore, snapshots: &SnapshotStore) -> Result<()> {
    let (last, vote) = log.last_and_vote();
    let (last, term) = (last.map_or(0, |id| id.committed_leader_id().term), vote.map_or(0, |vote| vote.leader_id.term));
    if last > term {
        let why = format!("its log has entries of term {last}, and its vote is of term {term}");
        return Err(Fault::new(FaultKind::LogLost, why).into());
    }
    let has = snapshots.current().context("snapshots")?.and_then(|(meta, _)| meta.last_log_id).map_or(0, |id| id.index);
    let purged = log.purged_index();
    if has < purged {
        let why = format!("its snapshot ends at entry {has}, and its log begins after entry {purged}");
        return Err(Fault::new(FaultKind::LogLost, why).into());
    }
    Ok(())
}

fn leadership_in(metrics: &RaftServerMetrics<TypeConfig>) -> Option<Leadership> {
    let vote = &metrics.vote;
    let leads = metrics.state == ServerState::Leader && vote.committed && vote.leader_id.node_id == metrics.id;
    leads.then(|| Leadership { term: vote.leader_id.term, id: vote.leader_id.to_committed() })
}
