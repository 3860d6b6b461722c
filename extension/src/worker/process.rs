//! Signals and waits of the background processes.

use std::time::Duration;

use pgrx::{
    bgworkers::{BackgroundWorker, SignalWakeFlags},
    pg_sys,
};

const SIGTERM: i32 = 15;

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGTERM; bound by pgrx, but not as what a signal may call.
    fn die(signal: std::ffi::c_int);
}

/// PostgreSQL's own handling of SIGTERM, which also ends the wait of a commit for a standby: a worker that went on waiting
/// would keep its server from ever stopping, and a primary that was cut off from coming back as a standby. SIGHUP is noted.
pub fn attach_signal_handlers() {
    // SAFETY: called once, before signals are unblocked; the handler is PostgreSQL's.
    unsafe { pg_sys::pqsignal(SIGTERM, Some(die)) };
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
}

/// Has the worker been told to end?
pub fn is_ended() -> bool {
    // SAFETY: a plain read.
    unsafe { pg_sys::ProcDiePending != 0 }
}

/// Rests until it is time, or a signal comes. False: the worker is to end, without a word.
pub fn sleep(time: Duration) -> bool {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the latch is this process's.
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

/// Reads the settings if that was asked for; was it?
pub fn reload_settings() -> bool {
    let is_asked = BackgroundWorker::sighup_received();
    if is_asked {
        // SAFETY: called between transactions, as the main loop of a worker should.
        unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
    }
    is_asked
}
