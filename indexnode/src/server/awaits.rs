//! `Await`: waits until a change, or a position, is applied.

use mantle_index_client::proto::{AwaitRequest, AwaitResponse, await_request::What};
use mantle_types::{Error, ErrorCode, GroupId, Lsn, RequestKey, Result};
use tokio::time::Instant;

use super::{
    metrics,
    request::{outcome_of, time_limit},
};
use crate::{groups::Groups, index::command::SourceId, node::Node, waits};

/// Answers one wait.
pub async fn answer(groups: &Groups, request: AwaitRequest) -> AwaitResponse {
    let started = Instant::now();
    let group = GroupId(request.group);
    let node = groups.node(group);
    let result = match &node {
        Ok(node) => await_change(node, request).await,
        Err(e) => Err(e.clone()),
    };
    metrics::count_await(group, started.elapsed(), result.is_ok());
    let applied_end = node.map_or(0, |node| node.state.positions().borrow().applied_end);
    AwaitResponse { outcome: Some(outcome_of(groups, group, &result)), applied_index: applied_end.saturating_sub(1) }
}

async fn await_change(node: &Node, request: AwaitRequest) -> Result<()> {
    let limit = time_limit(request.timeout_ms);
    match request.what {
        Some(What::Request(key)) => waits::request(node, RequestKey::try_from(key)?, limit).await,
        Some(What::Lsn(lsn)) => waits::position(node, SourceId(request.source), Lsn(lsn), limit).await,
        None => Err(Error::new(ErrorCode::InvalidArgument, "nothing to wait for")),
    }
}
