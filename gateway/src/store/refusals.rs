//! Asks every node whether it refuses the gateway's mutations. The reason may be a setting of the database or of the
//! gateway's role. It may also be a session that began while there was such a setting, or that kept a SET of another
//! client of its pooler. Lookups still succeed then, so the gateway reports that it is not ready.

use std::{mem, time::Duration};

use futures::future::join_all;
use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Store, nodes::Node, rows, sql};

/// How often the nodes are asked.
const INTERVAL: Duration = Duration::from_secs(2);
/// A node that does not answer in this time, or fails, says nothing new: requests that need it report the failure.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the nodes answered last, some seconds ago.
#[derive(Default)]
pub struct Refusals(Mutex<Known>);

/// Why a node refuses mutations, with its address; `None` if it did not answer.
type Answer = (String, Option<Vec<String>>);

#[derive(Default)]
struct Known {
    /// Of each node, by its address, what it said last.
    nodes: Vec<(String, Vec<String>)>,
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
        let known = self.refusals.0.lock();
        known.failure.clone().map_or_else(|| Ok(known.reasons()), Err)
    }

    async fn read_refusals(&self) -> Result<Vec<Answer>> {
        let nodes = self.nodes.all().await?;
        let answers = join_all(nodes.iter().map(|node| timeout(NODE_TIMEOUT, refusals_of(node)))).await;
        let mut said = Vec::new();
        for (place, (node, answer)) in nodes.iter().zip(answers).enumerate() {
            let of_node = match answer {
                Ok(Ok(reasons)) => Some(reasons),
                // The configured node cancels even this query. An older extension does not know it, which is no failure.
                Ok(Err(error)) if place == 0 && error.code() != ErrorCode::NotImplemented => return Err(error),
                _ => None,
            };
            said.push((format!("{}:{}", node.address.host, node.address.port), of_node));
        }
        Ok(said)
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
    /// All reasons, each with its node.
    fn reasons(&self) -> Vec<String> {
        let of_node = |(address, reasons): &(String, Vec<String>)| {
            reasons.iter().map(|why| format!("{address}: {why}")).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of_node).collect()
    }

    fn note(&mut self, answers: Result<Vec<Answer>>) {
        let answers = match answers {
            Ok(answers) => answers,
            // Requests that need the database report it.
            Err(failure) => {
                self.failure = Some(failure);
                return;
            }
        };
        let before = self.reasons();
        let mut last = mem::take(&mut self.nodes);
        // A node that did not answer may refuse as it did: nobody knows.
        let mut said_last = |address: &str| {
            let of_node = last.iter_mut().find(|(of, _)| of == address);
            of_node.map(|(_, reasons)| mem::take(reasons)).unwrap_or_default()
        };
        for (address, reasons) in answers {
            let reasons = reasons.unwrap_or_else(|| said_last(&address));
            self.nodes.push((address, reasons));
        }
        self.failure = None;
        let now = self.reasons();
        match now.is_empty() {
            _ if now == before => {}
            true => tracing::info!("mutations are not refused any more"),
            false => tracing::warn!(reasons = now.join("; "), "the database refuses mutations"),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(of: &[(&str, Option<&[&str]>)]) -> Result<Vec<Answer>> {
        let owned = |reasons: &[&str]| reasons.iter().map(|why| (*why).to_owned()).collect();
        Ok(of.iter().map(|(address, reasons)| ((*address).to_owned(), reasons.map(owned))).collect())
    }

    #[test]
    fn a_node_that_does_not_answer_is_believed_to_refuse_as_before() {
        let mut known = Known::default();
        known.note(answered(&[("a:1", Some(&["isolation"])), ("b:1", Some(&[]))]));
        assert_eq!(known.reasons(), ["a:1: isolation"]);
        known.note(answered(&[("a:1", None), ("b:1", Some(&["read-only"]))]));
        assert_eq!(known.reasons(), ["a:1: isolation", "b:1: read-only"]);
        known.note(answered(&[("a:1", Some(&[])), ("b:1", None)]));
        assert_eq!(known.reasons(), ["b:1: read-only"]);
        known.note(answered(&[("a:1", None), ("c:1", None)]));
        assert_eq!(known.reasons(), [""; 0], "a node that is gone refuses nothing, and one that said nothing neither");
    }

    #[test]
    fn a_failure_ends_with_the_next_answer() {
        let mut known = Known::default();
        known.note(answered(&[("a:1", Some(&["isolation"]))]));
        known.note(Err(Error::new(ErrorCode::DatabaseUnavailable, "cut off")));
        assert!(known.failure.is_some());
        known.note(answered(&[("a:1", None)]));
        assert!(known.failure.is_none());
        assert_eq!(known.reasons(), ["a:1: isolation"]);
    }
}
