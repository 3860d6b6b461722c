//! `mantle-indexnode`: one replica of an IndexNode group.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use mantle_indexnode::{config::Config, process};
use mantle_telemetry::Telemetry;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing_subscriber::EnvFilter;

/// glibc's gives memory back to the kernel, and takes it again, in the middle of applying, while lookups wait. In turns on one
/// machine with its processors awake, the 99th percentile of eight callers beside 50,000 applies a second was 127 µs with it
/// and 103–112 with this one, for 16 MB more of a process. Version 2: version 3 kept 99–110 resident bytes a directory instead
/// of 70–80. Its huge pages stay on: on another machine 125 µs with them and 145 without (`no_thp`), for 14 of those 16 MB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One replica of an IndexNode group: keeps the directories of its namespaces in memory.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file (TOML).
    #[arg(long)]
    config: PathBuf,
    /// Check the configuration and exit.
    #[arg(long)]
    check_config: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("mantle-indexnode: {}", format!("{e:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// Leaves out the protection that the environment names.
#[cfg(feature = "failpoints")]
fn leave_out() -> Result<()> {
    use mantle_indexnode::failpoints::{Failpoint, switch_on};

    if let Ok(name) = std::env::var("MANTLE_FAILPOINT") {
        switch_on(Failpoint::named(&name).with_context(|| format!("MANTLE_FAILPOINT: no failpoint is called {name}"))?);
        tracing::error!(failpoint = name, "a protection is left out: answers may be wrong");
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<()> {
    let config = Config::read(&arguments.config)?;
    if arguments.check_config {
        println!("{}: ok", arguments.config.display());
        return Ok(());
    }
    let wished = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let mut filter = EnvFilter::try_new(&wished).context("RUST_LOG")?;
    if !wished.contains("openraft") {
        // What it warns of (a peer that does not answer) is told by ourselves, once, where it matters.
        filter = filter.add_directive("openraft=error".parse().context("log filter")?);
    }
    let is_terminal = std::io::stderr().is_terminal();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads)
        .enable_all()
        .build()
        .context("tokio")?;
    runtime.block_on(async {
        let telemetry = Telemetry::install("mantle-indexnode", filter, is_terminal)?;
        #[cfg(feature = "failpoints")]
        leave_out()?;
        let (tell, stop) = watch::channel(false);
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping");
            tell.send_replace(true);
        });
        // Not on this thread, which does not take part in the runtime's scheduling.
        let ended = tokio::spawn(process::run(config, stop)).await.context("the replica panicked")?;
        telemetry.end().await;
        ended
    })
}
