//! The index service for gateways.
//!
//! Invariant: on any replica, a lookup reflects every change that was acknowledged before it arrived: the replica takes a read
//! index, and answers when it has applied at least that entry.

use std::sync::Arc;

use futures::{FutureExt, stream::BoxStream};
use mantle_index_client::{
    outcome_of_result,
    proto::{
        AwaitRequest, AwaitResponse, AwaitsRequest, AwaitsResponse, ChangeMemberRequest, ChangeMemberResponse,
        DirectoriesRequest, DirectoriesResponse, MembersRequest, MembersResponse, Outcome, PrepareRenameRequest,
        PrepareRenameResponse, PrepareRenamesRequest, PrepareRenamesResponse, ReleaseRenameRequest,
        ReleaseRenameResponse, ResolveRequest, ResolveResponse, StatusRequest, StatusResponse,
        index_server::Index as IndexRpc,
    },
};
use mantle_types::{GroupId, Result};
use tonic::{Request, Response, Status, Streaming};

use super::{
    awaits, calls, directories, rename,
    request::{outcome_of, time_limit},
    resolve, status,
};
use crate::{groups::Groups, index::SLICES, membership::admin, postgres::upstream::Database};

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

    /// As [`outcome_of`].
    fn outcome<T>(&self, group: GroupId, result: &Result<T>) -> Option<Outcome> {
        Some(outcome_of(&self.groups, group, result))
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
        Ok(Response::new(rename::answer(&self.groups, request.into_inner()).await))
    }

    type PrepareRenamesStream = BoxStream<'static, Result<PrepareRenamesResponse, Status>>;

    async fn prepare_renames(
        &self,
        requests: Request<Streaming<PrepareRenamesRequest>>,
    ) -> Result<Response<Self::PrepareRenamesStream>, Status> {
        let groups = self.groups.clone();
        let answer = move |request| {
            let groups = groups.clone();
            async move { rename::answer(&groups, request).await }.boxed()
        };
        Ok(Response::new(calls::answers(requests.into_inner(), answer)))
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
        let answer = awaits::answer(&self.groups, request.into_inner()).await;
        // i64, because OpenTelemetry has no unsigned numbers and would record text.
        tracing::Span::current().record("applied_index", answer.applied_index as i64);
        Ok(Response::new(answer))
    }

    type AwaitsStream = BoxStream<'static, Result<AwaitsResponse, Status>>;

    async fn awaits(&self, request: Request<Streaming<AwaitsRequest>>) -> Result<Response<Self::AwaitsStream>, Status> {
        let groups = self.groups.clone();
        let answer = move |request| {
            let groups = groups.clone();
            async move { awaits::answer(&groups, request).await }.boxed()
        };
        Ok(Response::new(calls::answers(request.into_inner(), answer)))
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
