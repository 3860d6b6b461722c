//! What a replica does while it leads: rebuild when needed, read the change stream, look after rename locks.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::{
    assignments,
    connections::{self, SourceConnection, SourceConnections},
    continuity::Reason,
    rebuild::rebuild,
    rename_locks,
    stream::Stream,
};
use crate::{
    index::command::Command,
    membership::{self, view},
    node::{Leadership, Node, NodeEnd},
    postgres::upstream::{Database, IndexGroup},
};

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Runs for the life of a node: leads whenever it is the leader. Ends only when the node has to be reset.
pub async fn run(node: Arc<Node>, database: Database) -> NodeEnd {
    loop {
        let leadership = node.wait_leadership().await;
        tracing::info!(term = leadership.term, "this replica leads its group");
        tokio::select! {
            end = lead(&node, &leadership, &database) => return end,
            () = node.wait_leadership_lost(&leadership) => {
                tracing::info!(term = leadership.term, "this replica no longer leads");
            }
        }
        node.stream.set_interruption(None);
    }
}

async fn lead(node: &Arc<Node>, leadership: &Leadership, database: &Database) -> NodeEnd {
    let streaming = async {
        let mut retry = RETRY_MIN;
        let mut must_rebuild = None;
        loop {
            match session(node, leadership, database, &mut must_rebuild).await {
                Ok(Some(end)) => return end,
                Ok(None) => retry = RETRY_MIN,
                Err(e) => {
                    let why = format!("{e:#}");
                    tracing::warn!(error = why, "the change stream is interrupted");
                    node.stream.set_interruption(Some(why));
                    sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
        }
    };
    tokio::select! {
        end = streaming => end,
        () = rename_locks::expire(node, leadership, database) => unreachable!("locks are looked after for the whole term"),
        () = membership::join::finish_changes(node) => unreachable!("so is the membership"),
    }
}

/// One session with PostgreSQL: until an error, the end of a rebuild, a reason for one or a node's return (then `None`), or a
/// reason to leave the cluster.
async fn session(
    node: &Arc<Node>,
    leadership: &Leadership,
    database: &Database,
    must_rebuild: &mut Option<Reason>,
) -> Result<Option<NodeEnd>> {
    // A new leader applies through its own term's first entry before it touches the slot (P4).
    let read_index = node.reads.read_index().await.map_err(|e| anyhow::anyhow!("{e}"))?;
    node.state.wait_applied(read_index).await;

    let control = database.connect().await?;
    let group = control.index_group().await?;
    if let Some(end) = check_abandoned(node, &group).await? {
        return Ok(Some(end));
    }
    let feeds = connections::connect(node, database, &*control, &group.slot_name).await?;
    if let Some(reason) = reason_to_rebuild(node, &group, &feeds, must_rebuild.take()) {
        if node.state.read().index.is_built() {
            tracing::warn!(%reason, "rebuilding the index");
        } else {
            tracing::info!(%reason, "building the index");
        }
        let is_diverged = reason.is_diverged;
        *must_rebuild = Some(reason);
        ensure!(feeds.away.is_empty(), "the copy waits for a PostgreSQL node that is away");
        rebuild(node, leadership, &control, &group, feeds.connected, is_diverged).await.context("rebuild")?;
        *must_rebuild = None;
        return Ok(None);
    }
    follow_timelines(node, leadership, &feeds.connected).await?;
    assignments::restrict(node, leadership, &*control).await?;
    let stream = Stream::start(node, leadership, &control, (database, &group), feeds).await?;
    *must_rebuild = stream.run().await?;
    Ok(None)
}

/// Records that a source is on a newer timeline than it was, which holds all that was applied.
async fn follow_timelines(node: &Node, leadership: &Leadership, feeds: &[SourceConnection]) -> Result<()> {
    for feed in feeds {
        let timeline = feed.server.lineage.timeline;
        let Some(known) = feed.known.filter(|known| known.lineage.timeline != timeline) else { continue };
        tracing::info!(source = feed.id.0, timeline, applied = %known.applied, "following PostgreSQL to a new timeline");
        node.propose_as(leadership, &Command::FollowTimeline { source: feed.id, timeline }).await?;
    }
    Ok(())
}

/// PostgreSQL names another cluster: if that one lives, this one was abandoned and its state is worth nothing; if not
/// (PostgreSQL was restored), this cluster takes over by raising the epoch.
async fn check_abandoned(node: &Node, group: &IndexGroup) -> Result<Option<NodeEnd>> {
    let Some(recorded) = group.cluster_id.as_ref().filter(|id| **id != node.cluster_id) else { return Ok(None) };
    let views = view::poll(&node.config, node.group, &node.peers, None).await;
    if membership::leader_of(&views, recorded).is_some() {
        tracing::warn!(%recorded, "PostgreSQL names another cluster, and it has a leader: leaving this one");
        return Ok(Some(NodeEnd::Reset));
    }
    Ok(None)
}

fn reason_to_rebuild(
    node: &Node,
    group: &IndexGroup,
    feeds: &SourceConnections,
    known: Option<Reason>,
) -> Option<Reason> {
    let (is_built, is_rebuilding, epoch) = {
        let state = node.state.read();
        (state.index.is_built(), state.index.is_rebuilding(), state.index.epoch())
    };
    let history = connections::check(node, feeds).err();
    // Whatever else is the matter: does what is served hold only what PostgreSQL has?
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
    Some(Reason { text, is_diverged })
}
