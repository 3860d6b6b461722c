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

/// glibc's allocator returns memory to the kernel and takes it again in the middle of apply, while lookups wait. Measured in
/// turns on a machine whose processors do not halt, p99 of eight callers beside 50,000 applies/s: 127 µs with glibc, 103–112 µs
/// with mimalloc, which takes 16 MB more per process. Version 2, because version 3 kept 99–110 resident bytes a directory
/// instead of 70–80. Huge pages stay on: on another machine 125 µs with them, 145 µs without (`no_thp`), for 14 of the 16 MB.
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

#[cfg(feature = "failpoints")]
fn switch_on_failpoint() -> Result<()> {
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
    mantle_tls::process::prepare();
    let directives = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let mut filter = EnvFilter::try_new(&directives).context("RUST_LOG")?;
    if !directives.contains("openraft") {
        // Its warnings (a peer that does not answer) are ours too, logged once, where they matter.
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
        switch_on_failpoint()?;
        let (stopping, stop) = watch::channel(false);
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping");
            stopping.send_replace(true);
        });
        // A task, because the main thread is not a worker of the runtime.
        let ended = tokio::spawn(process::run(config, stop)).await.context("the replica panicked")?;
        telemetry.end().await;
        ended
    })
}
