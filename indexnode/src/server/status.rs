//! `Status`: role and positions of a replica.

use std::sync::atomic::Ordering;

use mantle_index_client::proto::{self, StatusResponse};
use openraft::{ServerState, async_runtime::watch::WatchReceiver};

use super::request::lineage;
use crate::{groups::Groups, node::Node, raft::fault::FaultKind, replica::Replica};

pub fn status(groups: &Groups, replica: &Replica) -> StatusResponse {
    let (identity, node) = replica.current();
    let mut response = StatusResponse {
        node_id: identity.node_id,
        group: replica.group.0,
        groups: groups.all().map(|replica| replica.group.0).collect(),
        role: "empty".into(),
        resident_bytes: resident_bytes(),
        cluster_id: identity.cluster_id.unwrap_or_default(),
        ..StatusResponse::default()
    };
    response.not_ready = replica.readiness.why_not().unwrap_or_default();
    let node_fault = node.as_ref().and_then(|node| node.fault.get());
    if let Some(fault) = node_fault.or_else(|| replica.readiness.fault()) {
        response.log_lost = fault.kind == FaultKind::LogLost;
        response.differs = !response.log_lost;
    }
    if let Some(node) = node {
        fill_status(&node, &mut response);
    }
    response
}

/// Resident memory of this process, in bytes; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let statm = procfs::process::Process::myself().and_then(|process| process.statm());
    statm.map_or(0, |statm| statm.resident * procfs::page_size())
}

pub fn role(state: ServerState) -> &'static str {
    match state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner | ServerState::Shutdown => "learner",
    }
}

fn fill_status(node: &Node, response: &mut StatusResponse) {
    // A clone: holding the borrow while taking another one would deadlock with the writer.
    let metrics = node.raft.metrics().borrow_watched().clone();
    response.role = role(metrics.state).into();
    response.term = metrics.current_term;
    let membership = metrics.membership_config.membership();
    response.leader_id = metrics.current_leader.unwrap_or(0);
    let leader = metrics.current_leader.and_then(|id| membership.get_node(&id));
    response.leader_address = leader.map(|n| n.addr.clone()).unwrap_or_default();
    response.committed_index = metrics.local_committed.map_or(0, |id| id.index);
    let voters: Vec<u64> = membership.voter_ids().collect();
    response.members = membership
        .nodes()
        .map(|(id, n)| format!("{id}@{} {}", n.addr, if voters.contains(id) { "voter" } else { "learner" }))
        .collect();
    let positions = *node.state.positions().borrow();
    response.applied_index = positions.applied_end.saturating_sub(1);
    if response.not_ready.is_empty() && !(positions.is_serving && node.has_working_leader()) {
        // It was ready a moment ago.
        response.not_ready = "the group has no leader now, or the index is being built".to_owned();
    }
    response.ready = response.not_ready.is_empty();
    response.streaming = node.stream.is_streaming();
    response.waiters = node.waiters() as u64;
    response.rebuilds = node.stream.rebuild.begun.load(Ordering::Relaxed);
    let (reads, cache) = (&node.reads.counters, node.state.cache.counters());
    response.lookups = reads.paths.load(Ordering::Relaxed);
    response.read_index_batches = reads.batches.load(Ordering::Relaxed);
    response.read_index_requests = reads.requests.load(Ordering::Relaxed);
    response.cache_hits = cache.hits.load(Ordering::Relaxed);
    response.cache_lookups =
        response.cache_hits + cache.misses.load(Ordering::Relaxed) + cache.bypasses.load(Ordering::Relaxed);
    response.interruption = node.stream.interruption.lock().clone().unwrap_or_default();
    let state = node.state.read();
    response.epoch = state.index.epoch().0;
    response.directories = state.index.directories() as u64;
    response.index_bytes = state.index.heap_bytes() as u64;
    response.locks = state.index.locks().len() as u64;
    let received = node.stream.received();
    response.sources = state
        .index
        .sources()
        .map(|(id, source)| {
            let received = received.get(&id).copied().unwrap_or_default();
            let applied_lsn = source.applied.0.saturating_add(1);
            proto::SourceStatus {
                lineage: Some(lineage(id, &source.lineage)),
                applied_lsn,
                received_lsn: received.received.0,
                released_lsn: received.released.0,
                lag_bytes: received.received.0.saturating_sub(applied_lsn),
                unprotected: received.is_unprotected,
            }
        })
        .collect();
    let first = response.sources.first();
    (response.applied_lsn, response.received_lsn) = first.map_or((0, 0), |s| (s.applied_lsn, s.received_lsn));
}
