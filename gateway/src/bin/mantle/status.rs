//! `mantle status`: two tables with a row for each replica of an index group, one of its state and one of its load.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use anyhow::Result;
use indicatif::{BinaryBytes, HumanCount};
use mantle_index_client::{IndexClient, Status, proto::SourceStatus};
use mantle_types::{GroupId, Lsn};

use crate::{IndexOptions, hosted_groups, table};

/// Options of `mantle status`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    index: IndexOptions,
    /// The index group; all that the replicas host unless given
    #[arg(long)]
    group: Option<u32>,
    /// Duration of the count for lookups/s; 0 shows no rate
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    seconds: f64,
}

const SECONDS_MAX: f64 = 3600.0;

fn seconds(given: &str) -> Result<f64, String> {
    let seconds = given.parse::<f64>().ok().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("a number from 0 to {SECONDS_MAX} is expected"))
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

const LOAD_HEADINGS: [&str; 8] =
    ["group", "replica", "lookups/s", "cache hits", "read indexes", "lookups each", "waiters", "lag by node"];

/// Shows all replicas. Fails when one does not answer or is not ready.
pub async fn run(options: Options) -> Result<ExitCode> {
    let window = Duration::from_secs_f64(options.seconds);
    let index = options.index.client()?;
    let groups = match options.group {
        Some(group) => [GroupId(group)].into(),
        None => hosted_groups(&index).await,
    };
    // If no process answers, no group is known; the table then has each replica's error.
    let clients = groups.iter().map(|group| (group.to_string(), index.of_group(*group)));
    let clients: Vec<_> = if groups.is_empty() { vec![("-".to_owned(), index.clone())] } else { clients.collect() };
    let (mut is_whole, mut interrupted) = (true, Vec::new());
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    let mut loads = vec![LOAD_HEADINGS.map(str::to_owned).to_vec()];
    let before = match window.is_zero() {
        true => HashMap::new(),
        false => lookups(&clients).await,
    };
    tokio::time::sleep(window).await;
    for (group, client) in clients {
        for (address, answer) in client.status().await {
            rows.push(match answer {
                Ok(status) => {
                    is_whole &= status.ready;
                    let before = before.get(&(status.group, address.clone())).copied();
                    loads.push(load(&address, &status, before.map(|before| (before, window))));
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
    if loads.len() > 1 {
        crate::print(&format!("\n{}", table::table(&loads)));
    }
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

/// Lookups that each replica has answered so far, by group and address.
async fn lookups(clients: &[(String, IndexClient)]) -> HashMap<(u32, String), u64> {
    let mut counted = HashMap::new();
    for (_, client) in clients {
        let answers = client.status().await.into_iter();
        counted.extend(answers.filter_map(|(address, status)| status.ok().map(|s| ((s.group, address), s.lookups))));
    }
    counted
}

/// A row of the load table. `before` has an earlier count of lookups and its age.
fn load(address: &str, status: &Status, before: Option<(u64, Duration)>) -> Vec<String> {
    let none = || "-".to_owned();
    // The count of a replica that restarted meanwhile starts at 0.
    let rate = before.map(|(before, window)| status.lookups.saturating_sub(before) as f64 / window.as_secs_f64());
    let hits = (status.cache_lookups > 0).then(|| 100.0 * status.cache_hits as f64 / status.cache_lookups as f64);
    let each =
        (status.read_index_batches > 0).then(|| status.read_index_requests as f64 / status.read_index_batches as f64);
    vec![
        status.group.to_string(),
        address.to_owned(),
        rate.map_or_else(none, |rate| HumanCount(rate.round() as u64).to_string()),
        hits.map_or_else(none, |hits| format!("{hits:.1} %")),
        HumanCount(status.read_index_batches).to_string(),
        each.map_or_else(none, |each| format!("{each:.2}")),
        HumanCount(status.waiters).to_string(),
        lag_by_node(status),
    ]
}

/// Like [`lag`], for each source by its number.
fn lag_by_node(status: &Status) -> String {
    let of_source = |source: &SourceStatus| {
        let number = source.lineage.as_ref().map_or(0, |lineage| lineage.source);
        format!("{number}: {}", BinaryBytes(source.lag_bytes))
    };
    match status.streaming {
        true => status.sources.iter().map(of_source).collect::<Vec<_>>().join(", "),
        false => "-".to_owned(),
    }
}

/// WAL that PostgreSQL has sent and the index has not applied, for the source with the most. Only a leader knows it.
fn lag(status: &Status) -> String {
    let of_sources = status.sources.iter().filter(|_| status.streaming).map(|source| source.lag_bytes);
    of_sources.max().map_or_else(|| "-".to_owned(), |bytes| BinaryBytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use mantle_index_client::proto::Lineage;

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

    #[test]
    fn a_replicas_load_is_told_by_ratios_and_by_node() {
        let source = |number, lag_bytes| SourceStatus {
            lineage: Some(Lineage { source: number, ..Lineage::default() }),
            lag_bytes,
            ..SourceStatus::default()
        };
        let status = Status {
            group: 2,
            streaming: true,
            lookups: 5_500,
            cache_hits: 3,
            cache_lookups: 4,
            read_index_batches: 100,
            read_index_requests: 150,
            waiters: 7,
            sources: vec![source(1, 0), source(4, 2048)],
            ..Status::default()
        };
        let told = load("a:1", &status, Some((500, Duration::from_millis(500))));
        assert_eq!(told, ["2", "a:1", "10,000", "75.0 %", "100", "1.50", "7", "1: 0 B, 4: 2.00 KiB"]);
        let idle = load("a:1", &Status::default(), None);
        assert_eq!(idle, ["0", "a:1", "-", "-", "0", "-", "0", "-"]);
        let restarted = load("a:1", &Status::default(), Some((500, Duration::from_secs(1))));
        assert_eq!(restarted[2], "0");
    }
}
