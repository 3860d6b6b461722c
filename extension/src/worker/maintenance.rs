//! The worker of a database. The launcher starts it.
//!
//! It folds delta records, prunes empty implicit directories, empties removed trees, and purges old request ids,
//! operations, tombstones, rename attempts and freed rows. Each step is one short transaction of `mantle.run_maintenance`, which
//! takes its latches without waiting or under a `lock_timeout`. Nothing is held between steps, so a worker can be
//! stopped at any time and the next one continues. There is one worker a database; a second one, after a restart of the
//! launcher, ends.

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use pgrx::{
    bgworkers::BackgroundWorker,
    pg_sys::panic::{CaughtError, ErrorReportable},
    prelude::*,
};

use super::{
    outcomes,
    process::{attach_signal_handlers, is_ended, reload_settings, sleep},
};
use crate::{
    citus::shards::was_distributed,
    postgres::saved_plan::SavedPlan,
    settings::{COMPACTION_NAPTIME_MS, Databases, compaction_databases},
    steps::latch::acquire_worker_lock,
};

/// How often a worker checks that the extension exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// A step's first pause when it has nothing left to do; each further one is twice as long, up to
/// `compaction_naptime_ms`. It starts short because more work is likely to follow: a directory that takes 4,000 delta
/// records a second has 4,000 after a pause of one second, and `dirstat` reads them all.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// A run of pruning that takes longer reads past rows that an old snapshot keeps, or changes several nodes.
const SLOW_RUN: Duration = Duration::from_millis(3);
/// How many times as long as a round over busy directories took the pause after it is. While an old snapshot keeps the
/// folded records, a round reads past them: without this, it took half a processor.
const BUSY_PAUSES: u32 = 9;

thread_local! {
    static HAS_RESTORE: SavedPlan =
        const { SavedPlan::new(c"SELECT to_regprocedure('mantle.restore_after_upgrade()') IS NOT NULL", &[]) };
    static RESTORE: SavedPlan =
        const { SavedPlan::new(c"SELECT l FROM mantle.restore_after_upgrade() AS l ORDER BY l", &[]) };
}

/// Reports statistics, which a worker's transactions do not do by themselves. Autovacuum and the bound on request ids
/// use them. At most once a second, unless a step asks for more (`pg_stat_force_next_flush`).
fn report_statistics() {
    // SAFETY: called between transactions.
    unsafe { pg_sys::pgstat_report_stat(false) };
}

/// Whether the database has no extension, and no setting names it.
fn lacks_extension() -> bool {
    let is_installed = noting_failure(outcomes::CHECK, || BackgroundWorker::transaction(is_installed), |_, _| false);
    if is_installed == Some(true) {
        outcomes::note_success(outcomes::CHECK);
        return false;
    }
    // SAFETY: a plain read.
    outcomes::forget(unsafe { pg_sys::MyDatabaseId });
    matches!(compaction_databases(), Databases::All)
}

fn is_installed() -> bool {
    let found = Spi::get_one::<bool>("SELECT to_regprocedure('mantle.run_maintenance(text)') IS NOT NULL");
    found.unwrap_or_report() == Some(true)
}

/// Restores what pg_upgrade has lost of the database's catalog. `true` if nothing is left to do.
fn restore_after_upgrade() -> bool {
    let restored = noting_failure(
        outcomes::CHECK,
        || BackgroundWorker::transaction(|| Spi::connect(|_| lost_and_restored())),
        |_, _| false,
    );
    if let Some(lost) = restored.as_ref().and_then(Option::as_ref).filter(|lost| !lost.is_empty()) {
        log!("mantle worker: restored what pg_upgrade had lost: {}", lost.join(", "));
    }
    matches!(restored, Some(Some(_)))
}

/// What was lost; `None` if the extension is not there yet, or too old to know.
fn lost_and_restored() -> Option<Vec<String>> {
    let is_known = HAS_RESTORE.with(|plan| plan.rows(&[], |row| row.get(1) == Some(true)));
    let restore = || RESTORE.with(|plan| plan.rows(&[], |row| row.get(1).unwrap_or_default()));
    (is_known == [true]).then(restore)
}

/// Runs a step and notes its failure. `None` if the failure is handled; any other one goes on.
fn noting_failure<T>(
    name: &'static str,
    work: impl FnOnce() -> T,
    is_handled: fn(&str, &CaughtError) -> bool,
) -> Option<T> {
    let attempt = PgTryBuilder::new(AssertUnwindSafe(|| Some(work())));
    let attempt = attempt.catch_others(|error| {
        let (CaughtError::PostgresError(said)
        | CaughtError::ErrorReport(said)
        | CaughtError::RustPanic { ereport: said, .. }) = &error;
        let goes_on = is_handled(name, &error);
        outcomes::note_failure(name, said.sql_error_code(), said.message(), !goes_on);
        if goes_on { None } else { error.rethrow() }
    });
    attempt.execute()
}

/// Runs a step and returns how many rows it changed. A retryable error is logged and rolled back, and the step is due
/// again later. Any other error ends the worker, and the launcher starts a new one.
fn try_step(name: &'static str) -> i64 {
    let Some(Some(changed)) = noting_failure(name, || step(name), is_put_off) else { return 0 };
    outcomes::note_success(name);
    changed
}

/// Whether a step's error is retryable; it is then logged and rolled back.
fn is_put_off(name: &str, error: &CaughtError) -> bool {
    let said = match error {
        CaughtError::PostgresError(said) if is_retryable(said.sql_error_code()) => said.message(),
        _ => return false,
    };
    // SAFETY: the error has left the step's transaction open; the report is a copy.
    unsafe { pg_sys::AbortCurrentTransaction() };
    log!("mantle worker: {name} will run again: {said}");
    true
}

/// Whether a step may succeed if it runs again. On Citus this includes the effects of a shard that has just moved: a
/// missing table, a unique key that its old place still holds, and errors that Citus calls internal or gives codes of
/// its own (CIINF), which pgrx reports as internal.
fn is_retryable(code: PgSqlErrorCode) -> bool {
    use PgSqlErrorCode as Code;
    match code {
        Code::ERRCODE_LOCK_NOT_AVAILABLE
        | Code::ERRCODE_T_R_DEADLOCK_DETECTED
        | Code::ERRCODE_T_R_SERIALIZATION_FAILURE => true,
        Code::ERRCODE_UNDEFINED_TABLE | Code::ERRCODE_UNIQUE_VIOLATION | Code::ERRCODE_INTERNAL_ERROR => {
            was_distributed()
        }
        _ => false,
    }
}

/// Runs a step in its own transaction and returns how many rows it changed; `None` without the extension.
fn step(name: &'static str) -> Option<i64> {
    BackgroundWorker::transaction(|| {
        if !is_installed() {
            return None;
        }
        // pg_stat_activity shows this statement like a client's.
        let changed = Spi::connect_mut(|client| {
            client.update("SELECT mantle.run_maintenance($1)", None, &[name.into()])?.first().get_one::<i64>()
        });
        changed.unwrap_or_report()
    })
}

/// When a step is due again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// At once while there is work, then rarely: with fewer rounds, each written row folds more delta records.
    Full,
    /// Soon while there are directories in which full rounds found many records, and after such a round.
    Busy,
    /// At once while there is work, then soon, then with growing pauses.
    Backoff,
    /// The same, but a slow run is followed by a pause as long: nobody waits for it.
    Lazy,
}

struct Step {
    name: &'static str,
    pace: Pace,
    pause: Duration,
    due: Instant,
}

impl Step {
    fn all(now: Instant) -> Vec<Self> {
        let step = |(name, pace)| Self { name, pace, pause: PAUSE_MIN, due: now };
        let paced = outcomes::STEPS.iter().filter_map(|name| match *name {
            outcomes::CHECK => None,
            "compact" => Some((*name, Pace::Full)),
            "compact_busy" => Some((*name, Pace::Busy)),
            "prune" => Some((*name, Pace::Lazy)),
            _ => Some((*name, Pace::Backoff)),
        });
        paced.map(step).collect()
    }

    /// Sets the time of the next run; `changed` is what the last one did, and `took` its time.
    fn schedule(&mut self, changed: i64, took: Duration, now: Instant, longest: Duration) {
        let pause = match self.pace {
            Pace::Busy if changed > 0 => PAUSE_MIN.max(took * BUSY_PAUSES).min(longest),
            Pace::Lazy if changed > 0 && took > SLOW_RUN => took.min(longest),
            _ if changed > 0 => Duration::ZERO,
            Pace::Backoff | Pace::Lazy => self.pause.min(longest),
            Pace::Full | Pace::Busy => longest,
        };
        self.due = now + pause;
        self.pause = if changed > 0 { PAUSE_MIN } else { (self.pause * 2).min(longest) };
    }
}

/// The worker's process.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn mantle_worker_main(argument: pg_sys::Datum) {
    attach_signal_handlers();
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(pg_sys::Oid::from(argument.value() as u32)), None);
    if !acquire_worker_lock() {
        return;
    }
    let mut steps = Step::all(Instant::now());
    let mut next_check = Instant::now();
    let mut is_restored = false;
    loop {
        reload_settings();
        // Checked again and again: the extension may be dropped.
        if next_check <= Instant::now() {
            if lacks_extension() {
                return;
            }
            is_restored = is_restored || restore_after_upgrade();
            next_check = Instant::now() + CHECK_INTERVAL;
        }
        let longest = Duration::from_millis(COMPACTION_NAPTIME_MS.get() as u64);
        let mut has_folded = false;
        for step in steps.iter_mut().filter(|step| step.due <= Instant::now()) {
            let begun = Instant::now();
            let changed = try_step(step.name);
            report_statistics();
            step.schedule(changed, begun.elapsed(), Instant::now(), longest);
            has_folded |= step.pace == Pace::Full && changed > 0;
            if is_ended() {
                return;
            }
        }
        if has_folded && let Some(busy) = steps.iter_mut().find(|step| step.pace == Pace::Busy) {
            busy.due = busy.due.min(Instant::now() + PAUSE_MIN);
        }
        let next = steps
            .iter()
            .map(|step| step.due)
            .min()
            .map_or(longest, |due| due.saturating_duration_since(Instant::now()));
        // With work left, sleep only checks for signals.
        if !sleep(next.max(Duration::from_millis(1))) {
            return;
        }
    }
}
