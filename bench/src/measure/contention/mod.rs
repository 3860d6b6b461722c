//! Many clients change one directory: delta records against a textbook implementation (`sql/textbook.sql`), which
//! updates the parent's row.
//!
//! Three measurements: in PostgreSQL alone with one change a call, in PostgreSQL with gathered calls, and through
//! gateways. The ways of keeping counts take turns within each measurement, so that all meet the same machine.

mod gateways;
mod gathered;
pub mod single;
mod waits;

use std::time::{Duration, Instant};

use anyhow::Result;

use self::waits::Waits;
use super::Bench;
use crate::{
    report::{Report, count, short},
    sample::Sample,
    sql::{Session, Signer, Store},
};

/// A way to keep counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    /// For readers who have not read the page.
    legend: &'static str,
    store: Store,
}

impl Way {
    /// Mantle's ways are values of `mantle.delta_records`.
    pub const ALL: [Self; 4] = [
        Self { name: "auto", legend: "Mantle (delta_records = auto, the default)", store: Store::Mantle },
        Self { name: "always", legend: "Mantle (always)", store: Store::Mantle },
        Self { name: "never", legend: "Mantle (never)", store: Store::Mantle },
        Self { name: "textbook", legend: "textbook (updates the parent's row)", store: Store::Textbook },
    ];
}

/// The sessions and the namespace that the three measurements share.
pub struct Setting<'a> {
    /// The role of the sessions.
    role: &'a str,
    /// Each way's turns of a row last half of it together.
    period: Duration,
    pub sessions: Vec<Session>,
    watcher: &'a Session,
    /// Signs directory renames, as the index would.
    signer: Signer,
    pub ns: i64,
}

impl<'a> Setting<'a> {
    /// Opens as many sessions as the measurements need, at most. `ns` exists.
    pub async fn open(database: &str, role: &'a str, watcher: &'a Session, ns: &str, period: Duration) -> Result<Self> {
        let sessions = Session::several(database, single::CLIENTS[single::CLIENTS.len() - 1]).await?;
        let ns = sessions[0].namespace(ns).await?;
        watcher.wait_for_vacuum().await?;
        Ok(Self { role, period, sessions, watcher, signer: Signer::new(watcher).await?, ns })
    }

    /// Allocates `count` ids; answers the first.
    pub async fn ids(&self, count: i64) -> Result<i64> {
        self.sessions[0].allocate_ids(count).await
    }

    /// Makes parent directories.
    pub async fn parents(&self, way: Way, count: usize) -> Result<Vec<i64>> {
        let first = self.ids(count as i64).await?;
        let ids: Vec<i64> = (first..).take(count).collect();
        match way.store {
            Store::Mantle => self.sessions[0].mkdirs(way.store, self.ns, self.ns, &ids).await?,
            Store::Textbook => {
                for id in &ids {
                    self.watcher.textbook_directory(*id).await?;
                }
            }
        }
        Ok(ids)
    }

    /// Sets how the first `sessions` sessions keep counts.
    async fn choose(&self, way: Way, sessions: usize) -> Result<()> {
        if way.store == Store::Mantle {
            for session in &self.sessions[..sessions] {
                session.set_delta_records(way.name).await?;
            }
        }
        Ok(())
    }
}

/// The sums over all turns of one way.
#[derive(Clone, Default)]
pub struct Measured {
    lasted: Duration,
    pub sample: Sample,
    failed: u64,
    pub waits: Waits,
}

impl Measured {
    /// Adds the work of some clients; answers what it has beside their durations.
    async fn add<T>(
        &mut self,
        watcher: &Session,
        role: &str,
        work: impl Future<Output = Result<(Sample, T)>>,
    ) -> Result<T> {
        let started = Instant::now();
        let (sample, more) = self.waits.during(watcher, role, work).await?;
        self.lasted += started.elapsed();
        self.sample.merge(sample);
        Ok(more)
    }

    /// Changes that were made.
    pub fn done(&self) -> u64 {
        self.sample.len() as u64 - self.failed
    }

    fn per_second(&self) -> f64 {
        self.done() as f64 / self.lasted.as_secs_f64()
    }

    /// Throughput, p99 and waits, each also as a ratio to the baseline's.
    fn cells(&self, baseline: &Self) -> [String; 7] {
        let (rate, p99) = (self.per_second(), self.sample.p99_ms());
        let ratios = [rate / baseline.per_second(), p99 / baseline.sample.p99_ms()].map(short);
        let ([rate_ratio, p99_ratio], [lock, lwlock]) =
            (ratios, ["Lock:", "LWLock:"].map(|kind| short(self.waits.of(kind))));
        [count(rate as u64), rate_ratio, short(p99), p99_ratio, lock, lwlock, self.waits.most()]
    }
}

/// Measures all three, with the textbook's tables made before and dropped after.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let watcher = Session::connect(&bench.options.stack.admin).await?;
    watcher.make_textbook().await?;
    let measured = measure(bench, &watcher, report).await;
    watcher.drop_textbook().await?;
    measured
}

/// Changes a second in SQL, each session in directories of its own: Mantle's and the textbook's.
pub struct Rates {
    pub verb: &'static str,
    pub sessions: usize,
    pub mantle: f64,
    pub textbook: f64,
}

/// mkdir by one session and renames of directories by several numbers of sessions, as in the whole measurement, beside the
/// textbook alone. Each turn lasts `turn`. `ns` exists.
pub async fn against_textbook(
    database: &str,
    role: &str,
    watcher: &Session,
    ns: &str,
    turn: Duration,
) -> Result<Vec<Rates>> {
    watcher.make_textbook().await?;
    let measured = async {
        let setting = Setting::open(database, role, watcher, ns, turn * 2 * single::TURNS).await?;
        single::against_textbook(&setting).await
    };
    let measured = measured.await;
    watcher.drop_textbook().await?;
    measured
}

async fn measure(bench: &Bench, watcher: &Session, report: &mut Report) -> Result<()> {
    let ns = format!("{}-contention", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    let setting =
        Setting::open(&bench.options.stack.database, &bench.database_role, watcher, &ns, bench.period).await?;
    single::run(&setting, report).await?;
    gathered::run(&setting, report).await?;
    gateways::run(&setting, bench, &ns, report).await?;
    causes(report);
    Ok(())
}

fn causes(report: &mut Report) {
    report.heading("Where delta records help, where not, and why");
    for text in [
        "**Many sessions, one directory, one change a call.** A transaction that updates the parent's record holds its row \
         until the commit is flushed. So each flush commits one transaction, and the others queue (`Lock:transactionid`; with \
         many sessions also `LWLock:LockManager`, which guards that queue). Delta records are new rows: no transaction waits \
         for another, and one flush covers the commits of all (`LWLock:WALWrite`). `never` is slower than the textbook, \
         because it does more while it holds the row.",
        "**One session, or a few.** Transactions do not wait, or wait for less time than Mantle's own work takes: latches, \
         checks, the request's record, the message for the index. That work is the distance to the textbook, and no way of \
         keeping counts changes it.",
        "**A directory each.** No two transactions meet. `auto` finds the record free and updates it in place, as `never` does.",
        "**Renames.** As for mkdir, but a call does several times as much: two parents, two places and, for directories, the \
         check of the prepared rename. With two processors that work is the limit, not the flush.",
        "**Gathered calls.** A gateway has one batch in flight, so at most one transaction for each gateway is open. With one \
         gateway no transactions meet, and all three ways are the same. With four gateways, each with few calls to gather, the \
         row's lock shows again, and delta records remove it.",
    ] {
        report.paragraph(text);
    }
}
