//! Asks every node whether it refuses the gateway's mutations. The reason may be a setting of the database or of the
//! gateway's role. It may also be a session that began while there was such a setting, or that kept a SET of another
//! client of its pooler. Lookups still succeed then, so the gateway reports that it is not ready.

use std::time::Duration;

use futures::future::join_all;
use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Store, nodes::Node, rows, sql};

/// How often the nodes are asked.
const INTERVAL: Duration = Duration::from_secs(2);
/// A node that does not answer in this time, or fails, is ignored: requests that need it report the failure.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the nodes answered last, some seconds ago.
#[derive(Default)]
pub struct Refusals(Mutex<Known>);

#[derive(Clone, Default)]
struct Known {
    reasons: Vec<String>,
    /// Why the configured node did not answer.
    failure: Option<Error>,
}

impl Store {
    /// Why mutations are refused, each reason with its node, as of some seconds ago; none if they are not. Asks nobody, so
    /// that a probe answers at once.
    ///
    /// # Errors
    /// The configured node cancels even this query.
    pub fn refusals(&self) -> Result<Vec<String>> {
        let Known { reasons, failure } = self.refusals.0.lock().clone();
        failure.map_or(Ok(reasons), Err)
    }

    async fn read_refusals(&self) -> Result<Vec<String>> {
        let nodes = self.nodes.all().await?;
        let answers = join_all(nodes.iter().map(|node| timeout(NODE_TIMEOUT, refusals_of(node)))).await;
        let mut reasons = Vec::new();
        for (place, (node, answer)) in nodes.iter().zip(answers).enumerate() {
            let at = |why| format!("{}:{}: {why}", node.address.host, node.address.port);
            match answer {
                Ok(Ok(of_node)) => reasons.extend(of_node.into_iter().map(at)),
                // The configured node cancels even this query. An older extension does not know it, which is no failure.
                Ok(Err(error)) if place == 0 && error.code() != ErrorCode::NotImplemented => return Err(error),
                _ => {}
            }
        }
        Ok(reasons)
    }

    /// Asks again and again, for [`Self::refusals`], for the log, and to end stale sessions.
    pub async fn watch_refusals(&self) {
        loop {
            let answer = self.read_refusals().await;
            self.refusals.0.lock().note(answer);
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

impl Known {
    fn note(&mut self, answer: Result<Vec<String>>) {
        match answer {
            Ok(reasons) => {
                if reasons != self.reasons {
                    match reasons.is_empty() {
                        true => tracing::info!("mutations are not refused any more"),
                        false => tracing::warn!(reasons = reasons.join("; "), "the database refuses mutations"),
                    }
                }
                *self = Self { reasons, failure: None };
            }
            // Requests that need the database report it.
            Err(failure) => self.failure = Some(failure),
        }
    }
}

async fn refusals_of(node: &Node) -> Result<Vec<String>> {
    let answer = node.database.query_one(&sql::REFUSALS, &[]).await;
    if answer.as_ref().is_err_and(|error| error.code() == ErrorCode::DatabaseUnavailable) {
        node.database.end_cutting_session().await;
    }
    let row = answer?;
    let (code, problems): (Option<String>, Vec<String>) = (rows::get_opt(&row, "code")?, rows::get(&row, "problems")?);
    let Some(code) = code.filter(|_| problems.is_empty()) else { return Ok(problems) };
    // Asked again, another session answers.
    node.database.end_stale_session().await;
    Ok(vec![format!("a session refuses them ({code}), and a new one would not")])
}
