//! What the replicas say of themselves.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::timeout;

use crate::{
    config::Config,
    node::Node,
    proto::peer::{DescribeRequest, DescribeResponse, VoterSet},
    raft::{NodeId, identity::Identity, peers::Peers},
};

const POLL_TIMEOUT: Duration = Duration::from_millis(700);

/// One replica's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Where it was asked.
    pub address: String,
    /// Its id.
    pub node_id: NodeId,
    /// Its cluster, if it belongs to one.
    pub cluster_id: Option<String>,
    /// The voters of the newest membership it knows: two sets while a change is under way, none without a log.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// Log index that set that membership.
    pub membership_index: u64,
    /// Its term.
    pub term: u64,
    /// The leader it knows; 0 for none.
    pub leader_id: NodeId,
    /// Where that leader listens.
    pub leader_address: String,
}

impl View {
    /// Does it say that it leads?
    pub fn leads(&self) -> bool {
        self.cluster_id.is_some() && self.leader_id == self.node_id && self.node_id != 0
    }
}

/// Asks the other replicas; those that answer in time are in the result, and `own` when given.
pub async fn poll(config: &Config, group: u64, peers: &Peers, own: Option<View>) -> Vec<View> {
    let asked = config.others().map(|address| ask(group, peers, address));
    let mut views: Vec<View> = join_all(asked).await.into_iter().flatten().collect();
    views.extend(own);
    views
}

async fn ask(group: u64, peers: &Peers, address: &str) -> Option<View> {
    let mut client = peers.client(address).ok()?;
    let answer =
        timeout(POLL_TIMEOUT, client.describe(DescribeRequest { group: group as u32 })).await.ok()?.ok()?.into_inner();
    if answer.group != group {
        tracing::warn!(address, group = answer.group, "a configured peer belongs to another group");
        return None;
    }
    Some(View {
        address: address.to_owned(),
        node_id: answer.node_id,
        cluster_id: Some(answer.cluster_id).filter(|id| !id.is_empty()),
        voters: answer.voters.into_iter().map(|set| set.node_ids.into_iter().collect()).collect(),
        membership_index: answer.membership_index,
        term: answer.term,
        leader_id: answer.leader_id,
        leader_address: answer.leader_address,
    })
}

/// This replica's own answer: an empty one's, or a member's.
pub fn describe(group: u64, identity: &Identity, node: Option<&Node>) -> DescribeResponse {
    let cluster_id = identity.cluster_id.clone().unwrap_or_default();
    let mut answer = DescribeResponse { group, node_id: identity.node_id, cluster_id, ..DescribeResponse::default() };
    let Some(node) = node else { return answer };
    let metrics = node.raft.server_metrics().borrow_watched().clone();
    let membership = &metrics.membership_config;
    let sets = membership.get_joint_config().iter().filter(|set| !set.is_empty());
    answer.voters = sets.map(|set| VoterSet { node_ids: set.iter().copied().collect() }).collect();
    answer.membership_index = membership.log_id().map_or(0, |id| id.index);
    answer.term = metrics.vote.leader_id.term;
    if node.has_working_leader()
        && let Some((id, address)) = metrics.current_leader.and_then(|id| Some((id, membership.get_node(&id)?)))
    {
        answer.leader_id = id;
        answer.leader_address.clone_from(&address.addr);
    }
    answer
}
