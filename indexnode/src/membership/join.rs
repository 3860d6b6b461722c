//! Joining: the leader's side, and the loop of a replica that is not a voter yet.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use openraft::{BasicNode, ChangeMembers, async_runtime::watch::WatchReceiver};
use tokio::time::{Instant, sleep, timeout};

use super::{leader_of, view};
use crate::{
    node::{Node, raft_error},
    proto::peer::{JoinRequest, JoinResponse, join_response::State},
    raft::NodeId,
};

/// The leader waits this long for a learner to catch up before it answers `pending`.
const CATCH_UP: Duration = Duration::from_secs(5);
const CATCH_UP_POLL: Duration = Duration::from_millis(20);
/// A learner this few entries behind the leader may vote.
const LAG_ENTRIES_MAX: u64 = 256;
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);

/// Serves a join on the leader: learner first, then, once caught up, voter in place of the older replicas of the address.
pub async fn serve(node: &Node, request: &JoinRequest, turn: &tokio::sync::Mutex<()>) -> JoinResponse {
    let leader_address = node.leader().map(|(_, address)| address).unwrap_or_default();
    let answer = |state: State, detail: String| JoinResponse {
        state: state.into(),
        leader_address: leader_address.clone(),
        detail,
    };
    if request.cluster_id != node.cluster_id {
        return answer(State::Refused, format!("this is cluster {}", node.cluster_id));
    }
    if !node.config.peers.contains(&request.address) {
        return answer(State::Refused, format!("`{}` is not among the configured peers", request.address));
    }
    if !node.is_leader() {
        return answer(State::NotLeader, String::new());
    }
    let Ok(_turn) = turn.try_lock() else {
        return answer(State::Pending, "another replica is joining".into());
    };
    match admit(node, request.node_id, &request.address).await {
        Ok(true) => answer(State::Voter, String::new()),
        Ok(false) => answer(State::Pending, "still catching up".into()),
        Err(e) => answer(State::Pending, format!("{e:#}")),
    }
}

async fn admit(node: &Node, joiner: NodeId, address: &str) -> Result<bool> {
    let membership = node.membership();
    if membership.voter_ids().any(|id| id == joiner) {
        return Ok(true);
    }
    if membership.get_node(&joiner).is_none() {
        tracing::info!(joiner, address, "a replica joins as a learner");
        let added = node.raft.add_learner(joiner, BasicNode::new(address), false).await;
        added.map_err(|e| raft_error(&e)).context("adding the learner")?;
    }
    if !caught_up(node, joiner).await? {
        return Ok(false);
    }
    let membership = node.membership();
    let older: BTreeSet<NodeId> =
        membership.nodes().filter(|(id, n)| **id != joiner && n.addr == address).map(|(id, _)| *id).collect();
    let mut voters: BTreeSet<NodeId> = membership.voter_ids().filter(|id| !older.contains(id)).collect();
    voters.insert(joiner);
    tracing::info!(joiner, address, replaces = ?older, "a replica becomes a voter");
    let changed = node.raft.change_membership(ChangeMembers::ReplaceAllVoters(voters), false).await;
    changed.map_err(|e| raft_error(&e)).context("making it a voter")?;
    let left: BTreeSet<NodeId> = node.membership().nodes().map(|(id, _)| *id).filter(|id| older.contains(id)).collect();
    if !left.is_empty() {
        let removed = node.raft.change_membership(ChangeMembers::RemoveNodes(left), false).await;
        removed.map_err(|e| raft_error(&e)).context("removing the older replica")?;
    }
    Ok(true)
}

async fn caught_up(node: &Node, joiner: NodeId) -> Result<bool> {
    let deadline = Instant::now() + CATCH_UP;
    loop {
        {
            let metrics = node.raft.metrics();
            let metrics = metrics.borrow_watched();
            let Some(replication) = &metrics.replication else { bail!("this replica no longer leads") };
            let matched = replication.get(&joiner).copied().flatten().map(|id| id.index);
            let last = metrics.last_log_index.unwrap_or(0);
            if matched.is_some_and(|m| m + LAG_ENTRIES_MAX >= last) {
                return Ok(true);
            }
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(CATCH_UP_POLL).await;
    }
}

/// Until this replica is a voter, asks the leader to make it one.
pub async fn until_voter(node: &Arc<Node>) {
    let mut last_detail = String::new();
    while !node.membership().voter_ids().any(|id| id == node.node_id) {
        match ask_leader(node).await {
            Ok(detail) if detail.is_empty() => {}
            Ok(detail) => {
                if detail != last_detail {
                    tracing::info!(detail, "joining the cluster");
                    last_detail = detail;
                }
            }
            Err(e) => tracing::debug!(error = format!("{e:#}"), "cannot join yet"),
        }
        sleep(RETRY).await;
    }
    tracing::info!(node_id = node.node_id, "this replica is a voter");
}

async fn ask_leader(node: &Node) -> Result<String> {
    let known = node.leader().filter(|(id, _)| *id != node.node_id).map(|(_, address)| address);
    let address = match known {
        Some(address) => address,
        None => {
            let views = view::poll(&node.config, &node.peers, None).await;
            let leader = leader_of(&views, &node.cluster_id).context("no leader of the cluster answers")?;
            leader.address.clone()
        }
    };
    let request =
        JoinRequest { cluster_id: node.cluster_id.clone(), node_id: node.node_id, address: node.config.listen.clone() };
    let mut client = node.peers.client(&address)?;
    let answer = timeout(JOIN_TIMEOUT, client.join(request)).await.context("no answer")??.into_inner();
    Ok(match answer.state() {
        State::Voter => String::new(),
        State::Pending => answer.detail,
        State::NotLeader => format!("{address} does not lead"),
        State::Refused | State::Unspecified => format!("{address} refuses: {}", answer.detail),
    })
}
