//! The launcher keeps one worker (`maintenance.rs`) running in each database that should have one.
//!
//! `mantle.compaction_databases` names these databases; `*` means all that accept connections and are not templates.
//! Under `*`, a worker ends at once in a database without the extension. The launcher probes such a database again
//! after [`RECHECK_INTERVAL`], or when the settings are reloaded; between probes it costs nothing. In a named database
//! the worker waits for the extension instead. PostgreSQL does not tell why a worker has ended, but a worker that found
//! the extension has left a record (`outcomes.rs`).
//!
//! Each worker takes one of `max_worker_processes`, which others need too. If none is free, the launcher logs that once
//! and tries again. It probes few databases at a time.

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

use super::{
    outcomes,
    process::{attach_signal_handlers, reload_settings, sleep},
    session::pin_settings,
};
use crate::{
    postgres::probe::scan,
    settings::{Databases, compaction_databases},
};

/// How often the launcher checks databases and workers.
const LAUNCH_INTERVAL: Duration = Duration::from_secs(1);
/// PostgreSQL restarts a failed launcher after this.
const RESTART_PAUSE: Duration = Duration::from_secs(10);
/// Pause before a new worker in a database whose worker has ended. A database that is being dropped is mostly gone by
/// then.
const RELAUNCH_PAUSE: Duration = Duration::from_secs(5);
/// Pause before the next probe of a database without the extension.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A worker that lives longer than this under `*` has found the extension.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// A failed start is logged again only if the last one is longer ago than this.
const LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Most databases probed at a time.
const PROBES_MAX: usize = 2;
/// `datconnlimit` of a database whose removal was cut short (`DATCONNLIMIT_INVALID_DB`).
const INVALID_DATABASE: i32 = -2;

/// Registers the launcher and the workers' shared memory, if the postmaster is loading `shared_preload_libraries`.
///
/// Not in a server that pg_upgrade has started. There a worker's transactions would take ids after pg_upgrade has read
/// the next one. In the new server those ids would be in the future, and their rows invisible.
pub fn register() {
    // SAFETY: plain reads.
    if unsafe { !pg_sys::process_shared_preload_libraries_in_progress || pg_sys::IsBinaryUpgrade } {
        return;
    }
    outcomes::register();
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

/// Databases that accept connections and are not templates. It scans the shared catalog, because the launcher belongs
/// to no database and cannot always use the catalog's PostgreSQL indexes.
fn databases() -> Vec<Database> {
    BackgroundWorker::transaction(|| {
        let mut found = Vec::new();
        // SAFETY: a catalog scan in a transaction; each tuple is used before the scan moves on.
        unsafe {
            scan(pg_sys::DatabaseRelationId, pg_sys::InvalidOid, std::ptr::null_mut(), &[], |row| {
                let database: pg_sys::Form_pg_database = pg_sys::heap_tuple_get_struct(row.tuple());
                let is_open = (*database).datallowconn && (*database).datconnlimit != INVALID_DATABASE;
                if is_open && !(*database).datistemplate {
                    let name = CStr::from_ptr((*database).datname.data.as_ptr()).to_string_lossy().into_owned();
                    found.push(Database { oid: (*database).oid, name });
                }
            });
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

/// A database that has or had a worker.
struct Launched {
    handle: Option<DynamicBackgroundWorker>,
    started: Instant,
    /// The next worker may start at this time.
    due: Instant,
}

impl Launched {
    /// If the worker has ended, sets the time of the next one.
    fn note_end(&mut self, database: pg_sys::Oid, now: Instant, is_all: bool) {
        let is_stopped =
            |handle: &DynamicBackgroundWorker| matches!(handle.pid(), Err(BackgroundWorkerStatus::Stopped));
        if self.handle.as_ref().is_some_and(is_stopped) {
            self.handle = None;
            let found_nothing = is_all && !outcomes::are_known(database);
            self.due = now + if found_nothing { RECHECK_INTERVAL } else { RELAUNCH_PAUSE };
        }
    }

    /// Whether the worker may still find that there is no extension.
    fn is_probing(&self, now: Instant) -> bool {
        self.handle.is_some() && now - self.started < SHORT_LIFE
    }
}

/// The databases that have or had workers, by OID.
#[derive(Default)]
struct Launcher {
    launched: HashMap<pg_sys::Oid, Launched>,
    /// When the last start of a worker failed.
    refused: Option<Instant>,
}

impl Launcher {
    fn reconcile(&mut self, was_reloaded: bool) {
        let (chosen, now) = (compaction_databases(), Instant::now());
        let is_all = matches!(chosen, Databases::All);
        let mut databases = databases();
        databases.retain(|database| chosen.has(&database.name));
        self.launched.retain(|oid, launched| {
            let keep = databases.iter().any(|database| database.oid == *oid);
            if !keep && let Some(handle) = launched.handle.take() {
                handle.terminate();
            }
            if !keep {
                outcomes::forget(*oid);
            }
            keep
        });
        for (oid, launched) in &mut self.launched {
            launched.note_end(*oid, now, is_all);
            if was_reloaded {
                launched.due = now;
            }
        }
        let mut probes = self.launched.values().filter(|launched| launched.is_probing(now)).count();
        // The longest wait comes first.
        databases.sort_by_key(|database| self.launched.get(&database.oid).map(|launched| launched.due));
        for database in databases {
            let is_due = self.launched.get(&database.oid).is_none_or(|l| l.handle.is_none() && l.due <= now);
            if !is_due {
                continue;
            }
            if (is_all && probes >= PROBES_MAX) || !self.launch(&database, now) {
                return;
            }
            probes += 1;
        }
    }

    /// `false` if no worker can be started now.
    fn launch(&mut self, database: &Database, now: Instant) -> bool {
        let handle = start(database);
        if handle.is_some() {
            self.launched.insert(database.oid, Launched { handle, started: now, due: now });
            return true;
        }
        if self.refused.is_none_or(|refused| now - refused > LOG_INTERVAL) {
            log!(
                "mantle launcher: no worker for database \"{}\": max_worker_processes are running; it is tried again",
                database.name
            );
        }
        self.refused = Some(now);
        false
    }
}

/// The launcher's process; it connects to no database.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn mantle_launcher_main(_argument: pg_sys::Datum) {
    attach_signal_handlers();
    BackgroundWorker::connect_worker_to_spi(None, None);
    pin_settings();
    outcomes::note_launcher();
    let mut launcher = Launcher::default();
    while sleep(LAUNCH_INTERVAL) {
        let was_reloaded = reload_settings();
        if was_reloaded {
            outcomes::note_loaded();
        }
        launcher.reconcile(was_reloaded);
    }
}
