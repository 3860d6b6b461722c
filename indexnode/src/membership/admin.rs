//! An administrator's requests: lists the members of a group, changes their votes, removes them, transfers leadership.
//!
//! Invariant: one membership change at a time, joins included, and only by the leader. A leader is neither demoted nor removed:
//! another replica has to lead first.

use std::{collections::BTreeSet, time::Duration};

use mantle_index_client::proto::{Member, MemberChange};
use mantle_types::{Error, ErrorCode, Result};
use openraft::{ChangeMembers, Instant as _, async_runtime::watch::WatchReceiver};
use tokio::time::timeout;

use super::join::caught_up;
use crate::{node::Node, raft::NodeId};

/// The group's members, voters first. `not_leader` on other replicas.
pub fn members(node: &Node) -> Result<Vec<Member>> {
    let metrics = node.raft.metrics().borrow_watched().clone();
    let Some(replication) = metrics.replication.filter(|_| node.raft.is_leader()) else {
        return Err(node.not_leader());
    };
    let membership = metrics.membership_config.membership();
    let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
    let last = metrics.last_log_index.unwrap_or(0);
    let heard = metrics.heartbeat.unwrap_or_default();
    let problems = node.problems.lock().clone();
    let problem_of = |id: NodeId| {
        let found = problems.iter().find(|problem| problem.node_id == id.to_string());
        found.map(|found| found.problem.clone()).unwrap_or_default()
    };
    let member = |(id, at): (&NodeId, &openraft::BasicNode)| {
        let leader = *id == node.node_id;
        let matched = replication.get(id).copied().flatten().map_or(0, |log_id| log_id.index);
        let silence = heard.get(id).copied().flatten().map(|at| at.elapsed());
        Member {
            node_id: *id,
            address: at.addr.clone(),
            voter: voters.contains(id),
            leader,
            lag_entries: if leader { 0 } else { last.saturating_sub(matched) },
            down: !leader && silence.is_none_or(|silence| silence > node.config.raft.lease()),
            heard_ms: silence.filter(|_| !leader).map(|silence| silence.as_millis() as u64),
            problem: problem_of(*id),
        }
    };
    let mut members: Vec<Member> = membership.nodes().map(member).collect();
    members.sort_by_key(|member| (!member.voter, member.node_id));
    Ok(members)
}

/// Carries out a change; one that is already in effect succeeds. `member` is an address, or an id if several members have the
/// address. `await_timeout`: the change may still be committed. `invalid_argument`: it is not allowed, or no such member.
pub async fn change(node: &Node, member: &str, change: MemberChange, limit: Duration) -> Result<()> {
    let late = |_| Error::new(ErrorCode::AwaitTimeout, "the change is not committed yet: look at the members again");
    timeout(limit, async {
        let _lock = node.membership_lock.lock().await;
        if !node.raft.is_leader() {
            return Err(node.not_leader());
        }
        let id = member_id(node, member)?;
        match change {
            MemberChange::Promote => promote(node, id).await,
            MemberChange::Demote => remove(node, id, true).await,
            MemberChange::Remove => remove(node, id, false).await,
            MemberChange::Lead => transfer_leadership(node, id, limit).await,
            MemberChange::Unspecified => Err(refused("the request names no change")),
        }
    })
    .await
    .map_err(late)?
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, why.into())
}

fn member_id(node: &Node, member: &str) -> Result<NodeId> {
    let membership = node.membership();
    let is_meant = |(id, at): &(&NodeId, &openraft::BasicNode)| at.addr == member || id.to_string() == member;
    let found: Vec<NodeId> = membership.nodes().filter(is_meant).map(|(id, _)| *id).collect();
    match found[..] {
        [id] => Ok(id),
        [] => Err(refused(format!("`{member}` is no member of the group"))),
        _ => Err(refused(format!("`{member}` is the address of several members: name one by its id, of {found:?}"))),
    }
}

async fn must_be_caught_up(node: &Node, id: NodeId) -> Result<()> {
    match caught_up(node, id).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused("it does not answer, or is too far behind: let it catch up first")),
        Err(_) => Err(node.not_leader()),
    }
}

async fn promote(node: &Node, id: NodeId) -> Result<()> {
    if node.is_voter(id) {
        return Ok(());
    }
    must_be_caught_up(node, id).await?;
    tracing::info!(id, "a replica becomes a voter, by an administrator");
    node.change_membership(ChangeMembers::AddVoterIds([id].into()), true).await
}

/// Removes a member's vote; with `stays` false also its membership.
async fn remove(node: &Node, id: NodeId, stays: bool) -> Result<()> {
    if id == node.node_id {
        return Err(refused("it leads: let another replica lead first"));
    }
    if node.is_voter(id) {
        tracing::info!(id, stays, "a replica loses its vote, by an administrator");
        node.change_membership(ChangeMembers::RemoveVoters([id].into()), stays).await?;
    }
    if !stays && node.membership().get_node(&id).is_some() {
        tracing::info!(id, "a replica leaves the group, by an administrator");
        node.change_membership(ChangeMembers::RemoveNodes([id].into()), false).await?;
    }
    Ok(())
}

/// Transfers leadership. From then on this replica answers no read by its lease, so none is stale. If the other replica does not
/// take over, an election follows.
async fn transfer_leadership(node: &Node, id: NodeId, limit: Duration) -> Result<()> {
    if id == node.node_id {
        return Ok(());
    }
    if !node.is_voter(id) {
        return Err(refused("it does not vote: promote it first"));
    }
    must_be_caught_up(node, id).await?;
    tracing::info!(to = id, "handing the lead over, by an administrator");
    let failed = |e: String| Error::new(ErrorCode::Internal, e);
    node.raft.trigger().transfer_leader(id).await.map_err(|e| failed(e.to_string()))?;
    let wait = node.raft.wait(Some(limit));
    let taken = wait.metrics(|m| m.current_leader.is_some_and(|now| now != node.node_id), "a new leader");
    let metrics = taken.await.map_err(|e| Error::new(ErrorCode::AwaitTimeout, e.to_string()))?;
    match metrics.current_leader {
        Some(now) if now == id => Ok(()),
        now => Err(failed(format!("another replica leads now: {now:?}"))),
    }
}
