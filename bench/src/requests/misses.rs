//! Statements that the gateway sends to PostgreSQL for a stat, by pg_stat_statements: of directories that are there, and
//! of directories that are not.

use std::time::Duration;

use anyhow::Result;
use hyper::StatusCode;

use super::directories::{Api, MANY, chain};
use crate::{
    measure::run_clients,
    report::{Report, count, short},
    sql::Session,
};

/// The gateways' role.
const ROLE: &str = "gateway";
/// A statement with this text asks how far a node's log is, for many misses at once. All others look for an entry.
const POSITION: &str = "flush_lsn() AS lsn";
const SHOWN: usize = 4;

pub struct Misses {
    /// Statements for each 404 that look for its entry.
    pub looked: f64,
}

/// Counts with `admin`, a superuser; none without the module that counts.
pub async fn run(api: &Api<'_>, admin: &Session, period: Duration, report: &mut Report) -> Result<Option<Misses>> {
    report.heading("Statements of the gateway for a stat");
    if !admin.make_statement_counter().await? {
        report.paragraph("Not counted: pg_stat_statements is not loaded.");
        return Ok(None);
    }
    let connections = api.connections(MANY);
    let base = chain("counted");
    api.mkdir(&connections[0], &format!("{base}/leaf/there?parents=true")).await?;
    let (mut rows, mut misses) = (Vec::new(), None);
    for (name, status) in [("hit", StatusCode::OK), ("404", StatusCode::NOT_FOUND)] {
        admin.count_statements(true).await?;
        let stat = |client: usize, round: usize| {
            let connection = &connections[client];
            let path = match status {
                StatusCode::OK => format!("{base}/leaf/there/"),
                _ => format!("{base}/leaf/no{client}-{round}/"),
            };
            async move { api.stat(connection, &path, status).await }
        };
        let counted = run_clients(MANY, period, stat).await;
        let statements = admin.statements(ROLE).await?;
        admin.count_statements(false).await?;
        let stats = counted?.1.len() as f64;
        let looking =
            statements.iter().filter(|(text, _)| !text.contains(POSITION)).map(|(_, calls)| calls).sum::<i64>();
        if status != StatusCode::OK {
            misses = Some(Misses { looked: looking as f64 / stats });
        }
        for (text, calls) in statements.iter().take(SHOWN) {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "¦");
            let text: String = text.chars().take(90).collect();
            rows.push([name.to_owned(), count(stats as u64), format!("`{text}`"), exact(*calls as f64 / stats)]);
        }
        if statements.is_empty() {
            rows.push([name.to_owned(), count(stats as u64), "none".to_owned(), exact(0.0)]);
        }
    }
    report.paragraph(&format!(
        "{MANY} clients over REST, own names, in one leaf of ten levels, apart from the rounds above. Statements of \
         the role `{ROLE}`, counted by pg_stat_statements, which counts nothing during other measurements; the most \
         frequent ones. One statement serves many requests.",
    ));
    report.table("stat | requests | statement | for each request", &rows);
    Ok(misses)
}

fn exact(value: f64) -> String {
    if value == 0.0 || value >= 0.01 { short(value) } else { format!("{value:.4}") }
}
