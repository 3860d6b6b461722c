//! Lookup of the listing's directories by the index, against the level-by-level lookup in SQL.

use anyhow::{Result, bail};
use mantle_index_client::{IndexClient, Query};
use mantle_types::{Caller, Epoch};

use super::{Bench, run_clients, timed};
use crate::{
    report::{Report, count},
    sample::Sample,
    sql::Session,
};

const PATHS: usize = 20_000;
/// Callers at once, sharing the client's connections.
const CALLERS: usize = 64;
/// Paths of one call in the row with batches.
const PATHS_PER_CALL: usize = 64;
const SESSIONS: usize = 8;
const SEED: u64 = 15;

/// `rate`: paths a second.
fn row(name: &str, rate: f64, paths_a_call: usize, sample: &Sample) -> [String; 5] {
    let [p50, p99] = sample.cells();
    [name.to_owned(), count(rate as u64), paths_a_call.to_string(), p50, p99]
}

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Lookup");
    let paths = bench.input.some_directories(PATHS, SEED);
    let depth = paths.iter().map(Vec::len).sum::<usize>() as f64 / paths.len() as f64;
    let caller = Caller { uid: 0, gids: Vec::new() };
    let queries: Vec<Query> = paths
        .iter()
        .map(|path| Query::new(bench.ns.as_str(), path.iter().map(String::as_str), caller.clone()))
        .collect();
    let pick = |client: usize, round: usize| (client * 7919 + round) % PATHS;

    let (mut one, mut one_sql) = (Sample::default(), Sample::default());
    let session = Session::connect(&bench.options.pooler).await?;
    for call in 0..bench.options.calls {
        timed(&mut one, ask(&bench.index, &queries[call % PATHS..call % PATHS + 1])).await?;
        timed(&mut one_sql, ask_sql(&session, &bench.ns, &paths[call % PATHS])).await?;
    }
    let rate = |sample: &Sample| 1e3 / sample.p50_ms();
    let mut rows = vec![
        row("index, one caller", rate(&one), 1, &one),
        row("SQL, one caller (baseline)", rate(&one_sql), 1, &one_sql),
    ];

    let (rate, sample) = run_clients(CALLERS, bench.period, |client, round| {
        let at = pick(client, round);
        ask(&bench.index, &queries[at..=at])
    })
    .await?;
    rows.push(row("index, 64 callers, one path a call", rate, 1, &sample));
    let (rate, sample) = run_clients(SESSIONS, bench.period, |client, round| {
        let at = pick(client, round) % (PATHS - PATHS_PER_CALL);
        ask(&bench.index, &queries[at..at + PATHS_PER_CALL])
    })
    .await?;
    rows.push(row("index, 8 callers, 64 paths a call", rate * PATHS_PER_CALL as f64, PATHS_PER_CALL, &sample));
    let sessions = Session::several(&bench.options.pooler, SESSIONS).await?;
    let (rate, sample) = run_clients(SESSIONS, bench.period, |client, round| {
        ask_sql(&sessions[client], &bench.ns, &paths[pick(client, round)])
    })
    .await?;
    rows.push(row("SQL, 8 callers (baseline)", rate, 1, &sample));

    report.paragraph(&format!(
        "{} random directories of the listing, {depth:.1} components on average; one RPC a call at any depth. The client uses all \
         replicas, the leader first while it is idle. Baseline: `mantle.resolve_path` through the pooler, one statement a path.",
        count(PATHS as u64)
    ));
    report.table("lookup | paths/s | paths a call | p50 ms a call | p99 ms a call", &rows);
    Ok(())
}

async fn ask(index: &IndexClient, queries: &[Query]) -> Result<()> {
    for (answer, query) in index.resolve(Epoch(0), queries.to_vec()).await?.into_iter().zip(queries) {
        if let Err(error) = answer.outcome {
            bail!("lookup of {:?}: {error}", query.path());
        }
    }
    Ok(())
}

async fn ask_sql(session: &Session, ns: &str, path: &[String]) -> Result<()> {
    let depth = session.resolve_path(ns, path).await?;
    if depth as usize != path.len() {
        bail!("resolve_path of {path:?} found {depth} components");
    }
    Ok(())
}
