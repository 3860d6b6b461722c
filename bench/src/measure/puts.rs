//! `mantle.put_object` called in SQL, by elements a batch: larger batches share a call and a commit. On a server alone,
//! or on a stack's server, whose index reads the WAL.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, run_clients};
use crate::{
    machine,
    report::{Report, count, short},
    sql::{Session, Store},
};

/// Elements a batch, and sessions at once.
const ROWS: [(usize, usize); 8] = [(1, 2), (1, 8), (1, 32), (8, 8), (64, 2), (64, 8), (512, 2), (512, 8)];
const SESSIONS_MAX: usize = 32;
const DIRECTORIES: usize = 512;
/// New ids of one measurement.
const IDS: i64 = 8_000_000;

/// Measure `mantle.put_object` on a PostgreSQL alone
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each throughput
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Direct PostgreSQL URL of a superuser, on this machine, of a new server
    #[arg(long, env = "MANTLE_PLAIN_URL", value_name = "URL", hide_env_values = true)]
    plain: String,
}

pub async fn run_alone(options: &Options) -> Result<Report> {
    let mut facts = machine::facts(&Session::connect(&options.plain).await?).await?;
    facts.push(format!("seconds        {} each throughput (--seconds)", options.seconds));
    let mut report = Report::new(
        "put_object by batch",
        "Written by `make bench ONLY=puts` (`mantle-bench puts`); do not edit. A plain PostgreSQL with the extension and its \
         compaction worker, and the client, on one machine; nothing reads the WAL.",
        &facts,
    );
    let (url, period) = (options.plain.as_str(), Duration::from_secs(options.seconds));
    measure(url, &Session::connect(url).await?, "bench-puts", period, &mut report).await?;
    Ok(report)
}

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("put_object by batch, called in SQL, while the index reads the WAL");
    let admin = Session::connect(&bench.options.stack.admin).await?;
    measure(&bench.options.stack.database, &admin, &format!("{}-puts", bench.ns), bench.period / 2, report).await
}

/// Measures in a new namespace. The textbook exists while this runs.
async fn measure(url: &str, admin: &Session, ns: &str, period: Duration, report: &mut Report) -> Result<()> {
    admin.make_textbook().await?;
    let measured = measure_beside_textbook(url, admin, ns, period, report).await;
    admin.drop_textbook().await?;
    measured
}

async fn measure_beside_textbook(
    url: &str,
    admin: &Session,
    ns: &str,
    period: Duration,
    report: &mut Report,
) -> Result<()> {
    let mut clients = Vec::new();
    for session in Session::several(url, SESSIONS_MAX).await? {
        let puts = [session.prepare_puts(Store::Mantle).await?, session.prepare_puts(Store::Textbook).await?];
        clients.push((session, puts));
    }
    let first = &clients[0].0;
    let ns_id = first.allocate_ids(1).await?;
    first.create_namespace(ns, ns_id).await?;
    let first_directory = first.allocate_ids(DIRECTORIES as i64).await?;
    for at in 0..DIRECTORIES as i64 {
        first.mkdir(ns_id, ns_id, &format!("d{at}"), first_directory + at).await?;
    }
    admin.textbook_counts(ns_id, first_directory, first_directory + DIRECTORIES as i64 - 1).await?;
    first.wait_for_vacuum().await?;
    let mut rows = Vec::new();
    for (batch, sessions) in ROWS {
        let mut measured = [[0.0; 2]; 2];
        for (rates, spread) in measured.iter_mut().zip([1, DIRECTORIES]) {
            for (store, rate) in rates.iter_mut().enumerate() {
                let first_id = first.allocate_ids(IDS).await?;
                let client_ids = IDS / sessions as i64;
                let (calls, _) = run_clients(sessions, period, |client, round| {
                    let from = first_id + client_ids * client as i64 + (round * batch) as i64;
                    // The session's own directory, or `spread` of them in turn.
                    let pids: Vec<i64> =
                        (0..batch).map(|i| first_directory + ((client + i % spread) % DIRECTORIES) as i64).collect();
                    let (session, puts) = &clients[client];
                    async move { session.put_objects(&puts[store], ns_id, pids, from).await }
                })
                .await?;
                *rate = calls * batch as f64;
            }
        }
        let [one, spread] = measured.map(|[mantle, textbook]| [count(mantle as u64), short(mantle / textbook)]);
        let [[one, to_textbook], [spread, spread_to_textbook]] = [one, spread];
        rows.push([count(batch as u64), count(sessions as u64), one, to_textbook, spread, spread_to_textbook]);
    }
    report.paragraph(&format!(
        "New objects, direct sessions, prepared statements, `fsync` on. All elements of a batch go to one directory of the \
         session's own, or spread over {DIRECTORIES} directories. Textbook (baseline): the same rows into a table with the same \
         indexes, and an UPDATE of each directory's row of counts; it checks nothing.",
    ));
    report.table(
        "elements a batch | sessions | one directory: puts/s | to textbook | spread: puts/s | to textbook",
        &rows,
    );
    Ok(())
}
