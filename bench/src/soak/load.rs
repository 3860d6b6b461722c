//! The sessions that write to the directory, and the one that reads its counts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::MINUTE;
use crate::{sample::Sample, sql::Session};

/// Time between two reads of the counts.
const READ: Duration = Duration::from_millis(10);
/// A delayed writer catches up at most this much, so that the rate stays even.
const BEHIND_MAX: Duration = Duration::from_secs(1);
const IDS: i64 = 1 << 20;

pub struct Load {
    pub url: String,
    /// The namespace; its root is the directory that is written to.
    pub ns: i64,
    pub started: Instant,
    pub ends: Instant,
    /// Between two commits of one writer.
    pub pause: Duration,
    pub calls_per_commit: u64,
}

impl Load {
    /// The current minute, from 0; none after the end.
    pub fn minute(&self) -> Option<usize> {
        let now = Instant::now();
        (now < self.ends).then(|| (now.duration_since(self.started).as_secs() / MINUTE.as_secs()) as usize)
    }
}

/// The element of minute `at`, made when absent.
pub fn of_minute<T: Default>(minutes: &mut Vec<T>, at: usize) -> &mut T {
    if minutes.len() <= at {
        minutes.resize_with(at + 1, T::default);
    }
    &mut minutes[at]
}

/// Writes at an even rate; answers the delta records by minute.
pub async fn write(load: std::sync::Arc<Load>) -> Result<Vec<u64>> {
    let session = Session::connect(&load.url).await?;
    session.set_delta_records("always").await?;
    let statements = session.prepare_soak().await?;
    let mut deltas = Vec::new();
    let mut ids = 0..0;
    let mut due = Instant::now();
    while let Some(minute) = load.minute() {
        if ids.end - ids.start < load.calls_per_commit as i64 {
            let first = session.allocate_ids(IDS).await?;
            ids = first..first + IDS;
        }
        let these: Vec<i64> = ids.by_ref().take(load.calls_per_commit as usize).collect();
        session.put_each(&statements, load.ns, load.ns, &these).await?;
        *of_minute(&mut deltas, minute) += load.calls_per_commit;
        due = (due + load.pause).max(Instant::now().checked_sub(BEHIND_MAX).unwrap_or(due));
        tokio::time::sleep_until(due.into()).await;
    }
    Ok(deltas)
}

/// Times `dirstat` and a statement that reads nothing, in turn; answers both by minute.
pub async fn read(load: std::sync::Arc<Load>) -> Result<Vec<(Sample, Sample)>> {
    let session = Session::connect(&load.url).await?;
    let statements = session.prepare_soak().await?;
    let mut minutes: Vec<(Sample, Sample)> = Vec::new();
    let mut entries = 0;
    let mut ticks = tokio::time::interval(READ);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while let Some(minute) = load.minute() {
        ticks.tick().await;
        let (dirstat, nothing) = of_minute(&mut minutes, minute);
        let started = Instant::now();
        session.nothing(&statements).await?;
        nothing.add(started.elapsed());
        let started = Instant::now();
        let now = session.dirstat(&statements, load.ns, load.ns).await?;
        dirstat.add(started.elapsed());
        ensure!(now >= entries, "dirstat went back from {entries} to {now} while entries were only made");
        entries = now;
    }
    Ok(minutes)
}
