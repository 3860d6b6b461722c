//! `Describe`: each replica's own view of its cluster, as the decisions of membership need it.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use mantle_types::GroupId;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::timeout;

use crate::{
    config::Config,
    index::command::newest_rule,
    node::Node,
    proto::peer::{DescribeRequest, DescribeResponse, VoterSet},
    raft::{NodeId, identity::Identity, peers::Peers},
};

const POLL_TIMEOUT: Duration = Duration::from_millis(700);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub address: String,
    pub node_id: NodeId,
    /// Its cluster; `None` if it is empty.
    pub cluster_id: Option<String>,
    /// The voters of the newest membership it knows: two sets while a change is under way, none without a log.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// The log index of that membership.
    pub membership_index: u64,
    pub term: u64,
    /// The leader it knows; 0 if none.
    pub leader_id: NodeId,
}

impl View {
    pub fn of(address: &str, answer: DescribeResponse) -> Self {
        Self {
            address: address.to_owned(),
            node_id: answer.node_id,
            cluster_id: Some(answer.cluster_id).filter(|id| !id.is_empty()),
            voters: answer.voters.into_iter().map(|set| set.node_ids.into_iter().collect()).collect(),
            membership_index: answer.membership_index,
            term: answer.term,
            leader_id: answer.leader_id,
        }
    }

    pub fn leads(&self) -> bool {
        self.cluster_id.is_some() && self.leader_id == self.node_id && self.node_id != 0
    }
}

/// The answers of the other replicas that answer in time, and `own` if given.
pub async fn poll(config: &Config, group: GroupId, peers: &Peers, own: Option<View>) -> Vec<View> {
    let asked = config.others().map(|address| ask(group, peers, address));
    let mut views: Vec<View> = join_all(asked).await.into_iter().flatten().collect();
    views.extend(own);
    views
}

async fn ask(group: GroupId, peers: &Peers, address: &str) -> Option<View> {
    Some(View::of(address, ask_describe((group, 0), peers, address).await?))
}

/// The answer of one replica, if it comes in time. `node_id`: the caller, or 0.
pub async fn ask_describe(
    (group, node_id): (GroupId, NodeId),
    peers: &Peers,
    address: &str,
) -> Option<DescribeResponse> {
    let mut client = peers.client(address).ok()?;
    let request = DescribeRequest { group: group.0, node_id };
    let answer = timeout(POLL_TIMEOUT, client.describe(request)).await.ok()?.ok()?.into_inner();
    if answer.group != u64::from(group.0) {
        tracing::warn!(address, group = answer.group, "a configured peer belongs to another group");
        return None;
    }
    Some(answer)
}

/// This replica's answer, as an empty one or as a member.
pub fn describe(group: GroupId, identity: &Identity, node: Option<&Node>) -> DescribeResponse {
    let (group, node_id) = (group.0.into(), identity.node_id);
    let cluster_id = identity.cluster_id.clone().unwrap_or_default();
    let mut answer = DescribeResponse { group, node_id, cluster_id, ..DescribeResponse::default() };
    let Some(node) = node else { return answer };
    answer.newest_rule = newest_rule();
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
