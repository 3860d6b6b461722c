//! `mantle-bench`: measures a running Mantle and writes the report as Markdown.
//!
//! Wants a stack of its own: it makes namespaces (`bench-…`) and leaves them. Every figure that has a textbook baseline is
//! measured in the same run as that baseline, call by call in turn where the calls are comparable; ratios hold better than
//! absolute figures.

mod input;
mod machine;
mod measure;
mod report;
mod rest;
mod s3;
mod sample;
mod sql;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use mantle_index_client::IndexClient;

use crate::{input::Input, measure::Bench, report::Report, rest::Rest, s3::S3, sql::Session};

/// Measure a running Mantle.
#[derive(Parser)]
#[command(name = "mantle-bench", version, about)]
struct Options {
    /// The listing to load: one path a line
    #[arg(long, value_name = "FILE")]
    listing: PathBuf,
    /// Where the report goes; standard output when absent
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The `mantle` program; beside this one when absent
    #[arg(long, value_name = "FILE")]
    mantle: Option<PathBuf>,
    /// Calls where one client's latency is measured
    #[arg(long, value_name = "N", default_value_t = 2000)]
    calls: usize,
    /// Seconds for which each throughput is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// The gateway
    #[arg(long, env = "MANTLE_URL", value_name = "URL")]
    url: String,
    /// Its bearer token
    #[arg(long, env = "MANTLE_TOKEN", hide_env_values = true)]
    token: String,
    /// The S3 endpoint
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL")]
    s3_endpoint: String,
    #[arg(long, env = "AWS_REGION")]
    region: String,
    #[arg(long, env = "AWS_ACCESS_KEY_ID")]
    access_key: String,
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    secret_key: String,
    /// Direct PostgreSQL URL of a role in mantle_gateway, for the import
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database: String,
    /// The same role through the pooler, for the baselines
    #[arg(long, env = "MANTLE_POOLER_URL", value_name = "URL", hide_env_values = true)]
    pooler: String,
    /// Addresses of the index replicas, separated by commas
    #[arg(long, env = "MANTLE_INDEX", value_name = "ADDRESSES")]
    index: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let output = options.output.clone();
    let report = run(options).await?;
    match output {
        Some(path) => std::fs::write(&path, report.text()).with_context(|| format!("cannot write {}", path.display())),
        None => {
            print!("{}", report.text());
            Ok(())
        }
    }
}

async fn run(options: Options) -> Result<Report> {
    let mantle = match options.mantle {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("mantle"),
    };
    let replicas = options.index.split(',').map(str::to_owned).collect();
    let bench = Bench {
        rest: Rest::new(&options.url, &options.token),
        s3: S3::new(&options.s3_endpoint, &options.region, &options.access_key, &options.secret_key)?,
        index: IndexClient::connect_lazy(replicas)?,
        pooler_url: options.pooler,
        database_url: options.database,
        index_addresses: options.index,
        mantle,
        input: Input::read(&options.listing)?,
        listing: options.listing,
        ns: format!("bench-{}", chrono::Utc::now().format("%Y%m%d-%H%M%S")),
        calls: options.calls,
        period: Duration::from_secs(options.seconds),
    };
    let mut report = Report::default();
    machine::describe(&mut report, &bench, &Session::connect(&bench.pooler_url).await?).await?;
    measure::load::run(&bench, &mut report).await?;
    // Reads first: the vacuum that follows a load should not be what the latency of a write is measured against.
    measure::lookup::run(&bench, &mut report).await?;
    measure::list::run(&bench, &mut report).await?;
    measure::rename::run(&bench, &mut report).await?;
    measure::mkdir::run(&bench, &mut report).await?;
    measure::puts::run(&bench, &mut report).await?;
    measure::contention::run(&bench, &mut report).await?;
    Ok(report)
}
