//! Checks whether a replica answers lookups, and when one that has a fault joins its group anew (P48, P49).

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{
    membership::{self, join},
    node::Node,
    raft::fault::Fault,
    replica::Replica,
};

/// A replica that gets no read index for this long is not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Pauses between two checks of a replica that is ready, and of one that is not.
const CHECK: Duration = Duration::from_secs(1);
const CHECK_NOT_READY: Duration = Duration::from_millis(50);
/// A state that differs again after the replica has joined anew waits this much longer each time before the next attempt.
const DIFFERS_AGAIN: Duration = Duration::from_secs(10);
const DIFFERS_AGAIN_MAX: u32 = 60;

/// The reason why a replica does not answer lookups now; `None` if it does.
pub async fn why_not_now(replica: &Replica) -> Option<String> {
    let Some(node) = replica.node() else {
        let joins = || "this replica belongs to no cluster yet".to_owned();
        return Some(replica.readiness.fault().map_or_else(joins, |fault| format!("{fault}; it joins anew")));
    };
    why_node_is_not(&node).await
}

async fn why_node_is_not(node: &Node) -> Option<String> {
    if let Some(fault) = node.fault.get() {
        return Some(fault.to_string());
    }
    if !node.state.is_serving() {
        return Some("the index is being built".to_owned());
    }
    let caught_up = async {
        let log_index = node.reads.read_index().await?;
        node.state.wait_applied(log_index).await;
        Ok::<(), mantle_types::Error>(())
    };
    match timeout(READY_TIMEOUT, caught_up).await {
        Ok(Ok(())) => None,
        Ok(Err(e)) => Some(e.detail().to_owned()),
        Err(_) => Some("this replica is behind the leader, or cannot reach it".to_owned()),
    }
}

/// Checks the readiness of a node again and again. A node that is ready has all that was committed, so it is confirmed (P48).
/// Never returns.
pub async fn watch(replica: Arc<Replica>, node: Arc<Node>) {
    loop {
        let not_ready = why_node_is_not(&node).await;
        let is_ready = not_ready.is_none();
        if is_ready {
            node.doubt.confirm();
        }
        if node.fault.get().is_none() {
            replica.readiness.note(not_ready);
            if is_ready && join::has_role(&node) {
                replica.readiness.forget_fault();
            }
        }
        sleep(if is_ready { CHECK } else { CHECK_NOT_READY }).await;
    }
}

/// Returns when the node has a fault and may be given up: a voter whose promises still count waits until the others can do
/// without it.
pub async fn wait_fault(replica: &Replica, node: &Node) -> Fault {
    let fault = node.fault.raised().await;
    replica.readiness.note_fault(fault.clone());
    if !fault.forbids_promises() {
        sleep(DIFFERS_AGAIN * replica.readiness.resets().min(DIFFERS_AGAIN_MAX)).await;
        while !membership::others_have_quorum(node).await {
            sleep(CHECK).await;
        }
    }
    fault
}
