//! Finds the roles that may call `pg_logical_emit_message`, and so forge the change stream (P6). A restore, a new node
//! or an administrator may grant it, so the gateway asks every node regularly, and is not ready while such a role
//! exists.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use mantle_types::{ErrorCode, Result};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Store, nodes::Node, rows, sql};

/// How often the nodes are asked.
const INTERVAL: Duration = Duration::from_secs(10);
/// How soon they are asked again if that failed.
const RETRY: Duration = Duration::from_secs(1);
/// A node that does not answer in this time keeps its last answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Gauge of the roles that have the grant, over all nodes.
const GRANTS_GAUGE: &str = "mantle_gateway_stream_forgers";

/// The roles that may emit messages, by node.
#[derive(Default)]
pub struct EmitGrants(Mutex<Known>);

#[derive(Default)]
struct Known {
    is_asked: bool,
    by_node: BTreeMap<String, Vec<String>>,
}

impl Store {
    /// Roles that may forge the change stream, each with its node, as of some seconds ago; `None` until they were read. Asks
    /// nobody, so that a probe answers at once.
    pub fn emit_grants(&self) -> Option<Vec<String>> {
        let known = self.emit_grants.0.lock();
        known.is_asked.then(|| known.list())
    }

    /// Reads the grants for ever.
    pub async fn watch_emit_grants(&self) {
        metrics::gauge!(GRANTS_GAUGE).set(0.0);
        loop {
            // Requests that need the database report the failure.
            let asked = self.read_emit_grants().await;
            tokio::time::sleep(if asked.is_ok() { INTERVAL } else { RETRY }).await;
        }
    }

    async fn read_emit_grants(&self) -> Result<()> {
        let nodes = self.nodes.all().await?;
        let answers = join_all(nodes.iter().map(|node| timeout(NODE_TIMEOUT, roles(node)))).await;
        let mut known = self.emit_grants.0.lock();
        let mut by_node = BTreeMap::new();
        for (node, answer) in nodes.iter().zip(answers) {
            let name = format!("{}:{}", node.address.host, node.address.port);
            let roles = match answer {
                Ok(Ok(roles)) => Some(roles),
                _ => known.by_node.get(&name).cloned(),
            };
            by_node.extend(roles.map(|roles| (name, roles)));
        }
        let before = known.list();
        *known = Known { is_asked: known.is_asked || !by_node.is_empty(), by_node };
        let now = known.list();
        metrics::gauge!(GRANTS_GAUGE).set(now.len() as f64);
        if now != before {
            match now.is_empty() {
                true => tracing::info!("nobody may forge the change stream any more"),
                false => tracing::warn!(roles = now.join(", "), "roles may call pg_logical_emit_message: revoke it"),
            }
        }
        if known.is_asked { Ok(()) } else { Err(ErrorCode::DatabaseUnavailable.into()) }
    }
}

impl Known {
    fn list(&self) -> Vec<String> {
        self.by_node
            .iter()
            .flat_map(|(node, roles)| roles.iter().map(move |role| format!("{role} at {node}")))
            .collect()
    }
}

async fn roles(node: &Node) -> Result<Vec<String>> {
    rows::get(&node.database.query_one(&sql::EMIT_GRANTS, &[]).await?, "roles")
}
