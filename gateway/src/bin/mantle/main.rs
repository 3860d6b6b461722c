//! The `mantle` command line: bulk import of a listing, comparison of the index with PostgreSQL, and the index groups'
//! state, members and namespaces.
//!
//! Exit codes: 0 success (also for an import that refused and reported some lines), 1 failure, 2 wrong usage,
//! 130 interrupted.

mod connect;
mod fsck;
mod import;
mod members;
mod namespaces;
mod replicas;
mod sql;
mod status;
mod table;

use std::{collections::BTreeSet, io::Write as _, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use mantle_index_client::IndexClient;
use mantle_types::GroupId;

/// Tools for a Mantle namespace.
#[derive(Parser)]
#[command(name = "mantle", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load a list of paths into a namespace, at the speed of COPY
    Import(import::Options),
    /// Show role, positions, directories and memory of every index replica, of one group or all
    Status(status::Options),
    /// Compare every replica of the index with PostgreSQL, and check PostgreSQL's own tables
    Fsck(fsck::Options),
    /// Show the members of an index group, or change them: promote, demote, remove, lead
    Members(members::Options),
    /// Show which index group serves each namespace, or move one to another group while it is used
    Namespaces(namespaces::Options),
}

#[derive(clap::Args)]
struct IndexOptions {
    /// Addresses of the index replicas, separated by commas (`host:port`)
    #[arg(long = "index", env = "MANTLE_INDEX", value_name = "ADDRESSES", value_delimiter = ',')]
    replicas: Vec<String>,
}

impl IndexOptions {
    /// A client of the replicas; an error if no replica is named.
    fn client(self) -> Result<IndexClient> {
        ensure!(!self.replicas.is_empty(), "no index replica is named (--index, MANTLE_INDEX)");
        IndexClient::connect_lazy(self.replicas).context("--index, MANTLE_INDEX")
    }
}

#[derive(clap::Args)]
struct GroupOption {
    /// The index group; all that the replicas host unless given
    #[arg(long)]
    group: Option<u32>,
}

impl GroupOption {
    /// The given group, or those that the answering replicas host.
    async fn of(self, index: &IndexClient) -> BTreeSet<GroupId> {
        match self.group {
            Some(group) => [GroupId(group)].into(),
            None => replicas::answering(index).await.into_iter().flat_map(|(_, s)| s.groups).map(GroupId).collect(),
        }
    }
}

/// Writes to standard output. The reader may have gone (`| head`); ignore the error.
fn print(text: &impl std::fmt::Display) {
    let _ = write!(std::io::stdout(), "{text}");
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("mantle: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Import(options) => import::run(options).await,
            Command::Status(options) => status::run(options).await,
            Command::Fsck(options) => fsck::run(options).await,
            Command::Members(options) => members::run(options).await,
            Command::Namespaces(options) => namespaces::run(options).await,
        }
    });
    // A read of a listing from a pipe may block for ever; do not wait for it.
    runtime.shutdown_background();
    outcome
}
