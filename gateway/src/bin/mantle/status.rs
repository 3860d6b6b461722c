//! `mantle status`: two tables with a row for each replica of an index group, one of its state and one of its load.

use std::time::Duration;

use anyhow::Result;
use indicatif::{BinaryBytes, HumanCount};
use mantle_index_client::{IndexClient, Status, proto::SourceStatus};
use mantle_types::Lsn;
use serde::Serialize;

use crate::{GroupOption, IndexOptions, exit::Exit, output::Output, table};

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

/// The answer of `mantle status --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer {
    /// What is not as it should be, in words; the exit code is 0 only if this is empty.
    problems: Vec<String>,
    /// The replicas that were named, for each group.
    replicas: Vec<Replica>,
}

/// A replica of an index group.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Replica {
    /// The index group; null if no replica answers.
    group: Option<u32>,
    /// As it was named.
    address: String,
    /// Why the replica does not answer; null if it does.
    error: Option<String>,
    /// What the replica says of itself; null if it does not answer.
    state: Option<State>,
}

/// What a replica says of itself.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct State {
    /// Raft's id of the replica.
    node_id: u64,
    /// `leader`, `follower`, `learner`, `candidate`, or `empty`: it has no log yet.
    role: String,
    /// Whether it answers lookups.
    ready: bool,
    /// Why it does not answer lookups; null if it does.
    not_ready: Option<String>,
    /// Its log lacked entries that it had acknowledged, so it joins again.
    log_lost: bool,
    /// Its state differed from the leader's, so it joins again.
    differs: bool,
    /// Raft's term.
    term: u64,
    /// Epoch of the last rebuild or recovery (P21, P48); the same on every replica of a group.
    epoch: u64,
    /// Log index of the last committed entry that it knows.
    committed_index: u64,
    /// Log index of the last applied entry.
    applied_index: u64,
    /// Directories in its index.
    directories: u64,
    /// Memory of the index.
    index_bytes: u64,
    /// Resident memory of the process.
    resident_bytes: u64,
    /// Locks of prepared renames.
    locks: u64,
    /// Lookups a second, counted for `--seconds`; null if that is 0.
    lookups_per_second: Option<f64>,
    /// Paths looked up since the process started.
    lookups: u64,
    /// Lookups that looked for a cached prefix since the process started.
    cache_lookups: u64,
    /// Those of `cache_lookups` that found a cached prefix.
    cache_hits: u64,
    /// Read indexes taken since the process started.
    read_index_batches: u64,
    /// Batches of lookups that waited for a read index.
    read_index_requests: u64,
    /// Callers that wait for a change to be applied.
    waiters: u64,
    /// Of a leader: whether it reads the change streams.
    streaming: bool,
    /// Of a leader: why it does not read the change streams; null if it does.
    interruption: Option<String>,
    /// The PostgreSQL nodes that the group reads.
    sources: Vec<Source>,
}

/// A PostgreSQL node that a group reads.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Source {
    /// As in `mantle.index_sources()`; 0 without Citus.
    source: u32,
    /// PostgreSQL's timeline.
    timeline: u32,
    /// WAL position: everything that committed on the node before it is in the index.
    applied_lsn: String,
    /// Of a streaming leader: WAL that was received and is not applied.
    lag_bytes: Option<u64>,
    /// Of a streaming leader: there is no synchronous standby, so a failover may lose applied changes.
    unprotected: bool,
}

impl State {
    /// `rate` has the lookups a second.
    fn new(status: &Status, rate: Option<f64>) -> Self {
        let source = |source: &SourceStatus| {
            let lineage = source.lineage.unwrap_or_default();
            Source {
                source: lineage.source,
                timeline: lineage.timeline,
                applied_lsn: Lsn(source.applied_lsn).to_string(),
                lag_bytes: status.streaming.then_some(source.lag_bytes),
                unprotected: source.unprotected,
            }
        };
        Self {
            node_id: status.node_id,
            role: status.role.clone(),
            ready: status.ready,
            not_ready: Some(status.not_ready.clone()).filter(|why| !why.is_empty()),
            log_lost: status.log_lost,
            differs: status.differs,
            term: status.term,
            epoch: status.epoch,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            directories: status.directories,
            index_bytes: status.index_bytes,
            resident_bytes: status.resident_bytes,
            locks: status.locks,
            lookups_per_second: rate,
            lookups: status.lookups,
            cache_lookups: status.cache_lookups,
            cache_hits: status.cache_hits,
            read_index_batches: status.read_index_batches,
            read_index_requests: status.read_index_requests,
            waiters: status.waiters,
            streaming: status.streaming,
            interruption: Some(status.interruption.clone()).filter(|why| !why.is_empty()),
            sources: status.sources.iter().map(source).collect(),
        }
    }
}

/// What every replica of a group answered.
type Answers = Vec<(String, mantle_types::Result<Status>)>;

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let window = Duration::from_secs_f64(options.seconds);
    let index = options.index.client()?;
    let groups = options.groups.of(&index).await?;
    // If no process answers, no group is known; the table then has each replica's error.
    let clients = groups.iter().map(|group| (Some(group.0), index.of_group(*group)));
    let clients: Vec<_> = if groups.is_empty() { vec![(None, index.clone())] } else { clients.collect() };
    let mut before = Vec::new();
    if !window.is_zero() {
        before = ask(&clients).await;
        tokio::time::sleep(window).await;
    }
    let now = ask(&clients).await;
    let none = Status::default();
    let (mut rows, mut loads) = (vec![headings(state("", &none))], vec![headings(load("", &none, None))]);
    let mut answer = Answer { problems: Vec::new(), replicas: Vec::new() };
    let mut exit = Exit::Fine;
    for (at, ((group, _), answers)) in clients.iter().zip(&now).enumerate() {
        let earlier = before.get(at);
        answer.problems.extend(problems(*group, answers, earlier));
        for (address, given) in answers {
            let (address, group) = (address.clone(), *group);
            match given {
                Ok(status) => {
                    let rate = earlier.and_then(|earlier| lookups(earlier, &address)).map(|before| {
                        // The count of a replica that restarted meanwhile starts at 0.
                        status.lookups.saturating_sub(before) as f64 / window.as_secs_f64()
                    });
                    rows.push(cells(state(&address, status)));
                    loads.push(cells(load(&address, status, rate)));
                    let state = Some(State::new(status, rate));
                    answer.replicas.push(Replica { group, address, error: None, state });
                }
                Err(error) => {
                    exit = exit.and(Exit::of(&error.clone().into()));
                    let name = group.map_or_else(|| "-".to_owned(), |group| group.to_string());
                    rows.push(vec![name, address.clone(), "-".into(), error.to_string()]);
                    answer.replicas.push(Replica { group, address, error: Some(error.to_string()), state: None });
                }
            }
        }
    }
    output.text(table::table(&rows));
    if loads.len() > 1 {
        output.text(format_args!("\n{}", table::table(&loads)));
        exit = if answer.problems.is_empty() { Exit::Fine } else { Exit::Fault };
    }
    answer.problems.iter().for_each(|problem| output.text(format_args!("{problem}\n")));
    output.answer(&answer);
    Ok(exit)
}

async fn ask(clients: &[(Option<u32>, IndexClient)]) -> Vec<Answers> {
    futures::future::join_all(clients.iter().map(|(_, client)| client.status())).await
}

/// Lookups that a replica had answered.
fn lookups(answers: &Answers, address: &str) -> Option<u64> {
    let (_, answer) = answers.iter().find(|(other, _)| other == address)?;
    answer.as_ref().ok().map(|status| status.lookups)
}

fn newest_epoch(answers: &Answers) -> u64 {
    answers.iter().filter_map(|(_, answer)| Some(answer.as_ref().ok()?.epoch)).max().unwrap_or(0)
}

/// What is wrong with a group. A replica applies a raised epoch a moment after its leader. So where there are earlier
/// answers, an older epoch counts only if it was older then.
fn problems(group: Option<u32>, answers: &Answers, earlier: Option<&Answers>) -> Vec<String> {
    let name = |address: &str| group.map_or_else(|| address.to_owned(), |group| format!("group {group} {address}"));
    let newest = newest_epoch(answers);
    let mut found = Vec::new();
    for (address, answer) in answers {
        let name = name(address);
        let status = match answer {
            Ok(status) => status,
            Err(error) => {
                found.push(format!("{name} does not answer: {}", error.detail()));
                continue;
            }
        };
        if !status.ready {
            let why = if status.not_ready.is_empty() { "it does not say why" } else { &status.not_ready };
            found.push(format!("{name} is not ready: {why}"));
        }
        if status.epoch < earlier.map_or(newest, newest_epoch) {
            found.push(format!("{name} has epoch {}, another replica has {newest}", status.epoch));
        }
        if !status.interruption.is_empty() {
            found.push(format!("{name} does not read the change stream: {}", status.interruption));
        }
    }
    found
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

/// `rate` has the lookups a second.
fn load(address: &str, status: &Status, rate: Option<f64>) -> Columns<8> {
    let none = || "-".to_owned();
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
        let loaded = cells(load("a:1", &status, Some(10_000.0)));
        assert_eq!(loaded, ["2", "a:1", "10,000", "75.0 %", "100", "1.50", "7", "1: 0 B, 4: 2.00 KiB"]);
        let idle = cells(load("a:1", &Status::default(), None));
        assert_eq!(idle, ["0", "a:1", "-", "-", "0", "-", "0", "-"]);
    }

    #[test]
    fn an_older_epoch_counts_once_it_has_lasted() {
        let at = |epoch| Ok(Status { ready: true, epoch, ..Status::default() });
        let group = |epochs: [u64; 2]| -> Answers {
            ["a:1", "b:1"].iter().zip(epochs).map(|(address, epoch)| ((*address).to_owned(), at(epoch))).collect()
        };
        let found = |earlier: [u64; 2], now| problems(Some(1), &group(now), Some(&group(earlier)));
        assert_eq!(found([2, 2], [2, 2]), [""; 0]);
        assert_eq!(found([2, 1], [2, 1]), ["group 1 b:1 has epoch 1, another replica has 2"]);
        assert_eq!(found([1, 1], [2, 1]), [""; 0], "raised between the two answers");
        assert_eq!(found([2, 1], [2, 2]), [""; 0]);
        assert_eq!(problems(Some(1), &group([1, 2]), None).len(), 1);
    }

    #[test]
    fn what_is_not_ready_or_does_not_answer_is_a_problem() {
        let error = mantle_types::Error::new(mantle_types::ErrorCode::IndexUnavailable, "refused");
        let empty = Status { not_ready: "it has no log yet".into(), ..Status::default() };
        let interrupted = Status { ready: true, interruption: "no slot".into(), ..Status::default() };
        let answers: Answers =
            vec![("a:1".into(), Err(error)), ("b:1".into(), Ok(empty)), ("c:1".into(), Ok(interrupted))];
        let found = problems(None, &answers, None);
        let expected = [
            "a:1 does not answer: refused",
            "b:1 is not ready: it has no log yet",
            "c:1 does not read the change stream: no slot",
        ];
        assert_eq!(found, expected);
    }
}
