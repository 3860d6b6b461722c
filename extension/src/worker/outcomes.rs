//! What the worker of each database did last, in shared memory; `mantle.worker_steps` and `check_cluster` show it.
//!
//! A worker that fails in its first statement can write no table, and one that finds nothing to do must not write any.
//! A restart of the server forgets everything.
//!
//! Invariant: a database has a record if its worker has found the extension, or has failed. So the launcher knows from
//! the record that there is something to do in the database.

use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::{PGRXSharedMemory, PgLwLock, PgSqlErrorCode, pg_shmem_init, prelude::*};

use crate::postgres::clock::clock_timestamp;

/// What a worker does: the check that the extension exists, then the steps of `mantle.run_maintenance`.
pub const STEPS: [&str; 10] = [
    CHECK,
    "compact",
    "compact_busy",
    "prune",
    "empty_trash",
    "purge_operations",
    "purge_requests",
    "purge_tombstones",
    "purge_attempts",
    "purge_freed",
];
pub const CHECK: &str = "check";
/// Records kept. If there are more databases, the one without news for longest loses its record.
const DATABASES_MAX: usize = 64;
/// Longest part of an error's message that is kept.
const MESSAGE_BYTES_MAX: usize = 200;

/// The outcome of a step. Times are PostgreSQL's; 0 means never.
#[derive(Clone, Copy)]
struct Outcome {
    succeeded: i64,
    failed: i64,
    /// The first failure since the last success.
    failing_since: i64,
    /// How many there were since then.
    failures: i32,
    /// The last failure ended the worker. Otherwise the step is tried again.
    is_fatal: bool,
    code: i32,
    message_bytes: usize,
    message: [u8; MESSAGE_BYTES_MAX],
}

#[derive(Clone, Copy)]
struct Record {
    /// `InvalidOid`: the place is free.
    database: pg_sys::Oid,
    /// When something was noted last.
    seen: i64,
    outcomes: [Outcome; STEPS.len()],
}

struct Records {
    /// When the launcher began.
    launched: i64,
    /// When the settings were read last, also by the postmaster, which reads the certificates at the same time. A session's
    /// `pg_conf_load_time()` is when it first did something afterwards.
    loaded: i64,
    of: [Record; DATABASES_MAX],
}

// SAFETY: plain data without pointers.
unsafe impl PGRXSharedMemory for Records {}

impl Outcome {
    const NONE: Self = Self {
        succeeded: 0,
        failed: 0,
        failing_since: 0,
        failures: 0,
        is_fatal: false,
        code: 0,
        message_bytes: 0,
        message: [0; MESSAGE_BYTES_MAX],
    };

    fn succeed(&mut self, now: i64) {
        (self.succeeded, self.failing_since, self.failures) = (now, 0, 0);
    }

    fn fail(&mut self, now: i64, code: i32, message: &str, is_fatal: bool) {
        if self.failures == 0 {
            self.failing_since = now;
        }
        self.failures = self.failures.saturating_add(1);
        (self.failed, self.code, self.is_fatal) = (now, code, is_fatal);
        let kept = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        self.message[..kept.len()].copy_from_slice(kept.as_bytes());
        self.message_bytes = kept.len();
    }

    fn message(&self) -> String {
        String::from_utf8_lossy(&self.message[..self.message_bytes]).into_owned()
    }
}

impl Record {
    const FREE: Self = Self { database: pg_sys::InvalidOid, seen: 0, outcomes: [Outcome::NONE; STEPS.len()] };
}

impl Records {
    const NONE: Self = Self { launched: 0, loaded: 0, of: [Record::FREE; DATABASES_MAX] };

    fn find(&self, database: pg_sys::Oid) -> Option<&Record> {
        self.of.iter().find(|record| record.database == database)
    }

    /// The record of a database, made if there is none. Free places have no news at all, so they are taken first.
    fn find_or_make(&mut self, database: pg_sys::Oid) -> &mut Record {
        let known = self.of.iter().position(|record| record.database == database);
        let oldest = || (0..DATABASES_MAX).min_by_key(|at| self.of[*at].seen).unwrap_or_default();
        let record = &mut self.of[known.unwrap_or_else(oldest)];
        if record.database != database {
            *record = Record { database, ..Record::FREE };
        }
        record
    }
}

// SAFETY: no other extension uses this name.
static RECORDS: PgLwLock<Records> = unsafe { PgLwLock::new(c"mantle worker outcomes") };
/// The postmaster has loaded the library: there is shared memory, and a launcher.
static IS_PRELOADED: AtomicBool = AtomicBool::new(false);

/// Asks for the shared memory. Called while the postmaster loads `shared_preload_libraries`.
#[allow(unexpected_cfgs, reason = "the macro asks for features of pgrx that this crate does not have")]
pub fn register() {
    pg_shmem_init!(RECORDS = Records::NONE);
    IS_PRELOADED.store(true, Ordering::Relaxed);
}

fn is_preloaded() -> bool {
    IS_PRELOADED.load(Ordering::Relaxed)
}

/// Notes that the launcher began.
pub fn note_launcher() {
    RECORDS.exclusive().launched = clock_timestamp();
    note_loaded();
}

/// Notes when the launcher read the settings, or the postmaster did before it started the launcher.
pub fn note_loaded() {
    // SAFETY: a plain read.
    RECORDS.exclusive().loaded = unsafe { pg_sys::PgReloadTime };
}

/// Whether a database's worker has left a record.
pub fn are_known(database: pg_sys::Oid) -> bool {
    RECORDS.share().find(database).is_some()
}

/// Removes a database's record: it has no extension, or shall have no worker.
pub fn forget(database: pg_sys::Oid) {
    if let Some(record) = RECORDS.exclusive().of.iter_mut().find(|record| record.database == database) {
        *record = Record::FREE;
    }
}

/// Notes that a step of this database's worker has succeeded.
pub fn note_success(step: &str) {
    note(step, |outcome, now| outcome.succeed(now));
}

/// Notes that it has failed. `is_fatal`: this ends the worker.
pub fn note_failure(step: &str, code: PgSqlErrorCode, message: &str, is_fatal: bool) {
    note(step, |outcome, now| outcome.fail(now, code as i32, message, is_fatal));
}

fn note(step: &str, change: impl FnOnce(&mut Outcome, i64)) {
    let (now, at) = (clock_timestamp(), STEPS.iter().position(|known| *known == step));
    let mut records = RECORDS.exclusive();
    // SAFETY: a plain read.
    let record = records.find_or_make(unsafe { pg_sys::MyDatabaseId });
    record.seen = now;
    if let Some(at) = at {
        change(&mut record.outcomes[at], now);
    }
}

/// A time as SQL has it; `None` for never.
fn time(at: i64) -> Option<TimestampWithTimeZone> {
    TimestampWithTimeZone::try_from(at).ok().filter(|_| at != 0)
}

/// When the launcher of this server's workers began, when the server read its settings last (NULL: not known), and when the
/// worker of this database was heard of last. No row: shared_preload_libraries lacks mantle.
#[pg_extern(volatile)]
fn worker_signs() -> TableIterator<
    'static,
    (
        name!(launched, Option<TimestampWithTimeZone>),
        name!(loaded, Option<TimestampWithTimeZone>),
        name!(seen, Option<TimestampWithTimeZone>),
    ),
> {
    let signs = is_preloaded().then(|| {
        let records = RECORDS.share();
        // SAFETY: a plain read.
        let seen = records.find(unsafe { pg_sys::MyDatabaseId }).map_or(0, |record| record.seen);
        (time(records.launched), time(records.loaded), time(seen))
    });
    TableIterator::new(signs)
}

/// The rows of mantle.worker_steps.
#[pg_extern(volatile)]
#[allow(clippy::type_complexity)]
fn worker_steps_now() -> TableIterator<
    'static,
    (
        name!(step, &'static str),
        name!(succeeded, Option<TimestampWithTimeZone>),
        name!(failures, i32),
        name!(failing_since, Option<TimestampWithTimeZone>),
        name!(failed, Option<TimestampWithTimeZone>),
        name!(fatal, Option<bool>),
        name!(sqlstate, Option<String>),
        name!(message, Option<String>),
    ),
> {
    // SAFETY: a plain read.
    let database = unsafe { pg_sys::MyDatabaseId };
    let outcomes = is_preloaded().then(|| RECORDS.share().find(database).map(|record| record.outcomes)).flatten();
    let rows = outcomes.into_iter().flat_map(|outcomes| STEPS.into_iter().zip(outcomes)).map(|(step, outcome)| {
        let error = (outcome.failed != 0).then(|| (unpacked(outcome.code), outcome.message()));
        let (is_fatal, (code, message)) = (error.is_some().then_some(outcome.is_fatal), error.unzip());
        let (succeeded, since, failed) = (outcome.succeeded, outcome.failing_since, outcome.failed);
        (step, time(succeeded), outcome.failures, time(since), time(failed), is_fatal, code, message)
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// The five characters of an SQLSTATE, which PostgreSQL packs into six bits each.
fn unpacked(code: i32) -> String {
    (0..5).map(|at| char::from(b'0' + ((code >> (6 * at)) & 0x3f) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(number: u32) -> pg_sys::Oid {
        pg_sys::Oid::from(number)
    }

    #[test]
    fn failures_count_from_the_last_success() {
        let mut outcome = Outcome::NONE;
        outcome.fail(10, PgSqlErrorCode::ERRCODE_SYNTAX_ERROR as i32, "first", true);
        outcome.fail(15, PgSqlErrorCode::ERRCODE_SYNTAX_ERROR as i32, "second", true);
        assert_eq!((outcome.failing_since, outcome.failed, outcome.failures), (10, 15, 2));
        assert_eq!((unpacked(outcome.code), outcome.message()), ("42601".to_owned(), "second".to_owned()));
        outcome.succeed(20);
        assert_eq!((outcome.failing_since, outcome.failures, outcome.succeeded), (0, 0, 20));
        outcome.fail(30, PgSqlErrorCode::ERRCODE_INTERNAL_ERROR as i32, &"ä".repeat(MESSAGE_BYTES_MAX), false);
        assert_eq!((outcome.failing_since, outcome.failures), (30, 1));
        assert_eq!(outcome.message(), "ä".repeat(MESSAGE_BYTES_MAX / 2), "cut between characters");
    }

    #[test]
    fn the_database_without_news_for_longest_gives_its_place_away() {
        let mut records = Records::NONE;
        for n in 1..=DATABASES_MAX as u32 {
            records.find_or_make(database(n)).seen = i64::from(1000 - n);
        }
        records.find_or_make(database(7)).outcomes[0].succeed(5);
        records.find_or_make(database(500)).seen = 1001;
        assert!(records.find(database(DATABASES_MAX as u32)).is_none(), "it was the oldest");
        assert_eq!(records.find(database(7)).map(|record| record.outcomes[0].succeeded), Some(5));
        assert_eq!(records.find(database(500)).map(|record| record.outcomes[0].succeeded), Some(0));
    }
}
