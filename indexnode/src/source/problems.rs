//! Asks the other members of the group whether they answer lookups, and tells PostgreSQL of those that do not, so that
//! `mantle.check_cluster()` names them. Nothing is written while nothing changes.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use crate::{
    membership::view::ask_describe,
    node::Node,
    postgres::upstream::{Database, ReplicaProblem},
    raft::NodeId,
};

const CHECK: Duration = Duration::from_secs(2);
/// A problem is reported when this many checks have found it: a restart takes a moment.
const CHECKS: u32 = 2;

/// Runs while this replica leads. Never returns.
pub async fn watch(node: &Node, database: &Database) {
    let (mut before, mut reported) = (Vec::new(), None);
    let mut checks = 0;
    loop {
        let problems = find(node).await;
        node.problems.lock().clone_from(&problems);
        checks = if problems == before { checks + 1 } else { 1 };
        if checks >= CHECKS && reported.as_ref() != Some(&problems) {
            match report(database, &problems).await {
                Ok(()) => reported = Some(problems.clone()),
                Err(e) => tracing::debug!(error = format!("{e:#}"), "PostgreSQL is not told about the replicas"),
            }
        }
        before = problems;
        sleep(CHECK).await;
    }
}

async fn report(database: &Database, problems: &[ReplicaProblem]) -> anyhow::Result<()> {
    database.connect().await?.report_replicas(problems).await
}

/// The members with a problem, in the order of their ids.
async fn find(node: &Node) -> Vec<ReplicaProblem> {
    let membership = node.membership();
    let others: Vec<(NodeId, String)> = membership
        .nodes()
        .filter(|(id, _)| **id != node.node_id)
        .map(|(id, member)| (*id, member.addr.clone()))
        .collect();
    let asked = others.iter().map(|(id, address)| problem_of(node, *id, address));
    let found = join_all(asked).await;
    let problem = |((id, address), problem): ((NodeId, String), Option<String>)| {
        Some(ReplicaProblem { node_id: id.to_string(), address, problem: problem? })
    };
    others.into_iter().zip(found).filter_map(problem).collect()
}

async fn problem_of(node: &Node, id: NodeId, address: &str) -> Option<String> {
    let Some(answer) = ask_describe((node.group, 0), &node.peers, address).await else {
        return Some("it does not answer".to_owned());
    };
    if answer.node_id != id {
        return Some(format!("a replica of another id ({}) is at its address", answer.node_id));
    }
    Some(answer.not_ready).filter(|reason| !reason.is_empty())
}
