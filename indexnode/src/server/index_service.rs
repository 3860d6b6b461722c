//! The index service for gateways.
//!
//! Invariant: on any replica, a lookup reflects every change that was acknowledged before it arrived: the replica takes a read
//! index, and answers when it has applied at least that entry.

use std::sync::Arc;

use futures::stream::BoxStream;
use mantle_index_client::{
    outcome_of_result,
    proto::{
        AwaitRequest, AwaitResponse, ChangeMemberRequest, ChangeMemberResponse, DirectoriesRequest,
        DirectoriesResponse, MembersRequest, MembersResponse, Outcome, PrepareRenameRequest, PrepareRenameResponse,
        ReleaseRenameRequest, ReleaseRenameResponse, ResolveRequest, ResolveResponse, StatusRequest, StatusResponse,
        await_request::What, index_server::Index as IndexRpc,
    },
};
use mantle_types::{Error, ErrorCode, GroupId, Lsn, RequestKey, Result};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::{directories, metrics, rename, request::time_limit, resolve, status};
use crate::{
    groups::Groups,
    index::{SLICES, command::SourceId},
    membership::admin,
    node::Node,
    postgres::upstream::Database,
    waits,
};

/// The index service of one process.
pub struct IndexService {
    groups: Arc<Groups>,
}

impl IndexService {
    /// The service over the replicas of the process.
    pub fn new(groups: Arc<Groups>) -> Self {
        Self { groups }
    }

    fn database(&self, group: GroupId) -> Result<&Database> {
        Ok(&self.groups.replica(group)?.database)
    }

    /// The outcome of a leader's call; `not_leader` has the leader's address.
    fn outcome<T>(&self, group: GroupId, result: &Result<T>) -> Option<Outcome> {
        let mut outcome = outcome_of_result(result);
        if result.as_ref().is_err_and(|e| e.code() == ErrorCode::NotLeader)
            && let Some((_, address)) = self.groups.node(group).ok().and_then(|node| node.leader())
        {
            outcome.leader_address = address;
        }
        Some(outcome)
    }
}

async fn await_change(node: &Node, request: AwaitRequest) -> Result<()> {
    let limit = time_limit(request.timeout_ms);
    match request.what {
        Some(What::Request(key)) => waits::request(node, RequestKey::try_from(key)?, limit).await,
        Some(What::Lsn(lsn)) => waits::position(node, SourceId(request.source), Lsn(lsn), limit).await,
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
        let group = GroupId(request.group);
        let prepared = async { rename::prepare(&self.groups.node(group)?, self.database(group)?, request).await };
        let result = prepared.await;
        let outcome = self.outcome(group, &result);
        Ok(Response::new(PrepareRenameResponse { outcome, ..result.unwrap_or_default() }))
    }

    async fn release_rename(
        &self,
        request: Request<ReleaseRenameRequest>,
    ) -> Result<Response<ReleaseRenameResponse>, Status> {
        let request = request.into_inner();
        let group = GroupId(request.group);
        let released = async { rename::release(&*self.groups.node(group)?, self.database(group)?, request).await };
        Ok(Response::new(ReleaseRenameResponse { outcome: self.outcome(group, &released.await) }))
    }

    async fn r#await(&self, request: Request<AwaitRequest>) -> Result<Response<AwaitResponse>, Status> {
        let started = Instant::now();
        let request = request.into_inner();
        let group = GroupId(request.group);
        let node = self.groups.node(group);
        let result = match &node {
            Ok(node) => await_change(node, request).await,
            Err(e) => Err(e.clone()),
        };
        metrics::count_await(group, started.elapsed(), result.is_ok());
        let applied_end = node.map_or(0, |node| node.state.positions().borrow().applied_end);
        let applied_index = applied_end.saturating_sub(1);
        // i64, because OpenTelemetry has no unsigned numbers and would record text.
        tracing::Span::current().record("applied_index", applied_index as i64);
        Ok(Response::new(AwaitResponse { outcome: self.outcome(group, &result), applied_index }))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Result<Response<MembersResponse>, Status> {
        let group = GroupId(request.get_ref().group);
        let result = self.groups.node(group).and_then(|node| admin::members(&node));
        let outcome = self.outcome(group, &result);
        Ok(Response::new(MembersResponse { outcome, members: result.unwrap_or_default() }))
    }

    async fn change_member(
        &self,
        request: Request<ChangeMemberRequest>,
    ) -> Result<Response<ChangeMemberResponse>, Status> {
        let request = request.into_inner();
        let group = GroupId(request.group);
        let (change, limit) = (request.change(), time_limit(request.timeout_ms));
        let changed = async { admin::change(&*self.groups.node(group)?, &request.member, change, limit).await };
        Ok(Response::new(ChangeMemberResponse { outcome: self.outcome(group, &changed.await) }))
    }

    async fn directories(&self, request: Request<DirectoriesRequest>) -> Result<Response<DirectoriesResponse>, Status> {
        let request = request.into_inner();
        let read = async { directories::directories(&*self.groups.node(GroupId(request.group))?, &request).await };
        let result = read.await;
        let (outcome, parts) = (Some(outcome_of_result(&result)), SLICES as u32);
        Ok(Response::new(DirectoriesResponse { outcome, directories: result.unwrap_or_default(), parts }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let group = GroupId(request.get_ref().group);
        let first = || self.groups.all().next().filter(|_| group == GroupId::ONLY);
        let asked = self.groups.replica(group).ok().or_else(first);
        let replica = asked.ok_or_else(|| Status::not_found("this process has no replica of that group"))?;
        Ok(Response::new(status::status(&self.groups, replica)))
    }
}
