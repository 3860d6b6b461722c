//! `mantle-bench lookup`: the index's lookups over RPC, without a stack.
//!
//! Replicas run in a process of their own, with Raft, log and services as in production, but without PostgreSQL. The
//! callers are tasks of this process. Everything that is compared takes turns, so that all meet the same machine.

mod changes;
mod group;
mod levels;
mod rows;
pub mod serve;
pub mod tls;
mod tree;
mod writer;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use mantle_index_client::{IndexClient, Query};
use mantle_types::{Caller, Epoch, ErrorCode};

use crate::{machine, report::Report, sample::Sample};
use group::{Group, Setup};
use tree::{NAMESPACE, Tree};

/// Measure the index's lookups; needs no stack
#[derive(clap::Args)]
pub struct Options {
    /// A listing for the rows `levels`: one path a line
    #[arg(long, value_name = "FILE")]
    listing: PathBuf,
    /// Seconds of each turn
    #[arg(long, value_name = "N", default_value_t = 2)]
    seconds: u64,
    /// Turns
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: usize,
    /// Directories of the largest tree, for the rows `scale`
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    directories_max: u64,
    /// Only these, by comma: throughput, latency, scale, writes, invalidation, snapshots, followers, levels, batching
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<String>,
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|name| name == row)
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// Different paths; each caller looks them up in turn.
const PATHS: usize = 50_000;

fn queries(tree: &Tree, level: usize) -> Arc<[Query]> {
    let (namespace, caller): (Arc<str>, _) = (NAMESPACE.into(), Arc::new(Caller { uid: 9, gids: vec![100] }));
    (0..PATHS as u64)
        .map(|choice| {
            Query::new(namespace.clone(), tree.path(level, choice).iter().map(String::as_str), caller.clone())
        })
        .collect()
}

struct Measured {
    rate: f64,
    sample: Sample,
    /// Lookups of paths that did not exist.
    missed: u64,
}

/// Runs `callers` tasks for `period`; each looks up one path after the other. A missing path is an error unless
/// `may_miss`; any other refusal is an error.
async fn run_callers(
    client: &IndexClient,
    queries: &Arc<[Query]>,
    callers: usize,
    period: Duration,
    may_miss: bool,
) -> Result<Measured> {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let (client, queries) = (client.clone(), queries.clone());
        tasks.spawn(async move {
            let (mut sample, mut missed) = (Sample::default(), 0);
            let mut at = caller * 7919;
            let mut asked = Instant::now();
            while asked - started < period {
                at += 1;
                let query = queries[at % queries.len()].clone();
                let answer = client.resolve_one(Epoch(0), query).await?;
                let answered = Instant::now();
                sample.add(answered - asked);
                asked = answered;
                match answer.outcome {
                    Ok(()) => {}
                    Err(error) if may_miss && error.code() == ErrorCode::NotFound => missed += 1,
                    Err(error) => bail!("lookup of {:?}: {error}", queries[at % queries.len()].path()),
                }
            }
            Ok((sample, missed))
        });
    }
    let (mut all, mut all_missed) = (Sample::default(), 0);
    while let Some(found) = tasks.join_next().await {
        let (sample, missed) = found??;
        all.merge(sample);
        all_missed += missed;
    }
    let rate = all.len() as f64 / started.elapsed().as_secs_f64();
    Ok(Measured { rate, sample: all, missed: all_missed })
}

pub async fn run(options: &Options) -> Result<Report> {
    let mut facts = machine::hardware()?;
    facts.push(format!("turns          {} of {} seconds (--turns, --seconds)", options.turns, options.seconds));
    let mut report = Report::new(
        "Bench: lookups",
        "Written by `make bench ONLY=lookup` (`mantle-bench lookup`); do not edit. Replicas run in one process, each on \
         threads of its own, callers in another; both share the machine's processors. Raft, its log and the services are those \
         of production; no PostgreSQL is behind them. Unless stated otherwise, paths have ten components, in a complete tree with names of \
         9 bytes on average. A caller without privileges looks up another path each time. Everything that is compared takes \
         turns within the run; ratios hold better than absolute figures.",
        &facts,
    );
    if options.wants("throughput") || options.wants("latency") {
        rows::throughput_and_latency(options, &mut report).await?;
    }
    for row in ["scale", "writes", "invalidation", "snapshots", "followers", "batching", "levels"] {
        if !options.wants(row) {
            continue;
        }
        match row {
            "scale" => rows::scale(options, &mut report).await?,
            "writes" => changes::writes(options, &mut report).await?,
            "invalidation" => changes::invalidation(options, &mut report).await?,
            "snapshots" => changes::snapshots(options, &mut report).await?,
            "followers" => rows::followers(options, &mut report).await?,
            "batching" => changes::batching(options, &mut report).await?,
            _ => levels::run(options, &mut report)?,
        }
    }
    Ok(report)
}

async fn warmed(group: &Group, at: std::ops::Range<usize>) -> Result<IndexClient> {
    let client = IndexClient::connect_lazy(group.addresses[at].to_vec(), group.tls.clone())?;
    run_callers(&client, &queries(&group.tree, tree::LEVELS), 256, Duration::from_millis(500), false).await?;
    Ok(client)
}
