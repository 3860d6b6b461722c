//! `mantle-bench`: measures a running Mantle and writes the report as Markdown.
//!
//! It needs a stack of its own: it makes namespaces (`bench-…`) and leaves them. A figure and its baseline are measured
//! in the same run, in turn where the calls are comparable, because ratios hold better than absolute figures.

mod bounds;
mod busy;
mod citus;
mod cpu;
mod disk;
mod http;
mod input;
mod lookup;
mod machine;
mod measure;
mod peers;
mod plot;
mod probes;
mod report;
mod requests;
mod rest;
mod s3;
mod sample;
mod sign;
mod signed_s3;
mod soak;
mod sql;
mod stack;
mod system_calls;
mod tls;
mod versions;
mod volume_size;
mod volumes;
mod wire;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use mantle_index_client::IndexClient;
use mantle_types::GroupId;
use tokio::runtime::Builder;

use crate::{
    input::Input,
    measure::Bench,
    report::{Report, count},
    rest::Rest,
    s3::S3,
    sql::Session,
    stack::Stack,
};

/// The IndexNode's allocator, for the replicas of `index-replicas`. The callers have it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// In the order in which they run.
const MEASUREMENTS: [&str; 12] =
    ["load", "rebuild", "analysts", "lookup", "list", "rename", "mkdir", "puts", "contention", "s3", "put", "inline"];
/// Not part of the whole: they write tens of gigabytes, or need gateways of their own.
const ONLY_BY_NAME: [&str; 3] = ["s3", "put", "inline"];

/// Measure a running Mantle
#[derive(Parser)]
#[command(name = "mantle-bench", version)]
struct Cli {
    /// Where the report goes; standard output when absent
    #[arg(long, value_name = "FILE", global = true)]
    output: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Measure(Box<Options>),
    Soak(soak::Options),
    Citus(citus::Options),
    Puts(measure::puts::Options),
    Lookup(lookup::Options),
    Tls(tls::Options),
    Requests(Box<requests::Options>),
    Versions(versions::Options),
    Volumes(volumes::Options),
    VolumeSize(Box<volume_size::Options>),
    #[command(hide = true)]
    IndexReplicas(lookup::serve::Options),
    #[command(hide = true)]
    Busy(busy::Options),
}

/// Measure everything, with baselines
#[derive(clap::Args)]
struct Options {
    /// The listing to load: one path a line
    #[arg(long, value_name = "FILE")]
    listing: PathBuf,
    /// The `mantle` program
    #[arg(long, value_name = "FILE")]
    mantle: PathBuf,
    /// Calls for each latency of one client
    #[arg(long, value_name = "N", default_value_t = 2000)]
    calls: usize,
    /// Seconds of each throughput
    #[arg(long, env = "MANTLE_BENCH_SECONDS", value_name = "N", default_value_t = 5)]
    seconds: u64,
    #[command(flatten)]
    stack: Stack,
    /// The S3 endpoint
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL")]
    s3_endpoint: String,
    /// More gateways, for the measurements with two; separated by commas
    #[arg(long, env = "MANTLE_MORE_URLS", value_name = "URLS", value_delimiter = ',')]
    more_urls: Vec<String>,
    /// Gateways that gather no calls (`postgres.batch_elements_max = 1`); separated by commas
    #[arg(long, env = "MANTLE_NOT_GATHERING_URLS", value_name = "URLS", value_delimiter = ',')]
    not_gathering_urls: Vec<String>,
    /// Another S3 service on this machine to measure beside, by `name,url,pid`
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
    /// Its access key
    #[arg(long, env = "MANTLE_PEER_ACCESS_KEY", default_value = "")]
    peer_access_key: String,
    /// Its secret key
    #[arg(long, env = "MANTLE_PEER_SECRET_KEY", default_value = "", hide_env_values = true)]
    peer_secret_key: String,
    /// A folder with MinIO, beside which `put` measures puts; without it that is left out
    #[arg(long, env = "PEERS", value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Two gateways for `put` whose volumes cannot grow, separated by a semicolon: `url,probes` of each
    #[arg(long, value_name = "GATEWAYS", value_delimiter = ';')]
    churn: Vec<String>,
    /// Only these, by comma: load, rebuild, analysts, lookup, list, rename, mkdir, puts, contention, s3, put, inline
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The role of DATABASE_URL through the pooler, for the baselines
    #[arg(long, env = "MANTLE_POOLER_URL", value_name = "URL", hide_env_values = true)]
    pooler: String,
}

fn main() -> Result<ExitCode> {
    let Cli { output, command } = Cli::parse();
    let mut runtime = match command {
        // One thread: callers share the processors with the measured processes, and a call that passes from thread to
        // thread wakes two processors.
        Command::Lookup(_)
        | Command::Measure(_)
        | Command::Puts(_)
        | Command::Tls(_)
        | Command::Requests(_)
        | Command::Versions(_)
        | Command::VolumeSize(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(perform(command, output))
}

async fn perform(command: Command, output: Option<PathBuf>) -> Result<ExitCode> {
    let (report, held) = match command {
        Command::Measure(options) => run(*options).await?,
        Command::Soak(options) => soak::run(&options).await?,
        Command::Citus(options) => citus::run(&options).await?,
        Command::Puts(options) => (measure::puts::run_alone(&options).await?, true),
        Command::Lookup(options) => (lookup::run(&options).await?, true),
        Command::Tls(options) => tls::run(&options).await?,
        Command::Requests(options) => requests::run(&options, output.as_deref()).await?,
        Command::Versions(options) => (versions::run(&options).await?, true),
        Command::Volumes(options) => volumes::run(&options).await?,
        Command::VolumeSize(options) => (volume_size::run(&options).await?, true),
        Command::IndexReplicas(options) => return lookup::serve::serve(&options).await.map(|()| ExitCode::SUCCESS),
        Command::Busy(options) => return busy::work(&options).map(|()| ExitCode::SUCCESS),
    };
    report.save(output.as_deref())?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures; answers the report and whether the bounds held.
async fn run(options: Options) -> Result<(Report, bool)> {
    let gateways = |urls: &[String]| urls.iter().map(|url| Rest::new(url, &options.stack.token)).collect::<Vec<_>>();
    let rest = Rest::new(&options.stack.url, &options.stack.token);
    let database: tokio_postgres::Config = options.stack.database.parse()?;
    let bench = Bench {
        gathering: [std::slice::from_ref(&rest), &gateways(&options.more_urls)].concat(),
        not_gathering: gateways(&options.not_gathering_urls),
        rest,
        database_role: database.get_user().context("no role in the database's URL")?.to_owned(),
        s3: S3::new(&options.s3_endpoint, &options.stack.region, &options.stack.access_key, &options.stack.secret_key)?,
        index: IndexClient::connect_lazy(options.stack.index.split(',').map(str::to_owned).collect(), None)?
            .of_group(GroupId(1)),
        input: Input::read(&options.listing)?,
        ns: format!("bench-{}", chrono::Utc::now().format("%Y%m%d-%H%M%S")),
        period: Duration::from_secs(options.seconds),
        options,
    };
    let options = &bench.options;
    let mut facts = machine::facts(&Session::connect(&options.pooler).await?).await?;
    facts.push(format!("listing        {} different keys", count(bench.input.len() as u64)));
    facts.push(format!("seconds        {} each throughput (--seconds)", options.seconds));
    let mut report = Report::new(
        "Bench",
        "Written by `make bench` (`mantle-bench measure`); do not edit. One machine runs everything: PostgreSQL, PgBouncer, \
         three index replicas, the gateways and the clients. Ratios hold better than absolute figures.",
        &facts,
    );
    let mut are_held = true;
    // Reads come first, so that the vacuum after a load does not disturb the latency of writes.
    for name in MEASUREMENTS {
        let is_chosen = options.only.iter().any(|only| only == name);
        if !is_chosen && (!options.only.is_empty() || ONLY_BY_NAME.contains(&name)) {
            continue;
        }
        match name {
            "load" => measure::load::run(&bench, &mut report).await?,
            "rebuild" => measure::rebuild::run(&bench, &mut report).await?,
            "analysts" => measure::analysts::run(&bench, &mut report).await?,
            "lookup" => measure::lookup::run(&bench, &mut report).await?,
            "list" => measure::list::run(&bench, &mut report).await?,
            "rename" => measure::rename::run(&bench, &mut report).await?,
            "mkdir" => measure::mkdir::run(&bench, &mut report).await?,
            "puts" => measure::puts::run(&bench, &mut report).await?,
            "s3" => measure::s3::run(&bench, &mut report).await?,
            "put" => are_held &= measure::put::run(&bench, &mut report).await?,
            "inline" => measure::inline::run(&bench, &mut report).await?,
            _ => measure::contention::run(&bench, &mut report).await?,
        }
    }
    Ok((report, are_held))
}
