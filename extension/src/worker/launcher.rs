//! The launcher: keeps one worker (`worker.rs`) running in each database that is to have one.
//!
//! Those are the ones that `mantle.compaction_databases` names, or, where it is `*`, all that may be connected to and are no
//! templates. A worker that `*` has brought to a database without the extension ends at once, and such a database is looked at
//! again after [`LOOK_AGAIN`], or when the settings are reloaded: between looks it costs nothing. In one that is named the worker
//! waits for the extension instead. What PostgreSQL does not say is why a worker has ended, so one that lived shorter than
//! [`SHORT_LIFE`] is taken to have found nothing.
//!
//! Each worker takes one of `max_worker_processes`, which other things need too: where none is free, that is said once, and
//! tried again; and few databases are looked into at once.

use std::{
    collections::HashMap,
    ffi::CStr,
    time::{Duration, Instant},
};

use pgrx::{
    bgworkers::{
        BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
    },
    prelude::*,
};

use super::process::{attach_signal_handlers, reload_settings, sleep};
use crate::{
    postgres::probe::scan,
    settings::{Databases, compaction_databases},
};

/// How often the launcher looks whether its databases exist and their workers run.
const LAUNCH_INTERVAL: Duration = Duration::from_secs(1);
/// After how long PostgreSQL starts a launcher that has failed.
const RESTART_PAUSE: Duration = Duration::from_secs(10);
/// How long a database whose worker has ended is left alone: one that is being dropped is gone by then, mostly.
const RELAUNCH_PAUSE: Duration = Duration::from_secs(5);
/// After how long a database is looked at again that had no extension.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// A worker that stays longer than this has found the extension.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// That workers cannot be started is said again after so long in which they could.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(600);
/// Most databases looked into at once.
const LOOKS_MAX: usize = 2;
/// `datconnlimit` of a database whose removal was cut short (`DATCONNLIMIT_INVALID_DB`).
const INVALID_DATABASE: i32 = -2;

/// Registers the launcher; only while the postmaster loads `shared_preload_libraries`.
pub fn register() {
    // SAFETY: a plain read.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        return;
    }
    BackgroundWorkerBuilder::new("mantle launcher")
        .set_type("mantle launcher")
        .set_library("mantle")
        .set_function("mantle_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(RESTART_PAUSE))
        .load();
}

/// A database that may have a worker.
struct Database {
    oid: pg_sys::Oid,
    name: String,
}

/// Those that may be connected to and are no templates. Scans the shared catalog: the launcher belongs to no database, and
/// cannot always use the catalog's indexes.
fn databases() -> Vec<Database> {
    BackgroundWorker::transaction(|| {
        let mut found = Vec::new();
        // SAFETY: a catalog scan inside of a transaction; tuples are used before the scan goes on.
        unsafe {
            let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
            scan(relation, pg_sys::InvalidOid, std::ptr::null_mut(), &[], |row| {
                let database: pg_sys::Form_pg_database = pg_sys::heap_tuple_get_struct(row.tuple());
                let is_open = (*database).datallowconn && (*database).datconnlimit != INVALID_DATABASE;
                if is_open && !(*database).datistemplate {
                    let name = CStr::from_ptr((*database).datname.data.as_ptr()).to_string_lossy().into_owned();
                    found.push(Database { oid: (*database).oid, name });
                }
            });
            pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        }
        found
    })
}

fn start(database: &Database) -> Option<DynamicBackgroundWorker> {
    BackgroundWorkerBuilder::new(&format!("mantle worker {}", database.name))
        .set_type("mantle worker")
        .set_library("mantle")
        .set_function("mantle_worker_main")
        .enable_spi_access()
        .set_argument(Some(pg_sys::Datum::from(database.oid.to_u32())))
        // SAFETY: a plain read of this process's id.
        .set_notify_pid(unsafe { pg_sys::MyProcPid })
        .load_dynamic()
        .ok()
}

/// A database that had a worker, or has one.
struct Launched {
    handle: Option<DynamicBackgroundWorker>,
    started: Instant,
    /// When it may have another one.
    due: Instant,
}

impl Launched {
    /// Has its worker ended? Then says when there may be another.
    fn notice_end(&mut self, now: Instant, is_looked_for: bool) {
        let is_stopped =
            |handle: &DynamicBackgroundWorker| matches!(handle.pid(), Err(BackgroundWorkerStatus::Stopped));
        if self.handle.as_ref().is_some_and(is_stopped) {
            self.handle = None;
            let found_nothing = is_looked_for && now - self.started < SHORT_LIFE;
            self.due = now + if found_nothing { LOOK_AGAIN } else { RELAUNCH_PAUSE };
        }
    }

    /// May it yet find that there is nothing?
    fn is_looking(&self, now: Instant) -> bool {
        self.handle.is_some() && now - self.started < SHORT_LIFE
    }
}

/// All of them, by the databases' OIDs.
#[derive(Default)]
struct Launcher {
    launched: HashMap<pg_sys::Oid, Launched>,
    /// When a worker could not be started last.
    refused: Option<Instant>,
}

impl Launcher {
    fn look(&mut self, was_reloaded: bool) {
        let (chosen, now) = (compaction_databases(), Instant::now());
        let is_every = matches!(chosen, Databases::Every);
        let mut databases = databases();
        databases.retain(|database| chosen.has(&database.name));
        self.launched.retain(|oid, launched| {
            let keep = databases.iter().any(|database| database.oid == *oid);
            if !keep && let Some(handle) = launched.handle.take() {
                handle.terminate();
            }
            keep
        });
        for launched in self.launched.values_mut() {
            launched.notice_end(now, is_every);
            if was_reloaded {
                launched.due = now;
            }
        }
        let mut looks = self.launched.values().filter(|launched| launched.is_looking(now)).count();
        // Who waits longest comes first.
        databases.sort_by_key(|database| self.launched.get(&database.oid).map(|launched| launched.due));
        for database in databases {
            let is_due = self.launched.get(&database.oid).is_none_or(|l| l.handle.is_none() && l.due <= now);
            if !is_due {
                continue;
            }
            if (is_every && looks >= LOOKS_MAX) || !self.launch(&database, now) {
                return;
            }
            looks += 1;
        }
    }

    /// `false`: no worker can be started now.
    fn launch(&mut self, database: &Database, now: Instant) -> bool {
        let handle = start(database);
        if handle.is_some() {
            self.launched.insert(database.oid, Launched { handle, started: now, due: now });
            return true;
        }
        if self.refused.is_none_or(|refused| now - refused > COMPLAINT_PAUSE) {
            log!(
                "mantle launcher: no worker for database \"{}\": max_worker_processes are running; it is tried again",
                database.name
            );
        }
        self.refused = Some(now);
        false
    }
}

/// Connects to no database of its own.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn mantle_launcher_main(_argument: pg_sys::Datum) {
    attach_signal_handlers();
    BackgroundWorker::connect_worker_to_spi(None, None);
    let mut launcher = Launcher::default();
    while sleep(LAUNCH_INTERVAL) {
        let was_reloaded = reload_settings();
        launcher.look(was_reloaded);
    }
}
