//! PostgreSQL's clock, in microseconds since its epoch, 2000-01-01.

use pgrx::pg_sys;

/// PostgreSQL's epoch, in microseconds since 1970.
pub const POSTGRES_EPOCH_US: i64 = 946_684_800 * 1_000_000;

/// SQL's `clock_timestamp()`.
pub fn clock_timestamp() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// SQL's `now()`: when the transaction started.
pub fn now() -> i64 {
    // SAFETY: reads the transaction's state.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}
