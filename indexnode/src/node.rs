//! One incarnation of a replica: a Raft node over a data directory, until it stops or the directory is reset.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use mantle_types::{Epoch, Error, ErrorCode, GroupId, Result as MantleResult};
use openraft::{
    BasicNode, ChangeMembers, Instant as _, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, ForwardReason},
    impls::ProgressResponder,
    metrics::RaftServerMetrics,
    storage::{RaftLogReader, RaftLogStorage},
    vote::RaftLeaderId,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    config::Config,
    failpoints::{self, Failpoint},
    index::command::{Applied, Command},
    progress::StreamProgress,
    raft::{
        NodeId, Proposal, Raft, TypeConfig,
        disk_executor::DiskExecutor,
        durable,
        identity::Identity,
        log::LogStore,
        machine::Machine,
        network::Network,
        openraft_config,
        peers::Peers,
        read_index::ReadIndexBatcher,
        snapshot::SnapshotStore,
        state::IndexState,
        types::{CommittedLeaderId, StoredMembership},
    },
};

/// A leader's lease begins with the first answers of a quorum, and ends while none answers. Without a lease openraft refuses
/// proposals; they are repeated after this time.
const LEASE_RETRY: Duration = Duration::from_millis(2);
const LEASE_WAIT_MAX: Duration = Duration::from_secs(5);
/// A leader without contact for this many leases is not a working leader.
const WORKING_LEASES: u32 = 2;

/// Why a node ended.
#[derive(Debug)]
pub enum NodeEnd {
    /// The cluster is gone: the replica has to be reset, and joins or founds another one.
    Reset,
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
    pub(crate) stream: StreamProgress,
    /// The key that signs prepared renames, and the epoch under which it was read from PostgreSQL.
    pub(crate) prepare_key: Mutex<Option<(Epoch, Vec<u8>)>>,
    /// Held during a membership change.
    pub(crate) membership_lock: tokio::sync::Mutex<()>,
    /// The end of the leases that this replica may have granted before a restart; until then it does not vote.
    votes_from: Option<Instant>,
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
        let network = Network { group, cluster_id: cluster_id.clone(), peers: peers.clone(), disk: disk.clone() };
        let raft = Raft::new(identity.node_id, raft_config, network, log.clone(), machine).await.context("Raft")?;
        let reads = ReadIndexBatcher::spawn(raft.clone(), peers.clone(), group, cluster_id.clone());
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
            stream: StreamProgress::default(),
            prepare_key: Mutex::default(),
            membership_lock: tokio::sync::Mutex::default(),
            votes_from,
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

    /// True once every lease that this replica may have granted before a restart has ended.
    pub fn may_vote(&self) -> bool {
        self.votes_from.is_none_or(|from| Instant::now() >= from)
    }

    /// Lets the replica campaign from that time on.
    pub async fn enable_elections(&self) {
        if let Some(from) = self.votes_from {
            sleep_until(from).await;
            self.raft.runtime_config().elect(true);
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

fn leadership_in(metrics: &RaftServerMetrics<TypeConfig>) -> Option<Leadership> {
    let vote = &metrics.vote;
    let leads = metrics.state == ServerState::Leader && vote.committed && vote.leader_id.node_id == metrics.id;
    leads.then(|| Leadership { term: vote.leader_id.term, id: vote.leader_id.to_committed() })
}
