//! Waits, on the leader, until a change is applied: the change of a request, or everything below a position.

use std::time::Duration;

use mantle_types::{Error, ErrorCode, Lsn, RequestKey, Result};
use tokio::time::timeout;

use crate::{
    index::command::SourceId,
    node::{Leadership, Node},
    raft::state::end_of,
};

/// Longest wait; a caller that needs longer repeats the call.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Waits until the change of a request is applied. `stale_epoch`: the index was rebuilt meanwhile, and its copy may have the
/// change; the caller has to wait for a position.
pub async fn request(node: &Node, request: RequestKey, limit: Duration) -> Result<()> {
    let leadership = node.leadership().ok_or_else(|| node.not_leader())?;
    let Some(mut wait) = node.state.requests.wait(request)? else { return Ok(()) };
    let is_applied = bounded(node, &leadership, limit, wait.done()).await?;
    let rebuilt = || Error::new(ErrorCode::StaleEpoch, "the index was rebuilt: wait for a position");
    is_applied.then_some(()).ok_or_else(rebuilt)
}

/// Waits until everything that a source committed below a position is applied.
pub async fn position(node: &Node, source: SourceId, lsn: Lsn, limit: Duration) -> Result<()> {
    let leadership = node.leadership().ok_or_else(|| node.not_leader())?;
    let mut ends = node.state.source_ends();
    if end_of(&ends.borrow_and_update(), source) >= lsn {
        return Ok(());
    }
    let _want = node.stream.want(source, lsn)?;
    let reached = async {
        // The sender lives as long as the node.
        let _ = ends.wait_for(|ends| end_of(ends, source) >= lsn).await;
    };
    bounded(node, &leadership, limit, reached).await
}

async fn bounded<T>(node: &Node, leadership: &Leadership, limit: Duration, done: impl Future<Output = T>) -> Result<T> {
    let limited = timeout(limit.min(WAIT_MAX), done);
    tokio::select! {
        biased;
        result = limited => result.map_err(|_| Error::from(ErrorCode::AwaitTimeout)),
        () = node.wait_leadership_lost(leadership) => Err(node.not_leader()),
    }
}
