//! Directories of HDFS, by its own client (`bench/fsjava` of the peers' folder), which runs the phases in a process
//! of its own and prints a line for each. Processor time of a phase is taken between two lines.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use procfs::process::Process;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use super::{
    directories::{DEPTH, Leaf, MANY},
    figures::{Clock, Key, Rounds, Turn},
};
use crate::{cpu::Servers, peers::Installed};

/// Directories, and as many files, that all clients make together. With [`MANY`] clients a leaf of one client's own
/// then has 500 entries, and the one leaf of all 16,000, as in Mantle.
pub const MADE: usize = 8_000;
/// One client makes fewer by this factor.
const ONE_MAKES_FEWER: usize = 8;

/// One line: phase, rate, percentiles, calls.
#[derive(Debug, PartialEq)]
struct Phase {
    name: String,
    rate: f64,
    p50: f64,
    p99: f64,
    calls: usize,
}

/// Reads `mkdir threads=32 7857 op/s p50 3.90 ms p99 9.10 ms n 8000 errors 0`; none for other lines. Errors of the
/// phase are an error.
fn phase(line: &str) -> Option<Result<Phase>> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, _threads, rate, "op/s", "p50", p50, "ms", "p99", p99, "ms", "n", calls, "errors", errors, ..] =
        words[..]
    else {
        return None;
    };
    let read = || {
        ensure!(errors == "0", "HDFS: {line}");
        let number = |text: &str| text.parse().with_context(|| format!("HDFS: {line}"));
        let (rate, p50, p99, calls) = (number(rate)?, number(p50)?, number(p99)?, calls.parse()?);
        Ok(Phase { name: name.to_owned(), rate, p50, p99, calls })
    };
    Some(read())
}

/// The name of the same operation in Mantle's table; none if it has no such.
fn operation(phase: &str, leaf: Leaf) -> Option<String> {
    match phase {
        "list" => Some(leaf.listing().to_owned()),
        "mkdir" | "stat" | "rename" | "rmdir" => Some(leaf.of(phase)),
        _ => None,
    }
}

/// One round: many clients with own leaves, many in one leaf, one client. `made`: [`MADE`], or fewer on a slow machine.
pub async fn round(installed: &Installed, servers: &Servers, made: usize, rounds: &mut Rounds) -> Result<()> {
    for (clients, leaf) in [(MANY, Leaf::Own), (MANY, Leaf::One), (1, Leaf::Own)] {
        phases(installed, servers, (clients, leaf), made, rounds).await?;
    }
    Ok(())
}

/// Runs the client's phases, twice: the first ones warm up.
async fn phases(
    installed: &Installed,
    servers: &Servers,
    (clients, leaf): (usize, Leaf),
    made: usize,
    rounds: &mut Rounds,
) -> Result<()> {
    // A listing is comparable with the usual number of entries alone.
    let has_listing = clients > 1 && made == MADE;
    let made = if clients == 1 { made / ONE_MAKES_FEWER } else { made };
    let leaves = if leaf == Leaf::Own { "own" } else { "shared" };
    let mut command = Command::new(installed.peers.join("bench/fsjava/run-hdfs.sh"));
    command.args([clients, made, DEPTH].map(|number| number.to_string())).args([leaves, "warm"]);
    command.env("PEERS", &installed.peers).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let client = Process::new(child.id().context("HDFS: the client has ended")? as i32)?;
    let used = || -> Result<Duration> {
        let stat = client.stat().context("HDFS: the client has ended")?;
        Ok(Duration::from_millis((stat.utime + stat.stime) * 1_000 / procfs::ticks_per_second()))
    };
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let (mut clock, mut before, mut found) = (Clock::start(servers)?, used()?, Vec::<(Phase, Vec<_>)>::new());
    while let Some(line) = lines.next_line().await? {
        let Some(phase) = phase(&line) else { continue };
        let phase = phase?;
        // Behind the last line the client may end at any time.
        let now = used().unwrap_or(before);
        let cpu = clock.each(phase.calls, Some(now.saturating_sub(before)))?;
        found.retain(|(earlier, _)| earlier.name != phase.name);
        found.push((phase, cpu));
        (clock, before) = (Clock::start(servers)?, now);
    }
    let status = child.wait().await?;
    ensure!(status.success(), "HDFS: the client ended with {status}");
    ensure!(!found.is_empty(), "HDFS: the client measured nothing");
    for (Phase { name, rate, p50, p99, .. }, cpu) in found {
        if let Some(operation) = operation(&name, leaf).filter(|_| has_listing || name != "list") {
            let turn = Turn { rate, p50, p99, cpu, kinds: None };
            rounds.add(Key::new(&operation, clients, installed.peer.name), turn);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_read() {
        let line = "mkdir   threads=32      7857 op/s  p50 3.90 ms  p99 9.10 ms  n 8000  errors 0 ";
        let expected = Phase { name: "mkdir".into(), rate: 7857.0, p50: 3.9, p99: 9.1, calls: 8000 };
        assert_eq!(phase(line).unwrap().unwrap(), expected);
        let failed = line.replace("errors 0", "errors 2 java.io.IOException: no");
        assert!(phase(&failed).unwrap().unwrap_err().to_string().contains("java.io.IOException"));
        assert!(phase("-- warm-up round").is_none());
        assert!(phase("Picked up JAVA_TOOL_OPTIONS: -Dphase.s=3").is_none());
    }
}
