//! The index service for gateways.
//!
//! Invariant: an answered lookup reflects every change that was acknowledged before it arrived, on whichever replica
//! (read index first, then the index as of at least that entry).

use std::{sync::Arc, time::Duration};

use mantle_index_client::{
    outcome_of, outcome_of_result,
    proto::{
        AwaitRequest, AwaitResponse, Outcome, PrepareRenameRequest, PrepareRenameResponse, ReleaseRenameRequest,
        ReleaseRenameResponse, ResolveQuery, ResolveRequest, ResolveResponse, Resolved, StatusRequest, StatusResponse,
        await_request::What, index_server::Index as IndexRpc,
    },
};
use mantle_types::{Caller, Error, ErrorCode, Lsn, RequestKey, Result, limits::PATH_DEPTH_MAX};
use openraft::{ServerState, async_runtime::watch::WatchReceiver};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Request, Response, Status};

use super::{http::resident_bytes, rename, wait};
use crate::{
    failpoints::{self, Failpoint},
    index::Index,
    node::Node,
    replica::Replica,
};

/// Most queries in one request.
const QUERIES_MAX: usize = 4096;
/// The index's lock is given back after this many lookups, so that apply gets in.
const QUERIES_PER_LOCK: usize = 64;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// While there is no leader, the next is looked for this often.
const LEADER_RETRY: Duration = Duration::from_millis(10);

/// The service of one process.
pub struct IndexService {
    replica: Arc<Replica>,
}

impl IndexService {
    /// A service for a process.
    pub fn new(replica: Arc<Replica>) -> Self {
        Self { replica }
    }

    fn node(&self) -> Result<Arc<Node>> {
        let empty = || Error::new(ErrorCode::IndexUnavailable, "this replica belongs to no cluster yet");
        self.replica.node().ok_or_else(empty)
    }

    /// An outcome for the leader's calls: `not_leader` says who leads.
    fn outcome<T>(&self, result: &Result<T>) -> Option<Outcome> {
        let mut outcome = outcome_of_result(result);
        if result.as_ref().is_err_and(|e| e.code() == ErrorCode::NotLeader)
            && let Some((_, address)) = self.replica.node().and_then(|node| node.leader())
        {
            outcome.leader_address = address;
        }
        Some(outcome)
    }
}

fn limit(timeout_ms: u32) -> Duration {
    match timeout_ms {
        0 => TIMEOUT_DEFAULT,
        ms => Duration::from_millis(u64::from(ms)).min(TIMEOUT_MAX),
    }
}

/// Waits until this replica has applied everything that was committed when the call began.
async fn catch_up(node: &Node, deadline: Instant) -> Result<()> {
    let late = || Error::new(ErrorCode::IndexUnavailable, "this replica cannot reach the leader, or is far behind it");
    let caught_up = async {
        loop {
            match node.reads.read_index().await {
                Ok(_) if failpoints::is_hit(Failpoint::LookupBeforeApply) => return,
                Ok(log_index) => return node.state.wait_applied(log_index).await,
                Err(e) => tracing::debug!(error = %e, "no read index"),
            }
            sleep(LEADER_RETRY).await;
        }
    };
    timeout_at(deadline, caught_up).await.map_err(|_| late())
}

async fn resolve(node: &Node, request: &ResolveRequest, response: &mut ResolveResponse) -> Result<()> {
    let deadline = Instant::now() + limit(request.timeout_ms);
    if request.queries.len() > QUERIES_MAX {
        return Err(Error::new(ErrorCode::BatchTooLarge, format!("at most {QUERIES_MAX} queries are allowed")));
    }
    let unavailable = || Error::new(ErrorCode::IndexUnavailable, "this replica has no index yet");
    if !node.state.positions().borrow().is_serving {
        return Err(unavailable());
    }
    catch_up(node, deadline).await?;
    response.results.reserve(request.queries.len());
    for queries in request.queries.chunks(QUERIES_PER_LOCK) {
        let state = node.state.read();
        let epoch = state.index.epoch();
        response.epoch = epoch.0;
        if request.epoch != 0 && request.epoch != epoch.0 {
            return Err(Error::new(ErrorCode::StaleEpoch, format!("the index has epoch {epoch}")));
        }
        if !state.index.is_serving() {
            return Err(unavailable());
        }
        response.results.extend(queries.iter().map(|query| resolve_one(&state.index, query)));
    }
    Ok(())
}

fn resolve_one(index: &Index, query: &ResolveQuery) -> Resolved {
    let caller = query.caller.clone().map(Caller::from);
    let (Some(caller), true) = (caller, query.components.len() <= PATH_DEPTH_MAX) else {
        let error = Error::new(ErrorCode::InvalidArgument, "a query has no caller, or too many components");
        return Resolved { outcome: Some(outcome_of(&error)), ..Resolved::default() };
    };
    let mut components = [""; PATH_DEPTH_MAX];
    for (slot, component) in components.iter_mut().zip(&query.components) {
        *slot = component;
    }
    let resolution = index.resolve(&query.namespace, &components[..query.components.len()], &caller);
    Resolved {
        outcome: Some(match resolution.outcome {
            Ok(()) => Outcome::default(),
            Err(code) => outcome_of(&Error::new(code, "")),
        }),
        ns: resolution.ns.0,
        id: resolution.id.0,
        depth: resolution.depth as u32,
        parent_id: resolution.parent_id.0,
        permission: Some(resolution.permission.into()),
        version: resolution.version,
        crossed_lock: resolution.crossed_lock,
    }
}

async fn await_change(node: &Node, request: AwaitRequest) -> Result<()> {
    let limit = limit(request.timeout_ms);
    match request.what {
        Some(What::Request(key)) => wait::request(node, RequestKey::try_from(key)?, limit).await,
        Some(What::Lsn(lsn)) => wait::position(node, Lsn(lsn), limit).await,
        None => Err(Error::new(ErrorCode::InvalidArgument, "nothing to wait for")),
    }
}

#[tonic::async_trait]
impl IndexRpc for IndexService {
    async fn resolve(&self, request: Request<ResolveRequest>) -> Result<Response<ResolveResponse>, Status> {
        let started = Instant::now();
        let request = request.get_ref();
        let mut response = ResolveResponse::default();
        let result = match self.node() {
            Ok(node) => resolve(&node, request, &mut response).await,
            Err(e) => Err(e),
        };
        if result.is_err() {
            response.results.clear();
        }
        response.outcome = Some(outcome_of_result(&result));
        self.replica.metrics.lookups(request.queries.len(), started.elapsed(), result.is_ok());
        Ok(Response::new(response))
    }

    async fn prepare_rename(
        &self,
        request: Request<PrepareRenameRequest>,
    ) -> Result<Response<PrepareRenameResponse>, Status> {
        let result = match self.node() {
            Ok(node) => rename::prepare(&node, &self.replica.database, request.into_inner()).await,
            Err(e) => Err(e),
        };
        let outcome = self.outcome(&result);
        let response = result.map(rename::response).unwrap_or_default();
        Ok(Response::new(PrepareRenameResponse { outcome, ..response }))
    }

    async fn release_rename(
        &self,
        request: Request<ReleaseRenameRequest>,
    ) -> Result<Response<ReleaseRenameResponse>, Status> {
        let result = match self.node() {
            Ok(node) => rename::release(&node, &self.replica.database, request.into_inner()).await,
            Err(e) => Err(e),
        };
        Ok(Response::new(ReleaseRenameResponse { outcome: self.outcome(&result) }))
    }

    async fn r#await(&self, request: Request<AwaitRequest>) -> Result<Response<AwaitResponse>, Status> {
        let started = Instant::now();
        let node = self.node();
        let result = match &node {
            Ok(node) => await_change(node, request.into_inner()).await,
            Err(e) => Err(e.clone()),
        };
        self.replica.metrics.awaited(started.elapsed(), result.is_ok());
        let applied_end = node.map_or(0, |node| node.state.positions().borrow().applied_end);
        let applied_index = applied_end.saturating_sub(1);
        Ok(Response::new(AwaitResponse { outcome: self.outcome(&result), applied_index }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let (identity, node) = self.replica.current();
        let mut response = StatusResponse { node_id: identity.node_id, ..StatusResponse::default() };
        response.role = "empty".into();
        response.resident_bytes = resident_bytes();
        response.cluster_id = identity.cluster_id.unwrap_or_default();
        if let Some(node) = node {
            fill_status(&node, &mut response);
        }
        Ok(Response::new(response))
    }
}

fn fill_status(node: &Node, response: &mut StatusResponse) {
    // A copy: whoever holds the original while it asks for another one deadlocks with its writer.
    let metrics = node.raft.metrics().borrow_watched().clone();
    response.role = match metrics.state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner | ServerState::Shutdown => "learner",
    }
    .into();
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
    response.applied_lsn = positions.source_end.0;
    response.ready = positions.is_serving && node.has_working_leader();
    response.received_lsn = node.stream.received().0;
    response.streaming = node.stream.is_streaming();
    let state = node.state.read();
    response.epoch = state.index.epoch().0;
    response.directories = state.index.directories() as u64;
    response.index_bytes = state.index.heap_bytes() as u64;
    response.locks = state.index.locks().len() as u64;
}
