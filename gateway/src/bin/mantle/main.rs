//! The `mantle` command line: bulk import of a listing, comparison of the index with PostgreSQL, the index groups' state,
//! members and namespaces, and the volumes of the objects' bytes.
//!
//! Each command answers in text, or in JSON (`output`), and ends with a code of one table (`exit`).

mod connect;
mod data;
mod database_url;
mod exit;
mod fsck;
mod import;
mod members;
mod namespaces;
mod output;
mod passing;
mod replicas;
mod size;
mod sql;
mod status;
mod table;

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use mantle_index_client::IndexClient;
use mantle_tls::{Phase, Tls, TlsSettings, is_loopback};
use mantle_types::GroupId;

use crate::{
    exit::{Exit, failure},
    output::Output,
};

/// Tools for a Mantle namespace.
#[derive(Parser)]
#[command(name = "mantle", version, about, max_term_width = 100, after_help = exit_codes())]
struct Cli {
    /// Answer by one JSON document on standard output, and fail by one on standard error
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// The exit codes, for `--help`.
fn exit_codes() -> String {
    let line = |exit: Exit| format!("\n  {:<5}{}", exit.code(), exit.meaning());
    format!("Exit codes:{}", Exit::ALL.map(line).concat())
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
    /// Show the volumes of the objects' bytes, check every byte in one, move bytes into one, or prepare a device
    Data(data::Options),
    /// Estimate the connections, memory, disk and WAL that a cluster needs, from its size
    Size(size::Options),
}

#[derive(clap::Args)]
struct IndexOptions {
    /// Addresses of the index replicas, separated by commas (`host:port`)
    #[arg(long = "index", env = "MANTLE_INDEX", value_name = "ADDRESSES", value_delimiter = ',')]
    replicas: Vec<String>,
    /// Certificates of the authorities that sign the replicas' certificates, in PEM
    #[arg(long, env = "MANTLE_TLS_CA", value_name = "FILE", requires_all = ["tls_certificate", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// An administrator's certificate for the index replicas, in PEM
    #[arg(long, env = "MANTLE_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_ca")]
    tls_certificate: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, env = "MANTLE_TLS_KEY", value_name = "FILE", requires = "tls_ca")]
    tls_key: Option<PathBuf>,
}

impl IndexOptions {
    /// A client of the replicas; an error if no replica is named.
    fn client(self) -> Result<IndexClient> {
        if self.replicas.iter().all(String::is_empty) {
            return Err(failure(Exit::Usage, "no index replica is named (--index, MANTLE_INDEX)"));
        }
        let settings = match (self.tls_ca, self.tls_certificate, self.tls_key) {
            (Some(ca_file), Some(certificate_file), Some(key_file)) => {
                Some(TlsSettings { ca_file, certificate_file, key_file, phase: Phase::Strict })
            }
            _ => None,
        };
        if settings.is_none()
            && let Some(elsewhere) = self.replicas.iter().find(|replica| !is_loopback(replica).unwrap_or(false))
        {
            let why = "is another machine, so its calls need certificates (--tls-ca, --tls-certificate, --tls-key)";
            return Err(failure(Exit::Usage, format!("--index: `{elsewhere}` {why}")));
        }
        let tls = settings.map(Tls::load).transpose();
        let tls =
            tls.map_err(|error| failure(Exit::Usage, format!("{error:#} (--tls-ca, --tls-certificate, --tls-key)")))?;
        IndexClient::connect_lazy(self.replicas, tls).context("--index, MANTLE_INDEX")
    }
}

#[derive(clap::Args)]
struct GroupOption {
    /// The index group; all that the replicas host unless given
    #[arg(long)]
    group: Option<u32>,
}

impl GroupOption {
    /// The given group, or those that the answering replicas host. A group that no replica hosts is refused, but only if
    /// every replica says so: one that is down may host it.
    async fn of(self, index: &IndexClient) -> Result<BTreeSet<GroupId>> {
        let asked = index.status().await;
        let hosted: BTreeSet<GroupId> =
            asked.iter().flat_map(|(_, answer)| answer.iter().flat_map(|s| &s.groups)).copied().map(GroupId).collect();
        let Some(group) = self.group.map(GroupId) else { return Ok(hosted) };
        if !hosted.contains(&group) && asked.iter().all(|(_, answer)| answer.is_ok()) {
            let hosted: Vec<_> = hosted.iter().map(GroupId::to_string).collect();
            let text = format!("--group {group}: the IndexNodes host only {}", hosted.join(", "));
            return Err(failure(Exit::Usage, text));
        }
        Ok([group].into())
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let output = Output { is_json: cli.json };
    run(cli.command, output)
        .unwrap_or_else(|error| {
            let exit = Exit::of(&error);
            output.failure(exit, &exit::message(&error));
            exit
        })
        .into()
}

/// Answers wrong arguments, and requests for help.
fn refuse(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        Output { is_json: true }.failure(Exit::Usage, text.trim_end());
    } else {
        // If it cannot be written, nobody reads it.
        let _ = error.print();
    }
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Fine.into() }
}

fn run(command: Command, output: Output) -> Result<Exit> {
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(async {
        let outcome = match command {
            Command::Import(options) => import::run(options, output).await,
            Command::Status(options) => status::run(options, output).await,
            Command::Fsck(options) => fsck::run(options, output).await,
            Command::Members(options) => members::run(options, output).await,
            Command::Namespaces(options) => namespaces::run(options, output).await,
            Command::Data(options) => data::run(options, output).await,
            Command::Size(options) => size::run(&options, output),
        };
        connect::end_sessions().await;
        outcome
    });
    // A read of a listing from a pipe may block for ever; do not wait for it.
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use schemars::{JsonSchema, schema_for};

    use super::*;

    fn fields<T: JsonSchema>(command: &str) -> String {
        format!("### {command}\n\n{}", mantle_telemetry::settings_page::fields(&schema_for!(T).into()))
    }

    #[test]
    fn command_line_page_is_current() {
        let row = |exit: Exit| format!("| {} | `{}` | {} |\n", exit.code(), exit.name(), exit.meaning());
        let codes = format!("| code | kind | means |\n|---|---|---|\n{}", Exit::ALL.map(row).concat());
        mantle_types::pages::assert_section("command-line.md", "exit codes", &codes);
        let answers = [
            fields::<status::Answer>("mantle status"),
            fields::<members::Answer>("mantle members"),
            fields::<fsck::Answer>("mantle fsck"),
            fields::<namespaces::Answer>("mantle namespaces"),
            fields::<namespaces::Moved>("mantle namespaces move, abort"),
            fields::<data::status::Answer>("mantle data status"),
            fields::<data::scrub::Scrubbed>("mantle data scrub"),
            fields::<data::migrate::Migration>("mantle data migrate"),
            fields::<data::format::Formatted>("mantle data format"),
            fields::<import::summary::Answer<'_>>("mantle import"),
            fields::<size::Answer>("mantle size"),
        ];
        mantle_types::pages::assert_section("command-line.md", "answers", &answers.join("\n"));
    }

    #[test]
    fn help_has_every_exit_code() {
        let help = <Cli as clap::CommandFactory>::command().render_help().to_string();
        for exit in Exit::ALL {
            assert!(help.contains(&format!("\n  {:<5}{}", exit.code(), exit.meaning())), "{help}");
        }
    }
}
