//! Asks the other members, after a restart, what this replica has promised (P48).

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use tokio::time::sleep;

use super::view::ask_describe;
use crate::node::Node;

/// The promises of other members are written this often, if they have changed.
const SAVE: Duration = Duration::from_millis(100);

/// Asks every configured peer and every known member once. One that does not answer in time is down, and cannot be waited for:
/// a leader that is elected without it is in doubt.
pub async fn ask(node: &Node) {
    let membership = node.membership();
    let members = membership.nodes().filter(|(id, _)| **id != node.node_id).map(|(_, member)| member.addr.clone());
    let others: BTreeSet<String> = node.config.others().cloned().chain(members).collect();
    let asked = others.iter().filter(|address| **address != node.config.listen);
    let answers = asked.map(|address| ask_describe((node.group, node.node_id), &node.peers, address));
    let answers = join_all(answers).await.into_iter().flatten();
    let of_cluster = answers.filter(|answer| answer.cluster_id == node.cluster_id);
    let promises: Vec<_> = of_cluster.filter_map(|answer| answer.promise).collect();
    node.learn_promises(&promises);
    node.note_asked();
}

/// Keeps what others have promised on disk. Never returns.
pub async fn keep(node: &Node) {
    loop {
        sleep(SAVE).await;
        let promises = node.promises.clone();
        if let Err(e) = node.disk.run(move || promises.save()).await {
            tracing::debug!(error = %e, "what other members have promised is not kept");
        }
    }
}
