//! The work of a leading replica: rebuilds the index when needed, reads the change streams, lets rename locks expire.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::{
    assignments,
    connections::{self, SourceConnection, SourceConnections},
    continuity::RebuildReason,
    problems,
    rebuild::rebuild,
    recovery::{self, recover},
    rename_locks,
    stream::Stream,
};
use crate::{
    index::command::Command,
    membership::{self, view},
    node::{Leadership, Node, NodeEnd},
    postgres::upstream::{Database, IndexGroup},
    raft::read_index::raft_read_index,
};

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Runs for the life of a node, and works whenever the node leads. Ends only when the node has to be reset.
pub async fn run(node: Arc<Node>, database: Database) -> NodeEnd {
    loop {
        let leadership = node.wait_leadership().await;
        tracing::info!(term = leadership.term, "this replica leads its group");
        tokio::select! {
            end = run_term(&node, &leadership, &database) => return end,
            () = node.wait_leadership_lost(&leadership) => {
                tracing::info!(term = leadership.term, "this replica no longer leads");
            }
        }
        *node.stream.interruption.lock() = None;
        node.problems.lock().clear();
    }
}

async fn run_term(node: &Arc<Node>, leadership: &Leadership, database: &Database) -> NodeEnd {
    let streaming = async {
        let mut retry = RETRY_MIN;
        let mut must_rebuild = None;
        loop {
            match run_session(node, leadership, database, &mut must_rebuild).await {
                Ok(Some(end)) => return end,
                Ok(None) => retry = RETRY_MIN,
                Err(e) => {
                    let why = format!("{e:#}");
                    tracing::warn!(error = why, "the change stream is interrupted");
                    *node.stream.interruption.lock() = Some(why);
                    sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
        }
    };
    tokio::select! {
        end = streaming => end,
        () = rename_locks::expire(node, leadership, database) => unreachable!("runs for the whole term"),
        () = problems::watch(node, database) => unreachable!("runs for the whole term"),
        () = membership::join::finish_changes(node) => unreachable!("runs for the whole term"),
    }
}

/// One session with PostgreSQL. Ends with an error; or with `None` when a rebuild has ended, one is needed, or an unreachable
/// PostgreSQL node is back; or with a reason to leave the cluster.
async fn run_session(
    node: &Arc<Node>,
    leadership: &Leadership,
    database: &Database,
    must_rebuild: &mut Option<RebuildReason>,
) -> Result<Option<NodeEnd>> {
    // A new leader applies the first entry of its own term before it touches the slot (P4).
    let read_index = raft_read_index(&node.raft).await.map_err(|e| anyhow::anyhow!("{e}"))?;
    node.state.wait_applied(read_index).await;

    let control = database.connect().await?;
    let mut group = control.index_group().await?;
    if let Some(end) = check_abandoned(node, &group).await? {
        return Ok(Some(end));
    }
    let connections = connections::connect(node, database, &*control, &group.slot_name).await?;
    if let Some(reason) = reason_to_rebuild(node, &group, &connections, must_rebuild.take()) {
        if node.state.read().index.is_built() {
            tracing::warn!(%reason, "rebuilding the index");
        } else {
            tracing::info!(%reason, "building the index");
        }
        // In doubt, the served index may lack changes that lookups have shown.
        let is_diverged = reason.is_diverged || node.is_in_doubt(leadership);
        *must_rebuild = Some(reason);
        ensure!(connections.away.is_empty(), "the copy waits for a PostgreSQL node that is away");
        rebuild(node, leadership, &control, &group, connections.connected, is_diverged).await.context("rebuild")?;
        *must_rebuild = None;
        return Ok(None);
    }
    follow_timelines(node, leadership, &connections.connected).await?;
    recover(node, leadership, &*control, &mut group, &connections).await?;
    assignments::restrict(node, leadership, &*control).await?;
    let stream = Stream::start(node, leadership, &control, (database, &group), connections).await?;
    tokio::select! {
        ended = stream.run() => *must_rebuild = ended?,
        () = recovery::reach(node) => unreachable!("never returns"),
    }
    Ok(None)
}

/// Records that a source is on a newer timeline, whose history contains everything that was applied.
async fn follow_timelines(node: &Node, leadership: &Leadership, connections: &[SourceConnection]) -> Result<()> {
    for connection in connections {
        let timeline = connection.server.lineage.timeline;
        let Some(known) = connection.known.filter(|known| known.lineage.timeline != timeline) else { continue };
        tracing::info!(source = connection.id.0, timeline, applied = %known.applied, "following PostgreSQL to a new timeline");
        node.propose_as(leadership, &Command::FollowTimeline { source: connection.id, timeline }).await?;
    }
    Ok(())
}

/// Checks whether PostgreSQL names another cluster. If that cluster has a leader, this one is abandoned and its state is
/// worthless. If not (PostgreSQL was restored), this cluster takes over by raising the epoch.
async fn check_abandoned(node: &Node, group: &IndexGroup) -> Result<Option<NodeEnd>> {
    let Some(recorded) = group.cluster_id.as_ref().filter(|id| **id != node.cluster_id) else { return Ok(None) };
    let views = view::poll(&node.config, node.group, &node.peers, None).await;
    if membership::leader_of(&views, recorded).is_some() {
        tracing::warn!(%recorded, "PostgreSQL names another cluster, and it has a leader: leaving this one");
        return Ok(Some(NodeEnd::Reset(None)));
    }
    Ok(None)
}

fn reason_to_rebuild(
    node: &Node,
    group: &IndexGroup,
    connections: &SourceConnections,
    known: Option<RebuildReason>,
) -> Option<RebuildReason> {
    let (is_built, is_rebuilding, epoch) = {
        let state = node.state.read();
        (state.index.is_built(), state.index.is_rebuilding(), state.index.epoch())
    };
    let history = connections::check(node, connections).err();
    // Independent of the reason: whether the served index may have changes that PostgreSQL lost.
    let is_set_back = is_built && (group.epoch < epoch || group.cluster_id.as_deref() != Some(&node.cluster_id));
    let is_diverged = is_set_back || [&history, &known].into_iter().flatten().any(|reason| reason.is_diverged);
    let text = if let Some(reason) = known {
        reason.text
    } else if group.cluster_id.as_deref() != Some(&node.cluster_id) {
        "PostgreSQL does not know this cluster".to_owned()
    } else if is_rebuilding {
        "a rebuild was not finished".to_owned()
    } else if !is_built {
        "the index is empty".to_owned()
    } else if group.epoch != epoch {
        format!("the epoch is {}, the index has {epoch}", group.epoch)
    } else {
        history?.text
    };
    Some(RebuildReason { text, is_diverged })
}
