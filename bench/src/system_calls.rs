//! System calls of processes that run, counted by strace. It stops a process at each call, so what is counted is slower than
//! without, and more of it may wait for the same flush.

use std::{collections::BTreeMap, process::Stdio};

use anyhow::{Context, Result, bail, ensure};
use procfs::process::all_processes;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

use crate::report::short;

const FLUSHES: [&str; 2] = ["fsync", "fdatasync"];
/// Of how many system calls the names are shown.
const SHOWN: usize = 4;
/// What strace says of a process that it attaches to, or of one that has ended meanwhile.
const ATTACHED: [&str; 2] = [" attached", "No such process"];

/// How often each system call was made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Reads the table of `strace -c`.
    fn read(text: &str) -> Self {
        let row = |line: &str| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let (calls, name) = (cells.get(3)?.parse().ok()?, *cells.last()?);
            (name != "total").then(|| (name.to_owned(), calls))
        };
        Self(text.lines().filter_map(row).collect())
    }

    fn all(&self) -> u64 {
        self.0.values().sum()
    }

    fn flushes(&self) -> u64 {
        FLUSHES.iter().filter_map(|name| self.0.get(*name)).sum()
    }

    /// The most frequent ones, the most frequent first.
    fn most(&self) -> Vec<(&str, u64)> {
        let mut calls: Vec<_> = self.0.iter().map(|(name, calls)| (name.as_str(), *calls)).collect();
        calls.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
        calls.truncate(SHOWN);
        calls
    }

    /// Cells of a table, for each of some objects: all calls, flushes, the most frequent calls by name.
    pub fn cells(&self, objects: u64) -> [String; 3] {
        let each = |calls: u64| short(calls as f64 / objects as f64);
        let most: Vec<_> = self.most().into_iter().map(|(name, calls)| format!("{name} {}", each(calls))).collect();
        [each(self.all()), each(self.flushes()), most.join(", ")]
    }
}

/// Why the system calls of this process cannot be counted; `None` if they can.
pub async fn why_not(pid: i32) -> Option<String> {
    let tried = async { Counting::begin(&[pid]).await?.stop().await };
    tried.await.err().map(|error| format!("{error:#}"))
}

/// A process with its children.
pub fn family(pid: i32) -> Result<Vec<i32>> {
    let children = all_processes()?.filter_map(|process| process.ok()?.stat().ok());
    let children = children.filter(|stat| stat.ppid == pid).map(|stat| stat.pid);
    Ok(std::iter::once(pid).chain(children).collect())
}

/// strace, which counts until it is ended.
pub struct Counting {
    strace: Child,
    table: NamedTempFile,
}

impl Counting {
    /// Counts the system calls of these processes, with all their threads, from now on.
    ///
    /// # Errors
    /// strace is not installed, or may not attach to a process.
    pub async fn begin(pids: &[i32]) -> Result<Self> {
        let table = NamedTempFile::new()?;
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-o"]).arg(table.path());
        for pid in pids {
            command.args(["-p", &pid.to_string()]);
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut strace = command.spawn().context("strace")?;
        let mut told = BufReader::new(strace.stderr.take().context("no output of strace")?);
        let (mut line, mut attached) = (String::new(), 0);
        while attached < pids.len() {
            line.clear();
            if told.read_line(&mut line).await? == 0 {
                bail!("strace ended before it counted");
            }
            ensure!(ATTACHED.iter().any(|text| line.contains(text)), "{}", line.trim());
            attached += 1;
        }
        tokio::spawn(async move {
            // It tells of new threads. Nobody needs that, and strace must not wait until somebody reads it.
            let _ = told.read_to_end(&mut Vec::new()).await;
        });
        Ok(Self { strace, table })
    }

    /// What strace has written when it has left the processes alone.
    async fn stop(mut self) -> Result<String> {
        let pid = self.strace.id().and_then(|pid| Pid::from_raw(pid as i32)).context("strace has ended")?;
        kill_process(pid, Signal::INT)?;
        self.strace.wait().await?;
        Ok(std::fs::read_to_string(self.table.path())?)
    }

    /// Answers what was called since the beginning.
    pub async fn end(self) -> Result<Counts> {
        let counts = Counts::read(&self.stop().await?);
        ensure!(counts.all() > 0, "strace counted nothing");
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_strace_is_read() {
        let counts = Counts::read(
            "% time     seconds  usecs/call     calls    errors syscall\n\
             ------ ----------- ----------- --------- --------- ----------------\n \
             60.00    0.000600           6       100         7 futex\n \
             30.00    0.000300          30        10           fdatasync\n  \
             0.00    0.000000           0         2           fsync\n\
             ------ ----------- ----------- --------- --------- ----------------\n\
             100.00    0.000900           8       112         7 total\n",
        );
        assert_eq!((counts.all(), counts.flushes()), (112, 12));
        assert_eq!(counts.most(), [("futex", 100), ("fdatasync", 10), ("fsync", 2)]);
        assert_eq!(counts.cells(10), ["11.2", "1.20", "futex 10.0, fdatasync 1.00, fsync 0.20"]);
        assert_eq!(Counts::read("strace: nothing\n"), Counts::default());
    }
}
