//! Asks every node regularly what delays it or is used up (`mantle.server_problems`), for metrics and log: transactions
//! that stay open, old snapshots, connections. The log names each culprit, since a number does not say which session to
//! end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::Duration,
};

use futures::future::join_all;
use mantle_types::{Error, Result};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Store, nodes::Node, rows, sql};

/// How often the nodes are asked. An alert names a culprit within half a minute.
const INTERVAL: Duration = Duration::from_secs(5);
/// A node that does not answer in this time keeps its last answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// Gauge of the problems of a node.
const PROBLEMS_GAUGE: &str = "mantle_gateway_server_problems";
/// One problem of a node. A series ends with its problem, which the crate `metrics` does not offer.
const PROBLEM_GAUGE: &str = "mantle_gateway_server_problem";
/// The kind of the series that a node without a problem has, so that Prometheus sees one from the start.
const NONE: &str = "none";

/// A problem. Of two with the same kind and culprit, the details may differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    kind: String,
    /// Who or what, with a process id or a name.
    culprit: String,
}

/// The problems of each node, by the node's number.
#[derive(Default)]
pub struct ServerProblems(Mutex<BTreeMap<i32, BTreeSet<Problem>>>);

/// A node's number, and its problems with their details.
type Answer = (i32, Vec<(Problem, String)>);

impl ServerProblems {
    /// The series of all problems, in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut page = format!("# HELP {PROBLEM_GAUGE} 1: the problem is there now.\n# TYPE {PROBLEM_GAUGE} gauge\n");
        let mut line = |source: i32, problem: &str, culprit: &str, value: u8| {
            let (problem, culprit) = (escaped(problem), escaped(culprit));
            // Writing to a text does not fail.
            let _ = writeln!(
                page,
                "{PROBLEM_GAUGE}{{source=\"{source}\",problem=\"{problem}\",culprit=\"{culprit}\"}} {value}"
            );
        };
        for (source, problems) in &*self.0.lock() {
            line(*source, NONE, "", u8::from(problems.is_empty()));
            problems.iter().for_each(|problem| line(*source, &problem.kind, &problem.culprit, 1));
        }
        page
    }

    fn note(&self, (source, answer): Answer) {
        let mut known = self.0.lock();
        let before = known.remove(&source).unwrap_or_default();
        for (problem, detail) in answer.iter().filter(|(problem, _)| !before.contains(problem)) {
            let Problem { kind, culprit } = problem;
            tracing::warn!(
                source,
                problem = kind,
                culprit,
                detail,
                "a PostgreSQL server is held up, or runs out of something"
            );
        }
        let now: BTreeSet<Problem> = answer.into_iter().map(|(problem, _)| problem).collect();
        for Problem { kind, culprit } in before.difference(&now) {
            tracing::info!(source, problem = kind, culprit, "a problem of a PostgreSQL server is over");
        }
        metrics::gauge!(PROBLEMS_GAUGE, "source" => source.to_string()).set(now.len() as f64);
        known.insert(source, now);
    }
}

/// A label's value, as Prometheus' text format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Store {
    /// Reads the problems for ever.
    pub async fn watch_servers(&self) {
        self.server_problems.note((0, Vec::new()));
        loop {
            // Requests that need the database report the failure.
            if let Ok(nodes) = self.nodes.all().await {
                let answers = join_all(nodes.iter().map(|node| timeout(NODE_TIMEOUT, ask(node)))).await;
                answers.into_iter().flatten().flatten().for_each(|answer| self.server_problems.note(answer));
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// See [`ServerProblems::render`].
    pub fn render_server_problems(&self) -> String {
        self.server_problems.render()
    }
}

async fn ask(node: &Node) -> Result<Answer> {
    let row = node.database.query_one(&sql::SERVER_PROBLEMS, &[]).await?;
    let texts = |column| rows::get::<Vec<String>>(&row, column);
    let (kinds, culprits, details) = (texts("problems")?, texts("culprits")?, texts("details")?);
    let problems = kinds.into_iter().zip(culprits).map(|(kind, culprit)| Problem { kind, culprit });
    Ok::<_, Error>((rows::get(&row, "source")?, problems.zip(details).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, culprit: &str) -> (Problem, String) {
        (Problem { kind: kind.to_owned(), culprit: culprit.to_owned() }, String::new())
    }

    fn lines(problems: &ServerProblems) -> Vec<String> {
        problems.render().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_series_ends_with_its_problem() {
        let problems = ServerProblems::default();
        problems.note((0, Vec::new()));
        let none = format!("{PROBLEM_GAUGE}{{source=\"0\",problem=\"none\",culprit=\"\"}}");
        assert_eq!(lines(&problems), [format!("{none} 1")]);
        problems.note((0, vec![problem("prepared_transaction", "'a\\b\"c\nd'")]));
        let named = r#"{source="0",problem="prepared_transaction",culprit="'a\\b\"c\nd'"} 1"#;
        assert_eq!(lines(&problems), [format!("{none} 0"), format!("{PROBLEM_GAUGE}{named}")]);
        problems.note((0, Vec::new()));
        assert_eq!(lines(&problems), [format!("{none} 1")]);
    }
}
