//! `mantle status`: two tables with a row for each replica of an index group, one of its state and one of its load.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use anyhow::Result;
use indicatif::{BinaryBytes, HumanCount};
use mantle_index_client::{IndexClient, Status, proto::SourceStatus};
use mantle_types::Lsn;

use crate::{GroupOption, IndexOptions, table};

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    index: IndexOptions,
    #[command(flatten)]
    groups: GroupOption,
    /// Duration of the count for lookups/s; 0 shows no rate
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    seconds: f64,
}

const SECONDS_MAX: f64 = 3600.0;

fn seconds(given: &str) -> Result<f64, String> {
    let seconds = given.parse::<f64>().ok().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("a number from 0 to {SECONDS_MAX} is expected"))
}

pub async fn run(options: Options) -> Result<ExitCode> {
    let window = Duration::from_secs_f64(options.seconds);
    let index = options.index.client()?;
    let groups = options.groups.of(&index).await;
    // If no process answers, no group is known; the table then has each replica's error.
    let clients = groups.iter().map(|group| (group.to_string(), index.of_group(*group)));
    let clients: Vec<_> = if groups.is_empty() { vec![("-".to_owned(), index.clone())] } else { clients.collect() };
    let (mut is_whole, mut interrupted) = (true, Vec::new());
    let none = Status::default();
    let (mut rows, mut loads) = (vec![headings(state("", &none))], vec![headings(load("", &none, None))]);
    let before = if window.is_zero() { HashMap::new() } else { lookups(&clients).await };
    tokio::time::sleep(window).await;
    for (group, client) in clients {
        for (address, answer) in client.status().await {
            rows.push(match answer {
                Ok(status) => {
                    is_whole &= status.ready;
                    let before = before.get(&(status.group, address.clone())).copied();
                    loads.push(cells(load(&address, &status, before.map(|before| (before, window)))));
                    if !status.interruption.is_empty() {
                        interrupted
                            .push(format!("{address} does not read the change stream: {}\n", status.interruption));
                    }
                    cells(state(&address, &status))
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

/// The headings and cells of a row.
type Columns<const N: usize> = [(&'static str, String); N];

fn headings<const N: usize>(columns: Columns<N>) -> Vec<String> {
    columns.map(|(heading, _)| heading.to_owned()).to_vec()
}

fn cells<const N: usize>(columns: Columns<N>) -> Vec<String> {
    columns.map(|(_, cell)| cell).to_vec()
}

fn state(address: &str, status: &Status) -> Columns<13> {
    let role = if status.ready { status.role.clone() } else { format!("{} (not ready)", status.role) };
    [
        ("group", status.group.to_string()),
        ("replica", address.to_owned()),
        ("node", status.node_id.to_string()),
        ("role", role),
        ("term", status.term.to_string()),
        ("epoch", status.epoch.to_string()),
        ("applied", status.applied_index.to_string()),
        ("applied LSN", Lsn(status.applied_lsn).to_string()),
        ("lag", lag(status)),
        ("locks", HumanCount(status.locks).to_string()),
        ("directories", HumanCount(status.directories).to_string()),
        ("index memory", BinaryBytes(status.index_bytes).to_string()),
        ("resident", BinaryBytes(status.resident_bytes).to_string()),
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

/// `before` has an earlier count of lookups and its age.
fn load(address: &str, status: &Status, before: Option<(u64, Duration)>) -> Columns<8> {
    let none = || "-".to_owned();
    // The count of a replica that restarted meanwhile starts at 0.
    let rate = before.map(|(before, window)| status.lookups.saturating_sub(before) as f64 / window.as_secs_f64());
    let hits = (status.cache_lookups > 0).then(|| 100.0 * status.cache_hits as f64 / status.cache_lookups as f64);
    let each =
        (status.read_index_batches > 0).then(|| status.read_index_requests as f64 / status.read_index_batches as f64);
    [
        ("group", status.group.to_string()),
        ("replica", address.to_owned()),
        ("lookups/s", rate.map_or_else(none, |rate| HumanCount(rate.round() as u64).to_string())),
        ("cache hits", hits.map_or_else(none, |hits| format!("{hits:.1} %"))),
        ("read indexes", HumanCount(status.read_index_batches).to_string()),
        ("lookups each", each.map_or_else(none, |each| format!("{each:.2}"))),
        ("waiters", HumanCount(status.waiters).to_string()),
        ("lag by node", lag_by_node(status)),
    ]
}

/// Like [`lag`], for each source by its number.
fn lag_by_node(status: &Status) -> String {
    let of_source = |source: &SourceStatus| {
        let number = source.lineage.as_ref().map_or(0, |lineage| lineage.source);
        format!("{number}: {}", BinaryBytes(source.lag_bytes))
    };
    if status.streaming { status.sources.iter().map(of_source).collect::<Vec<_>>().join(", ") } else { "-".to_owned() }
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
        let dead = ["1", "127.0.0.1:7412", "-", "no answer"].map(str::to_owned).to_vec();
        let text = table::table(&[headings(state("", &status)), cells(state("127.0.0.1:7411", &status)), dead]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("directories"), lines[1].find("154,355"));
        assert!(lines[2].ends_with("no answer"));
    }

    #[test]
    fn a_replicas_load_is_shown_by_ratios_and_by_node() {
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
        let loaded = cells(load("a:1", &status, Some((500, Duration::from_millis(500)))));
        assert_eq!(loaded, ["2", "a:1", "10,000", "75.0 %", "100", "1.50", "7", "1: 0 B, 4: 2.00 KiB"]);
        let idle = cells(load("a:1", &Status::default(), None));
        assert_eq!(idle, ["0", "a:1", "-", "-", "0", "-", "0", "-"]);
        let restarted = cells(load("a:1", &Status::default(), Some((500, Duration::from_secs(1)))));
        assert_eq!(restarted[2], "0");
    }
}
