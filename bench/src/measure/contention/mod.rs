//! Many clients change one directory: delta records against a textbook implementation (`sql/textbook.sql`), which updates
//! the parent's row.
//!
//! Three measurements: in PostgreSQL alone with one change a call, in PostgreSQL with gathered calls, and through gateways.
//! The ways of keeping counts take turns within each measurement, so that all meet the same machine.

mod gateways;
mod gathered;
mod single;
mod waits;

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use anyhow::Result;

use self::waits::Waits;
use super::Bench;
use crate::{
    report::{Report, count, short},
    sample::Sample,
    sql::{Session, Signer, Store},
};

/// Ids for the directories and entries that are made before the turns.
const IDS: i64 = 1 << 20;

/// How counts are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Mantle, with this value of `mantle.delta_records`.
    Mantle(&'static str),
    Textbook,
}

impl Way {
    const ALL: [Self; 4] = [Self::Mantle("auto"), Self::Mantle("always"), Self::Mantle("never"), Self::Textbook];

    fn name(self) -> &'static str {
        match self {
            Self::Mantle(mode) => mode,
            Self::Textbook => "textbook",
        }
    }

    /// The name for readers who have not read the page.
    fn legend(self) -> &'static str {
        match self {
            Self::Mantle("auto") => "Mantle (delta_records = auto, the default)",
            Self::Mantle("always") => "Mantle (always)",
            Self::Mantle(_) => "Mantle (never)",
            Self::Textbook => "textbook (updates the parent's row)",
        }
    }

    fn store(self) -> Store {
        match self {
            Self::Mantle(_) => Store::Mantle,
            Self::Textbook => Store::Textbook,
        }
    }
}

/// The sessions and the namespace that the three measurements share.
struct Setting<'a> {
    bench: &'a Bench,
    sessions: Vec<Session>,
    watcher: &'a Session,
    /// Signs directory renames, as the index would.
    signer: Signer,
    ns: i64,
    next_id: AtomicI64,
}

impl Setting<'_> {
    /// Takes `count` ids for directories and entries that are made before the turns; answers the first.
    fn ids(&self, count: i64) -> i64 {
        self.next_id.fetch_add(count, Ordering::Relaxed)
    }

    /// Allocates a block of `count` ids for one turn; answers the first.
    async fn block(&self, count: i64) -> Result<i64> {
        self.sessions[0].allocate_ids(count).await
    }

    /// Makes parent directories.
    async fn parents(&self, way: Way, count: usize) -> Result<Vec<i64>> {
        let first = self.ids(count as i64);
        let ids: Vec<i64> = (first..).take(count).collect();
        match way {
            Way::Mantle(_) => self.sessions[0].mkdirs(Store::Mantle, self.ns, self.ns, &ids).await?,
            Way::Textbook => {
                for id in &ids {
                    self.watcher.textbook_directory(*id).await?;
                }
            }
        }
        Ok(ids)
    }

    /// Sets how the first `sessions` sessions keep counts.
    async fn choose(&self, way: Way, sessions: usize) -> Result<()> {
        if let Way::Mantle(mode) = way {
            for session in &self.sessions[..sessions] {
                session.set_delta_records(mode).await?;
            }
        }
        Ok(())
    }
}

/// The sums over all turns of one way.
#[derive(Clone, Default)]
struct Measured {
    lasted: Duration,
    sample: Sample,
    failed: u64,
    waits: Waits,
}

impl Measured {
    fn per_second(&self) -> f64 {
        (self.sample.len() as u64 - self.failed) as f64 / self.lasted.as_secs_f64()
    }

    /// Throughput and p99, each also as a ratio to the baseline's; then the waits.
    fn cells(&self, baseline: &Self) -> [Vec<String>; 2] {
        let (rate, p99) = (self.per_second(), self.sample.p99_ms());
        let ratios = [rate / baseline.per_second(), p99 / baseline.sample.p99_ms()].map(short);
        let waits = vec![short(self.waits.of("Lock:")), short(self.waits.of("LWLock:")), self.waits.most()];
        [vec![count(rate as u64), ratios[0].clone(), short(p99), ratios[1].clone()], waits]
    }
}

/// Measures all three, with the textbook's tables made before and dropped after.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let watcher = Session::connect(&bench.admin_url).await?;
    watcher.make_textbook().await?;
    let measured = measure(bench, &watcher, report).await;
    watcher.drop_textbook().await?;
    measured
}

async fn measure(bench: &Bench, watcher: &Session, report: &mut Report) -> Result<()> {
    let ns = format!("{}-contention", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    let sessions = Session::several(&bench.database_url, single::CLIENTS[single::CLIENTS.len() - 1]).await?;
    let first_id = sessions[0].allocate_ids(IDS).await?;
    let ns_id = sessions[0].namespace(&ns).await?;
    watcher.wait_for_vacuum().await?;
    let signer = Signer::new(watcher).await?;
    let setting = Setting { bench, sessions, watcher, signer, ns: ns_id, next_id: AtomicI64::new(first_id) };
    single::run(&setting, report).await?;
    gathered::run(&setting, report).await?;
    gateways::run(&setting, &ns, report).await?;
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
