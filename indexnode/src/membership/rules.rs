//! Which rule a leader may propose: replicas of several releases decide every entry alike, so an entry is decided by the rule
//! that it names, and a leader names none that a member does not know.
//!
//! A member that does not answer may be of any release. It is not waited for: if it turns out to be older, it stops at the
//! entry, as at a command that it does not know, and goes on with a newer program (docs/formats.md).

use std::sync::atomic::Ordering;

use futures::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;

use super::view::ask_describe;
use crate::{index::command::newest_rule, node::Node};

/// The newest rule that this replica and every member that answers knows. Members are asked once for each membership, until
/// all that answer know what this replica does.
pub async fn common(node: &Node) -> u32 {
    let own = newest_rule();
    let metrics = node.raft.server_metrics().borrow_watched().clone();
    let membership = &metrics.membership_config;
    // Above 0, which stands for none.
    let number = membership.log_id().map_or(0, |id| id.index) + 1;
    if node.ruled.load(Ordering::Relaxed) == number {
        return own;
    }
    let others = membership.nodes().filter(|(id, _)| **id != node.node_id).map(|(_, member)| member.addr.clone());
    let others: Vec<String> = others.collect();
    let asked = others.iter().map(|address| ask_describe((node.group, 0), &node.peers, address));
    let answers = join_all(asked).await.into_iter().flatten().filter(|answer| answer.cluster_id == node.cluster_id);
    let common = answers.map(|answer| answer.newest_rule).fold(own, u32::min);
    if common == own {
        node.ruled.store(number, Ordering::Relaxed);
    }
    common
}
