//! The index service for gateways.
//!
//! Invariant: an answered lookup reflects every change that was acknowledged before it arrived, on whichever replica
//! (read index first, then the index as of at least that entry).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::stream::BoxStream;
use mantle_index_client::{
    outcome_of_result,
    proto::{
        self, AwaitRequest, AwaitResponse, ChangeMemberRequest, ChangeMemberResponse, DirectoriesRequest,
        DirectoriesResponse, MembersRequest, MembersResponse, Outcome, PrepareRenameRequest, PrepareRenameResponse,
        ReleaseRenameRequest, ReleaseRenameResponse, ResolveRequest, ResolveResponse, StatusRequest, StatusResponse,
        await_request::What, index_server::Index as IndexRpc,
    },
};
use mantle_types::{Error, ErrorCode, Lineage, Lsn, RequestKey, Result};
use openraft::{ServerState, async_runtime::watch::WatchReceiver};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::{directories, http::resident_bytes, rename, resolve, wait};
use crate::{
    groups::Groups,
    index::{SLICES, command::SourceId},
    membership::admin,
    node::Node,
    replica::Replica,
};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// The service of one process.
pub struct IndexService {
    groups: Arc<Groups>,
}

impl IndexService {
    /// A service for a process.
    pub fn new(groups: Arc<Groups>) -> Self {
        Self { groups }
    }

    /// A group's replica here, for what its leader alone does.
    fn led(&self, group: u32) -> Result<(&Arc<Replica>, Arc<Node>)> {
        Ok((self.groups.replica(group)?, self.groups.node(group)?))
    }

    /// An outcome for the leader's calls: `not_leader` says who leads.
    fn outcome<T>(&self, group: u32, result: &Result<T>) -> Option<Outcome> {
        let mut outcome = outcome_of_result(result);
        if result.as_ref().is_err_and(|e| e.code() == ErrorCode::NotLeader)
            && let Some((_, address)) = self.groups.node(group).ok().and_then(|node| node.leader())
        {
            outcome.leader_address = address;
        }
        Some(outcome)
    }
}

pub(super) fn limit(timeout_ms: u32) -> Duration {
    match timeout_ms {
        0 => TIMEOUT_DEFAULT,
        ms => Duration::from_millis(u64::from(ms)).min(TIMEOUT_MAX),
    }
}

/// A source's history, for the wire.
pub(super) fn lineage(source: SourceId, lineage: &Lineage) -> proto::Lineage {
    let Lineage { system_identifier, timeline } = *lineage;
    proto::Lineage { source: source.0, system_identifier, timeline }
}

async fn await_change(node: &Node, request: AwaitRequest) -> Result<()> {
    let limit = limit(request.timeout_ms);
    match request.what {
        Some(What::Request(key)) => wait::request(node, RequestKey::try_from(key)?, limit).await,
        Some(What::Lsn(lsn)) => wait::position(node, SourceId(request.source), Lsn(lsn), limit).await,
        None => Err(Error::new(ErrorCode::InvalidArgument, "nothing to wait for")),
    }
}

#[tonic::async_trait]
impl IndexRpc for IndexService {
    type ResolveStream = BoxStream<'static, Result<ResolveResponse, Status>>;

    async fn resolve(
        &self,
        request: Request<Streaming<ResolveRequest>>,
    ) -> Result<Response<Self::ResolveStream>, Status> {
        Ok(Response::new(resolve::answers(self.groups.clone(), request.into_inner())))
    }

    async fn prepare_rename(
        &self,
        request: Request<PrepareRenameRequest>,
    ) -> Result<Response<PrepareRenameResponse>, Status> {
        let request = request.into_inner();
        let group = request.group;
        let result = match self.led(group) {
            Ok((replica, node)) => rename::prepare(&node, &replica.database, request).await,
            Err(e) => Err(e),
        };
        let outcome = self.outcome(group, &result);
        let response = result.unwrap_or_default();
        Ok(Response::new(PrepareRenameResponse { outcome, ..response }))
    }

    async fn release_rename(
        &self,
        request: Request<ReleaseRenameRequest>,
    ) -> Result<Response<ReleaseRenameResponse>, Status> {
        let request = request.into_inner();
        let group = request.group;
        let result = match self.led(group) {
            Ok((replica, node)) => rename::release(&node, &replica.database, request).await,
            Err(e) => Err(e),
        };
        Ok(Response::new(ReleaseRenameResponse { outcome: self.outcome(group, &result) }))
    }

    async fn r#await(&self, request: Request<AwaitRequest>) -> Result<Response<AwaitResponse>, Status> {
        let started = Instant::now();
        let request = request.into_inner();
        let group = request.group;
        let node = self.groups.node(group);
        let result = match &node {
            Ok(node) => await_change(node, request).await,
            Err(e) => Err(e.clone()),
        };
        self.groups.metrics.awaited(group, started.elapsed(), result.is_ok());
        let applied_end = node.map_or(0, |node| node.state.positions().borrow().applied_end);
        let applied_index = applied_end.saturating_sub(1);
        // Signed, as OpenTelemetry has numbers; others become text.
        tracing::Span::current().record("applied_index", applied_index as i64);
        Ok(Response::new(AwaitResponse { outcome: self.outcome(group, &result), applied_index }))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Result<Response<MembersResponse>, Status> {
        let group = request.get_ref().group;
        let result = self.groups.node(group).and_then(|node| admin::members(&node));
        let outcome = self.outcome(group, &result);
        Ok(Response::new(MembersResponse { outcome, members: result.unwrap_or_default() }))
    }

    async fn change_member(
        &self,
        request: Request<ChangeMemberRequest>,
    ) -> Result<Response<ChangeMemberResponse>, Status> {
        let request = request.into_inner();
        let result = match self.groups.node(request.group) {
            Ok(node) => admin::change(&node, &request.member, request.change(), limit(request.timeout_ms)).await,
            Err(e) => Err(e),
        };
        Ok(Response::new(ChangeMemberResponse { outcome: self.outcome(request.group, &result) }))
    }

    async fn directories(&self, request: Request<DirectoriesRequest>) -> Result<Response<DirectoriesResponse>, Status> {
        let request = request.into_inner();
        let result = match self.groups.node(request.group) {
            Ok(node) => directories::directories(&node, &request).await,
            Err(e) => Err(e),
        };
        let (outcome, parts) = (Some(outcome_of_result(&result)), SLICES as u32);
        Ok(Response::new(DirectoriesResponse { outcome, directories: result.unwrap_or_default(), parts }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let first = || self.groups.all().next().filter(|_| request.get_ref().group == 0);
        let asked = self.groups.replica(request.get_ref().group).ok().or_else(first);
        let replica = asked.ok_or_else(|| Status::not_found("this process has no replica of that group"))?;
        let (identity, node) = replica.current();
        let mut response = StatusResponse { node_id: identity.node_id, ..StatusResponse::default() };
        response.group = replica.group as u32;
        response.groups = self.groups.all().map(|replica| replica.group as u32).collect();
        response.role = "empty".into();
        response.resident_bytes = resident_bytes();
        response.cluster_id = identity.cluster_id.unwrap_or_default();
        if let Some(node) = node {
            fill_status(&node, &mut response);
        }
        Ok(Response::new(response))
    }
}

/// What a replica is in its group.
pub(super) fn role(state: ServerState) -> &'static str {
    match state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner | ServerState::Shutdown => "learner",
    }
}

fn fill_status(node: &Node, response: &mut StatusResponse) {
    // A copy: whoever holds the original while it asks for another one deadlocks with its writer.
    let metrics = node.raft.metrics().borrow_watched().clone();
    response.role = role(metrics.state).into();
    response.term = metrics.current_term;
    let membership = metrics.membership_config.membership();
    response.leader_id = metrics.current_leader.unwrap_or(0);
    let leader = metrics.current_leader.and_then(|id| membership.get_node(&id));
    response.leader_address = leader.map(|n| n.addr.clone()).unwrap_or_default();
    response.committed_index = metrics.local_committed.map_or(0, |id| id.index);
    let voters: Vec<u64> = membership.voter_ids().collect();
    response.members = membership
        .nodes()
        .map(|(id, n)| format!("{id}@{} {}", n.addr, if voters.contains(id) { "voter" } else { "learner" }))
        .collect();
    let positions = *node.state.positions().borrow();
    response.applied_index = positions.applied_end.saturating_sub(1);
    response.ready = positions.is_serving && node.has_working_leader();
    response.streaming = node.stream.is_streaming();
    response.waiters = node.waiters() as u64;
    let (reads, cache) = (node.reads.counters(), node.state.cache.counters());
    response.lookups = reads.paths.load(Ordering::Relaxed);
    response.read_index_batches = reads.batches.load(Ordering::Relaxed);
    response.read_index_requests = reads.requests.load(Ordering::Relaxed);
    response.cache_hits = cache.hits.load(Ordering::Relaxed);
    response.cache_lookups =
        response.cache_hits + cache.misses.load(Ordering::Relaxed) + cache.bypasses.load(Ordering::Relaxed);
    response.interruption = node.stream.interruption().unwrap_or_default();
    let state = node.state.read();
    response.epoch = state.index.epoch().0;
    response.directories = state.index.directories() as u64;
    response.index_bytes = state.index.heap_bytes() as u64;
    response.locks = state.index.locks().len() as u64;
    let received = node.stream.received();
    response.sources = state
        .index
        .sources()
        .map(|(id, source)| {
            let received = received.get(&id).copied().unwrap_or_default();
            let applied_lsn = source.applied.0.saturating_add(1);
            proto::SourceStatus {
                lineage: Some(lineage(id, &source.lineage)),
                applied_lsn,
                received_lsn: received.received.0,
                released_lsn: received.released.0,
                lag_bytes: received.received.0.saturating_sub(applied_lsn),
                unprotected: received.is_unprotected,
            }
        })
        .collect();
    let first = response.sources.first();
    (response.applied_lsn, response.received_lsn) = first.map_or((0, 0), |s| (s.applied_lsn, s.received_lsn));
}
