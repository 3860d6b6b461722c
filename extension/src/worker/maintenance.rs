//! The background worker of a database; `launcher.rs` starts it.
//!
//! It folds delta records, prunes implicit directories left empty, empties removed trees, and purges old request ids,
//! operations, tombstones and rename attempts. Each step is one short transaction of `mantle.run_maintenance`, which takes
//! its latches without waiting or under a `lock_timeout`; nothing is held across steps, so it can be stopped at any time and
//! goes on where it was. One worker a database: another one, which a launcher that was started again does not know of, ends.

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use pgrx::{bgworkers::BackgroundWorker, pg_sys::panic::CaughtError, prelude::*};

use super::process::{attach_signal_handlers, is_ended, reload_settings, sleep};
use crate::{
    citus::shards::was_distributed,
    settings::{COMPACTION_NAPTIME_MS, Databases, compaction_databases},
    steps::latch::acquire_worker_lock,
};

/// How often a worker looks whether the extension is there.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// A step's first rest when it finds nothing left to do; each that follows is twice as long, up to `compaction_naptime_ms`.
/// Where there was work there will be more: a directory that takes 4,000 delta records a second has 4,000 after a second's
/// rest, and `dirstat` reads them all.
const FIRST_REST: Duration = Duration::from_millis(50);

/// Tells the statistics what was done, which a worker's transactions do not by themselves: autovacuum goes by them, and the bound
/// on request ids. At most once a second, but where a step asks for more (`pg_stat_force_next_flush`).
fn report_statistics() {
    // SAFETY: called between transactions.
    unsafe { pg_sys::pgstat_report_stat(false) };
}

/// The database has no extension, and nobody has said that it would get one.
fn is_superfluous() -> bool {
    let is_installed = BackgroundWorker::transaction(is_installed);
    !is_installed && matches!(compaction_databases(), Databases::Every)
}

fn is_installed() -> bool {
    let found = Spi::get_one::<bool>("SELECT to_regprocedure('mantle.run_maintenance(text)') IS NOT NULL");
    matches!(found, Ok(Some(true)))
}

/// A step, or nothing if it met what passes: then it is said in the log, rolled back, and comes round again. Any other error
/// ends the worker, and the launcher starts another one.
fn try_step(name: &'static str) -> i64 {
    let attempt = PgTryBuilder::new(AssertUnwindSafe(|| step(name)));
    let attempt = attempt.catch_others(|error| {
        let said = match &error {
            CaughtError::PostgresError(said) if is_retryable(said.sql_error_code()) => said.message().to_owned(),
            _ => error.rethrow(),
        };
        // SAFETY: the error has left the step's transaction open; its report is a copy.
        unsafe { pg_sys::AbortCurrentTransaction() };
        log!("mantle worker: {name} comes round again: {said}");
        0
    });
    attempt.execute()
}

/// May the same step succeed when it comes again? On Citus also what a shard that has just moved leaves behind: a table that
/// is gone, a unique key that its old place still holds, and errors that Citus calls internal or by codes of its own (CIINF),
/// which pgrx takes for internal ones.
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

/// One step in its own transaction: how many rows it changed.
fn step(name: &'static str) -> i64 {
    BackgroundWorker::transaction(|| {
        if !is_installed() {
            return 0;
        }
        // SPI's statement names itself in pg_stat_activity, as a client's would.
        let changed = Spi::connect_mut(|client| {
            client.update("SELECT mantle.run_maintenance($1)", None, &[name.into()])?.first().get_one::<i64>()
        });
        changed.ok().flatten().unwrap_or(0)
    })
}

/// When a step is due again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// At once while there is work, then rarely: the fewer rounds, the more delta records each row that is written takes in.
    Rounds,
    /// Soon while there are directories that rounds found many in, and after a round.
    Often,
    /// At once while there is work, then soon, then ever more rarely.
    Doubling,
}

struct Step {
    name: &'static str,
    pace: Pace,
    rest: Duration,
    due: Instant,
}

impl Step {
    fn all(now: Instant) -> Vec<Self> {
        let step = |(name, pace)| Self { name, pace, rest: FIRST_REST, due: now };
        let doubling =
            ["prune", "empty_trash", "purge_operations", "purge_requests", "purge_tombstones", "purge_attempts"];
        let compaction = [("compact", Pace::Rounds), ("compact_busy", Pace::Often)];
        compaction.into_iter().chain(doubling.map(|name| (name, Pace::Doubling))).map(step).collect()
    }

    /// After a call that did so much.
    fn plan(&mut self, changed: i64, now: Instant, longest: Duration) {
        let rest = match self.pace {
            Pace::Often if changed > 0 => FIRST_REST.min(longest),
            _ if changed > 0 => Duration::ZERO,
            Pace::Doubling => self.rest.min(longest),
            Pace::Rounds | Pace::Often => longest,
        };
        self.due = now + rest;
        self.rest = if changed > 0 { FIRST_REST } else { (self.rest * 2).min(longest) };
    }
}

/// A database's worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn mantle_worker_main(argument: pg_sys::Datum) {
    attach_signal_handlers();
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(pg_sys::Oid::from(argument.value() as u32)), None);
    if !acquire_worker_lock() {
        return;
    }
    let mut steps = Step::all(Instant::now());
    let mut look = Instant::now();
    loop {
        reload_settings();
        // Also later: the extension may have been dropped.
        if look <= Instant::now() {
            if is_superfluous() {
                return;
            }
            look = Instant::now() + LOOK_INTERVAL;
        }
        let longest = Duration::from_millis(COMPACTION_NAPTIME_MS.get() as u64);
        let mut folded = false;
        for step in steps.iter_mut().filter(|step| step.due <= Instant::now()) {
            let changed = try_step(step.name);
            report_statistics();
            step.plan(changed, Instant::now(), longest);
            folded |= step.pace == Pace::Rounds && changed > 0;
            if is_ended() {
                return;
            }
        }
        if folded && let Some(often) = steps.iter_mut().find(|step| step.pace == Pace::Often) {
            often.due = often.due.min(Instant::now() + FIRST_REST);
        }
        let next = steps
            .iter()
            .map(|step| step.due)
            .min()
            .map_or(longest, |due| due.saturating_duration_since(Instant::now()));
        // Work left: only look whether to stop.
        if !sleep(next.max(Duration::from_millis(1))) {
            return;
        }
    }
}
