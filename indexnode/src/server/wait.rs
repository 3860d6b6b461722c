//! `Await`: answers once a change is applied.

use std::time::Duration;

use mantle_types::{Error, ErrorCode, Lsn, RequestKey, Result};
use tokio::time::timeout;

use crate::node::{Leadership, Node};

/// Longest wait; callers that want more ask again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Waits, on the leader, for a request's change.
pub async fn request(node: &Node, request: RequestKey, limit: Duration) -> Result<()> {
    let leadership = node.leadership().ok_or_else(|| node.not_leader())?;
    let Some(mut wait) = node.state.requests.wait(request)? else { return Ok(()) };
    bounded(node, &leadership, limit, wait.done()).await
}

/// Waits, on the leader, until everything committed below a position is applied.
pub async fn position(node: &Node, lsn: Lsn, limit: Duration) -> Result<()> {
    let leadership = node.leadership().ok_or_else(|| node.not_leader())?;
    let mut positions = node.state.positions();
    if positions.borrow_and_update().source_end >= lsn {
        return Ok(());
    }
    let _want = node.stream.want(lsn)?;
    let reached = async {
        // The sender lives as long as the node.
        let _ = positions.wait_for(|p| p.source_end >= lsn).await;
    };
    bounded(node, &leadership, limit, reached).await
}

async fn bounded(node: &Node, leadership: &Leadership, limit: Duration, done: impl Future<Output = ()>) -> Result<()> {
    let limited = timeout(limit.min(WAIT_MAX), done);
    tokio::select! {
        biased;
        result = limited => result.map_err(|_| Error::from(ErrorCode::AwaitTimeout)),
        () = node.wait_leadership_lost(leadership) => Err(node.not_leader()),
    }
}
