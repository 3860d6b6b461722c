//! Joins: what the leader does, and the loop of a replica that is not a member yet.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use mantle_tls::Identity;
use openraft::{BasicNode, ChangeMembers, async_runtime::watch::WatchReceiver};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::{leader_of, senders, view};
use crate::{
    node::Node,
    proto::peer::{JoinRequest, JoinResponse, join_response::State},
    raft::NodeId,
};

/// The leader waits this long for a learner to catch up before it answers `pending`.
const CATCH_UP: Duration = Duration::from_secs(5);
const CATCH_UP_POLL: Duration = Duration::from_millis(20);
const FINISH_POLL: Duration = Duration::from_secs(1);
/// A learner this few entries behind the leader may vote.
const LAG_ENTRIES_MAX: u64 = 256;
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);

/// Serves a join on the leader. The joiner becomes a learner; once it has caught up, and unless it wants to stay a learner, a
/// voter in place of the older replicas at its address.
///
/// The leader sends its state to the joiner's address, so the configuration has to name that address, and the caller's certificate
/// has to be for its host.
///
/// # Errors
/// `PERMISSION_DENIED`: one of them is not so.
pub async fn serve(node: &Node, request: &JoinRequest, identity: Option<&Identity>) -> Result<JoinResponse, Status> {
    let leader_address = node.leader().map(|(_, address)| address).unwrap_or_default();
    let answer = |state: State, detail: String| {
        Ok(JoinResponse { state: state.into(), leader_address: leader_address.clone(), detail })
    };
    if request.cluster_id != node.cluster_id {
        return answer(State::Refused, format!("this is cluster {}", node.cluster_id));
    }
    let (allowed, setting) =
        if request.as_learner { (&node.config.learners, "learners") } else { (&node.config.peers, "peers") };
    if !allowed.contains(&request.address) {
        let why = format!("`{}` is not among the leader's configured {setting}", request.address);
        return Err(Status::permission_denied(why));
    }
    if identity.is_some_and(|identity| !senders::covers(identity, &request.address)) {
        return Err(Status::permission_denied(format!("the certificate is not for the host of `{}`", request.address)));
    }
    if !node.raft.is_leader() {
        return answer(State::NotLeader, String::new());
    }
    let Ok(_lock) = node.membership_lock.try_lock() else {
        return answer(State::Pending, "the membership is being changed".into());
    };
    match admit(node, request).await {
        Ok(true) => answer(State::Member, String::new()),
        Ok(false) => answer(State::Pending, "still catching up".into()),
        Err(e) => answer(State::Pending, format!("{e:#}")),
    }
}

/// Gives the joiner the role that it wants; false while it is catching up.
async fn admit(node: &Node, request: &JoinRequest) -> Result<bool> {
    let (joiner, address) = (request.node_id, &request.address);
    if node.is_voter(joiner) {
        return Ok(true);
    }
    if node.membership().get_node(&joiner).is_none() {
        tracing::info!(joiner, address, "a replica joins as a learner");
        let learner = ChangeMembers::AddNodes([(joiner, BasicNode::new(address))].into());
        node.change_membership(learner, true).await.context("adding the learner")?;
    }
    if !caught_up(node, joiner).await? {
        return Ok(false);
    }
    if request.as_learner {
        return replace_older(node, joiner, address).await;
    }
    let membership = node.membership();
    let older: BTreeSet<NodeId> =
        membership.nodes().filter(|(id, n)| **id != joiner && n.addr == *address).map(|(id, _)| *id).collect();
    let mut voters: BTreeSet<NodeId> = membership.voter_ids().filter(|id| !older.contains(id)).collect();
    voters.insert(joiner);
    tracing::info!(joiner, address, replaces = ?older, "a replica becomes a voter");
    node.change_membership(ChangeMembers::ReplaceAllVoters(voters), false).await.context("making it a voter")?;
    replace_older(node, joiner, address).await
}

/// Removes older learners at the address.
async fn replace_older(node: &Node, joiner: NodeId, address: &str) -> Result<bool> {
    let membership = node.membership();
    let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
    let is_older = |(id, at): &(&NodeId, &BasicNode)| **id != joiner && at.addr == address && !voters.contains(id);
    let left: BTreeSet<NodeId> = membership.nodes().filter(is_older).map(|(id, _)| *id).collect();
    if !left.is_empty() {
        node.change_membership(ChangeMembers::RemoveNodes(left), false).await.context("removing the older replica")?;
    }
    Ok(true)
}

/// Finishes membership changes of earlier leaders, while this replica leads. A leader that died between the two steps of a change
/// left a joint membership, in which replicas that are gone still count. Never returns.
pub async fn finish_changes(node: &Node) {
    loop {
        if let Ok(_lock) = node.membership_lock.try_lock()
            && node.membership().get_joint_config().len() > 1
        {
            tracing::info!("finishing a change of the membership that an earlier leader began");
            if let Err(e) = node.change_membership(ChangeMembers::AddVoterIds(BTreeSet::new()), false).await {
                tracing::warn!(error = %e, "the change of the membership is not finished");
            }
        }
        sleep(FINISH_POLL).await;
    }
}

/// True if a member is near the end of the leader's log, now or within [`CATCH_UP`].
pub(super) async fn caught_up(node: &Node, joiner: NodeId) -> Result<bool> {
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

/// True if this replica has its configured role: voter, or at least learner.
pub fn has_role(node: &Node) -> bool {
    let is_learner = || node.config.learner && node.membership().get_node(&node.node_id).is_some();
    node.is_voter(node.node_id) || is_learner()
}

/// Asks the leader to admit this replica, until it has its configured role.
pub async fn until_member(node: &Arc<Node>) {
    let mut last_detail = String::new();
    while !has_role(node) {
        match ask_leader(node).await {
            Ok(detail) if !detail.is_empty() && detail != last_detail => {
                tracing::info!(detail, "joining the cluster");
                last_detail = detail;
            }
            Ok(_) => {}
            Err(e) => tracing::debug!(error = format!("{e:#}"), "cannot join yet"),
        }
        sleep(RETRY).await;
    }
    tracing::info!(node_id = node.node_id, "this replica is a member");
}

async fn ask_leader(node: &Node) -> Result<String> {
    let known = node.leader().filter(|(id, _)| *id != node.node_id).map(|(_, address)| address);
    let address = match known {
        Some(address) => address,
        None => {
            let views = view::poll(&node.config, node.group, &node.peers, None).await;
            let leader = leader_of(&views, &node.cluster_id).context("no leader of the cluster answers")?;
            leader.address.clone()
        }
    };
    let request = JoinRequest {
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id,
        address: node.config.listen.clone(),
        as_learner: node.config.learner,
        group: node.group.0,
    };
    let mut client = node.peers.client(&address)?;
    let answer = match timeout(JOIN_TIMEOUT, client.join(request)).await.context("no answer")? {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == Code::PermissionDenied => {
            return Ok(format!("{address} refuses: {}", status.message()));
        }
        Err(status) => return Err(status.into()),
    };
    Ok(match answer.state() {
        State::Member => String::new(),
        State::Pending => answer.detail,
        State::NotLeader => format!("{address} does not lead"),
        State::Refused | State::Unspecified => format!("{address} refuses: {}", answer.detail),
    })
}
