//! Asks every node now and then what is wrong with its background worker, for metrics and log. Without the worker
//! everything still answers, and slows down: delta records, old request ids and removed trees stay.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use mantle_types::Result;
use tokio::time::timeout;

use super::{Store, nodes::Node, rows, sql};

/// How often the nodes are asked.
const INTERVAL: Duration = Duration::from_secs(10);
/// A node that does not answer in this time keeps its last answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// Gauge of the problems of a node's worker.
const PROBLEMS_GAUGE: &str = "mantle_gateway_worker_problems";

/// The problems of each node's worker, by the node's number.
type Known = BTreeMap<i32, Vec<String>>;

impl Store {
    /// Reads the problems for ever.
    pub async fn watch_workers(&self) {
        let mut known = Known::new();
        show(0, &[]);
        loop {
            // Requests that need the database report the failure.
            if let Ok(nodes) = self.nodes.all().await {
                note(&mut known, answers(&nodes).await);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

async fn answers(nodes: &[Arc<Node>]) -> Known {
    let answers = join_all(nodes.iter().map(|node| timeout(NODE_TIMEOUT, problems(node)))).await;
    answers.into_iter().filter_map(|answer| answer.ok()?.ok()).collect()
}

fn note(known: &mut Known, answers: Known) {
    for (source, problems) in answers {
        show(source, &problems);
        let before = known.insert(source, problems.clone()).unwrap_or_default();
        match problems.is_empty() {
            true if before.is_empty() => {}
            true => tracing::info!(source, "the background worker works again"),
            false if before.is_empty() => {
                tracing::warn!(source, problems = problems.join("; "), "the background worker does not work");
            }
            // Their text counts on.
            false => {}
        }
    }
}

fn show(source: i32, problems: &[String]) {
    metrics::gauge!(PROBLEMS_GAUGE, "source" => source.to_string()).set(problems.len() as f64);
}

async fn problems(node: &Node) -> Result<(i32, Vec<String>)> {
    let row = node.database.query_one(&sql::WORKER_PROBLEMS, &[]).await?;
    Ok((rows::get(&row, "source")?, rows::get(&row, "problems")?))
}
