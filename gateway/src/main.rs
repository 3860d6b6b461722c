//! The gateway's process: arguments, log and signals.

use std::path::PathBuf;

use clap::Parser;
use mantle_gateway::{Credentials, config::Config, serve};
use mantle_telemetry::Telemetry;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use tracing_subscriber::EnvFilter;

/// A request allocates some hundred times, and glibc's heap took a sixth of the processor time of a HEAD.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves S3 and the native REST API of Mantle.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file (TOML).
    #[arg(long)]
    config: PathBuf,
    /// Check the configuration and the credentials file, and exit.
    #[arg(long)]
    check_config: bool,
}

/// `s3s` logs clients' mistakes as errors, and `deadpool` warns of ended connections. The gateway reports both where
/// they matter. Name a crate in `RUST_LOG` to see its log.
const QUIET: [&str; 2] = ["s3s", "deadpool"];

fn log_filter() -> EnvFilter {
    let asked = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let mut filter = if asked.is_empty() { "info".to_owned() } else { asked.clone() };
    for target in QUIET.iter().filter(|target| !asked.contains(**target)) {
        filter.push_str(&format!(",{target}=off"));
    }
    EnvFilter::new(filter)
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let config = Config::read(&arguments.config)?;
    if arguments.check_config {
        Credentials::read(&config.credentials_file)?;
        println!("{}: valid", arguments.config.display());
        return Ok(());
    }
    mantle_tls::process::prepare();
    // The allocator gives each thread a heap of its own. In huge pages, 32 blocking threads took 90 MB, and a PUT took a
    // third more processor time, since 2 MB are cleared whenever such a thread begins. A kernel without them is fine.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let runtime = Builder::new_multi_thread().worker_threads(config.threads).enable_all().build()?;
    runtime.block_on(run(&config))
}

async fn run(config: &Config) -> anyhow::Result<()> {
    let telemetry = Telemetry::install("mantle-gateway", log_filter(), false)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let served = serve(config, async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    })
    .await;
    telemetry.end().await;
    served
}
