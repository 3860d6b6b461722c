//! Signals and waits of both background processes.

use std::time::Duration;

use pgrx::{
    bgworkers::{BackgroundWorker, SignalWakeFlags},
    pg_sys,
};

use crate::postgres::versions::set_signal_handler;

const SIGTERM: i32 = 15;

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGTERM. pgrx binds it, but with another type than a signal handler's.
    fn die(signal: std::ffi::c_int);
}

/// Installs PostgreSQL's own handler of SIGTERM, and notes SIGHUP. Unlike pgrx's handler it also ends a commit's wait
/// for a standby. A worker that went on waiting would keep its server from stopping, and a primary that was cut off
/// from returning as a standby.
pub fn attach_signal_handlers() {
    // SAFETY: called once, before signals are unblocked; the handler is PostgreSQL's.
    unsafe { set_signal_handler(SIGTERM, Some(die)) };
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
}

/// Whether SIGTERM has arrived.
pub fn is_ended() -> bool {
    // SAFETY: a plain read.
    unsafe { pg_sys::ProcDiePending != 0 }
}

/// Sleeps for some time, or until a signal. `false` if the process must end, silently.
pub fn sleep(time: Duration) -> bool {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the latch belongs to this process.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, time.as_millis() as i64, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    if is_ended() {
        return false;
    }
    pgrx::check_for_interrupts!();
    true
}

/// Reloads the settings after SIGHUP; `true` if it did.
pub fn reload_settings() -> bool {
    let is_asked = BackgroundWorker::sighup_received();
    if is_asked {
        // SAFETY: called between transactions.
        unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
    }
    is_asked
}
