//! `mantle status`: one row a replica of an index group.

use std::process::ExitCode;

use anyhow::Result;
use indicatif::{BinaryBytes, HumanCount};
use mantle_index_client::Status;
use mantle_types::Lsn;

use crate::{IndexOptions, hosted_groups, table};

/// Options of `mantle status`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    index: IndexOptions,
    /// The group; all that the replicas' processes host unless given
    #[arg(long)]
    group: Option<u32>,
}

const HEADINGS: [&str; 13] = [
    "group",
    "replica",
    "node",
    "role",
    "term",
    "epoch",
    "applied",
    "applied LSN",
    "lag",
    "locks",
    "directories",
    "index memory",
    "resident",
];

/// Shows all replicas. Fails when one does not answer or is not ready.
pub async fn run(options: Options) -> Result<ExitCode> {
    let index = options.index.client()?;
    let groups = match options.group {
        Some(group) => [group].into(),
        None => hosted_groups(&index).await,
    };
    // Without an answer from any process there is no group to be asked for: then each says so.
    let clients = groups.iter().map(|group| (group.to_string(), index.of_group(*group)));
    let clients: Vec<_> = if groups.is_empty() { vec![("-".to_owned(), index.clone())] } else { clients.collect() };
    let (mut is_whole, mut interrupted) = (true, Vec::new());
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    for (group, client) in clients {
        for (address, answer) in client.status().await {
            rows.push(match answer {
                Ok(status) => {
                    is_whole &= status.ready;
                    if !status.interruption.is_empty() {
                        interrupted
                            .push(format!("{address} does not read the change stream: {}\n", status.interruption));
                    }
                    row(address, &status)
                }
                Err(error) => {
                    is_whole = false;
                    vec![group.clone(), address, "-".into(), error.to_string()]
                }
            });
        }
    }
    crate::print(&table::table(&rows));
    interrupted.iter().for_each(crate::print);
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(address: String, status: &Status) -> Vec<String> {
    let role = if status.ready { status.role.clone() } else { format!("{} (not ready)", status.role) };
    vec![
        status.group.to_string(),
        address,
        status.node_id.to_string(),
        role,
        status.term.to_string(),
        status.epoch.to_string(),
        status.applied_index.to_string(),
        Lsn(status.applied_lsn).to_string(),
        lag(status),
        HumanCount(status.locks).to_string(),
        HumanCount(status.directories).to_string(),
        BinaryBytes(status.index_bytes).to_string(),
        BinaryBytes(status.resident_bytes).to_string(),
    ]
}

/// WAL that PostgreSQL has sent and the index has not applied; of the source that is furthest behind. Only a leader knows.
fn lag(status: &Status) -> String {
    let of_sources = status.sources.iter().filter(|_| status.streaming).map(|source| source.lag_bytes);
    of_sources.max().map_or_else(|| "-".to_owned(), |bytes| BinaryBytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_a_dead_replica_has_its_error() {
        let status =
            Status { node_id: 7, role: "leader".into(), ready: true, directories: 154_355, ..Status::default() };
        let rows = [
            HEADINGS.map(str::to_owned).to_vec(),
            row("127.0.0.1:7411".into(), &status),
            vec!["1".into(), "127.0.0.1:7412".into(), "-".into(), "no answer".into()],
        ];
        let text = table::table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("directories"), lines[1].find("154,355"));
        assert!(lines[2].ends_with("no answer"));
    }
}
