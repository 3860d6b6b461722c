//! Many clients that change one directory: delta records against a textbook implementation (`sql/textbook.sql`), which
//! updates the parent's row. First in PostgreSQL alone, one change a call; then with the calls of a gateway gathered, for
//! both; then through gateways. The ways take turns within each measurement, so that all meet the same machine.

mod gateways;
mod gathered;
mod single;
mod waits;

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use anyhow::{Result, bail};

use self::waits::Waits;
use super::Bench;
use crate::{
    report::{Report, short},
    sample::Sample,
    sql::{Session, Signer, Store},
};

/// Ids for what is made before the turns.
const IDS: i64 = 1 << 20;
/// How often it is looked whether compaction has caught up, and for how long.
const SETTLE_LOOK: Duration = Duration::from_millis(50);
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// How counts are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `mantle.delta_records` of this value.
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

    fn store(self) -> Store {
        match self {
            Self::Mantle(_) => Store::Mantle,
            Self::Textbook => Store::Textbook,
        }
    }
}

/// What the measurements share.
struct Ground<'a> {
    bench: &'a Bench,
    sessions: Vec<Session>,
    watcher: &'a Session,
    /// Signs directory renames, as the index would.
    signer: Signer,
    ns: i64,
    next_id: AtomicI64,
}

impl Ground<'_> {
    /// The first of so many new ids, for what is made beforehand.
    fn ids(&self, count: i64) -> i64 {
        self.next_id.fetch_add(count, Ordering::Relaxed)
    }

    /// The first of so many new ids, for a turn: a block of its own.
    async fn block(&self, count: i64) -> Result<i64> {
        self.sessions[0].allocate_ids(count).await
    }

    /// New parent directories.
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

    /// Makes so many sessions keep counts this way.
    async fn choose(&self, way: Way, sessions: usize) -> Result<()> {
        if let Way::Mantle(mode) = way {
            for session in &self.sessions[..sessions] {
                session.set_delta_records(mode).await?;
            }
        }
        Ok(())
    }

    /// Waits until no delta record is left: what one way put off should not be another's burden.
    async fn settle(&self) -> Result<()> {
        let started = std::time::Instant::now();
        while self.watcher.deltas().await? > 0 {
            if started.elapsed() > SETTLE_MAX {
                bail!("delta records are left {SETTLE_MAX:?} after the last change");
            }
            tokio::time::sleep(SETTLE_LOOK).await;
        }
        Ok(())
    }
}

/// What one way did, over its turns.
#[derive(Clone, Default)]
struct Found {
    lasted: Duration,
    sample: Sample,
    failed: u64,
    waits: Waits,
}

impl Found {
    fn per_second(&self) -> f64 {
        (self.sample.len() as u64 - self.failed) as f64 / self.lasted.as_secs_f64()
    }

    /// Throughput, p99 and waits, each also as a ratio to the baseline's.
    fn cells(&self, baseline: &Self) -> [String; 7] {
        [
            crate::report::count(self.per_second() as u64),
            short(self.per_second() / baseline.per_second()),
            short(self.sample.p99_ms()),
            short(self.sample.p99_ms() / baseline.sample.p99_ms()),
            short(self.waits.of("Lock:")),
            short(self.waits.of("LWLock:")),
            self.waits.most(),
        ]
    }
}

/// Measures.
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
    let mut sessions = Vec::new();
    for _ in 0..single::CLIENTS[single::CLIENTS.len() - 1] {
        sessions.push(Session::connect(&bench.database_url).await?);
    }
    let first_id = sessions[0].allocate_ids(IDS).await?;
    let ns_id = sessions[0].namespace(&ns).await?;
    watcher.wait_for_vacuum().await?;
    let signer = Signer::new(watcher).await?;
    let ground = Ground { bench, sessions, watcher, signer, ns: ns_id, next_id: AtomicI64::new(first_id) };
    single::run(&ground, report).await?;
    gathered::run(&ground, report).await?;
    gateways::run(&ground, &ns, report).await?;
    causes(report);
    Ok(())
}

fn causes(report: &mut Report) {
    report.heading("Where delta records help, where not, and why");
    for text in [
        "**Many sessions, one directory, one change a call.** Whoever updates the parent's record holds its row until the \
         commit is flushed, so one transaction commits a flush, and the others queue (`Lock:transactionid`, and where they are many \
         `LWLock:LockManager`, which guards that queue). Delta records are new rows: nobody waits for one, \
         and one flush takes in the commits of all (`LWLock:WALWrite`). `never` is slower than the textbook, since more is done \
         while the row is held.",
        "**One session, or a few.** Nobody waits, or for less than Mantle's own work takes: latches, checks, the request's \
         record, the message for the index. That is the distance to the textbook, and no way of keeping counts changes it.",
        "**A directory each.** No two transactions meet. `auto` finds the record free and updates it in place, as `never` does.",
        "**Renames.** As for mkdir, but a call does several times as much (two parents, two places, for directories the check of \
         what the index prepared), and with two processors that is the limit before the flush is.",
        "**Gathered calls.** A gateway has one batch in flight, so as many transactions meet as there are gateways: with one none, \
         and all three ways are the same; with four, each of which has few calls to gather, the row's lock shows again, and delta \
         records take it away.",
    ] {
        report.paragraph(text);
    }
}
