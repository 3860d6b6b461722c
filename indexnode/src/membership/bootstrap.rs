//! Bootstrap: an empty replica chooses or founds its cluster, and a member whose cluster is gone becomes empty again.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use mantle_types::GroupId;
use openraft::BasicNode;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{
    Decision, can_have_quorum, clusters, decide, leader_of,
    view::{self, View},
};
use crate::{
    config::Config,
    node::{Node, NodeEnd},
    postgres::upstream::Database,
    raft::{
        identity::{DataDir, Identity},
        peers::Peers,
    },
};

const POLL: Duration = Duration::from_millis(250);
/// A member without a leader for this long checks whether its cluster is gone.
const LEADERLESS: Duration = Duration::from_secs(3);

/// Chooses or founds a cluster for an empty data directory; the choice is durable when this returns.
pub async fn find_cluster(
    (config, group): (&Config, GroupId),
    folder: &DataDir,
    identity: Identity,
    peers: &Peers,
    database: &Database,
) -> Result<Identity> {
    let mut last_reason = String::new();
    loop {
        let own = View { address: config.listen.clone(), node_id: identity.node_id, ..View::default() };
        let views = view::poll(config, group, peers, Some(own)).await;
        let chosen = match decide(&config.listen, &config.peers, &views) {
            Decision::Join(clusters) => choose(clusters, database).await.map(|id| (id, false)),
            Decision::Found if config.learner => Err(anyhow!("a learner founds no cluster")),
            Decision::Found => claim(database).await.map(|id| (id, true)),
            Decision::Wait(reason) => Err(anyhow!(reason)),
        };
        let reason = match chosen {
            Ok((cluster_id, is_founder)) => {
                let what = if is_founder { "founding a cluster" } else { "joining a cluster" };
                tracing::info!(%cluster_id, node_id = identity.node_id, "{what}");
                let chosen = Identity { cluster_id: Some(cluster_id), is_founder, ..identity };
                folder.save_identity(&chosen)?;
                return Ok(chosen);
            }
            Err(e) => format!("{e:#}"),
        };
        if reason != last_reason {
            tracing::info!(reason, "this replica is empty and waits");
            last_reason = reason;
        }
        sleep(POLL).await;
    }
}

/// Of several clusters with leaders, the one that PostgreSQL names.
async fn choose(mut clusters: Vec<String>, database: &Database) -> Result<String> {
    if let [only] = &mut clusters[..] {
        return Ok(std::mem::take(only));
    }
    let recorded = database.connect().await?.index_group().await?.cluster_id;
    clusters.into_iter().find(|id| Some(id) == recorded.as_ref()).context("PostgreSQL names none of the led clusters")
}

/// Claims the foundation in PostgreSQL: the replica that raises the epoch founds the cluster.
async fn claim(database: &Database) -> Result<String> {
    let session = database.connect().await?;
    let group = session.index_group().await?;
    let cluster_id = Uuid::new_v4().to_string();
    match session.raise_epoch(group.epoch, &cluster_id).await? {
        Some(_) => Ok(cluster_id),
        None => bail!("another replica founds the cluster"),
    }
}

/// Initializes the Raft log of a founder, once.
pub async fn initialize(node: &Node, identity: &Identity) -> Result<()> {
    if !identity.is_founder || node.raft.is_initialized().await.context("Raft")? {
        return Ok(());
    }
    let members = std::collections::BTreeMap::from([(node.node_id, BasicNode::new(&node.config.listen))]);
    node.raft.initialize(members).await.map_err(|e| anyhow!("{e}")).context("initializing the cluster")
}

/// Returns when the cluster is gone: no leader is known for a while, and the replicas or PostgreSQL show that there will be none.
/// This replica then has to be reset.
pub async fn watch_abandonment(node: Arc<Node>, identity: Identity, database: Database) -> NodeEnd {
    let mut leaderless_since = Instant::now();
    loop {
        sleep(POLL).await;
        if node.has_working_leader() {
            leaderless_since = Instant::now();
            continue;
        }
        if leaderless_since.elapsed() < LEADERLESS {
            continue;
        }
        match is_abandoned(&node, &identity, &database).await {
            Ok(None) => {}
            Ok(Some(reason)) => {
                tracing::warn!(reason, cluster_id = %node.cluster_id, "leaving a cluster that is gone");
                return NodeEnd::Reset(None);
            }
            Err(e) => tracing::debug!(error = format!("{e:#}"), "cannot tell whether the cluster is gone"),
        }
        leaderless_since = Instant::now() - LEADERLESS / 2;
    }
}

async fn is_abandoned(node: &Node, identity: &Identity, database: &Database) -> Result<Option<&'static str>> {
    let own = View::of(&node.config.listen, view::describe(node.group, identity, Some(node)));
    let has_log = !own.voters.is_empty();
    let views = view::poll(&node.config, node.group, &node.peers, Some(own)).await;
    if leader_of(&views, &node.cluster_id).is_some() {
        return Ok(None);
    }
    let is_ours = |cluster: &Vec<&View>| cluster.iter().any(|v| v.cluster_id.as_deref() == Some(&node.cluster_id));
    if clusters(&views).iter().any(|cluster| is_ours(cluster) && can_have_quorum(cluster)) {
        return Ok(None);
    }
    if !has_log && !identity.is_founder {
        return Ok(Some("the cluster to join has no leader, and nothing was received from it"));
    }
    let recorded = database.connect().await?.index_group().await?.cluster_id;
    let is_replaced = recorded.is_some_and(|id| id != node.cluster_id);
    Ok(is_replaced.then_some("it has no quorum, and PostgreSQL names another one"))
}
