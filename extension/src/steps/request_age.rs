//! Is a request id too old to be answered (P19)? Its recorded answer may be gone then, so that it would be carried out
//! once more. A UUID of version 7 begins with the time when it was made; of the other versions it cannot be told.
//!
//! An id is too old that was made longer ago than answers are kept, or up to where answers were purged because there were too
//! many (`sql/admin/purge.sql`); and has no recorded answer, which the caller has looked for.

use mantle_types::ErrorCode;
use pgrx::prelude::*;

use crate::{
    fault::{Fault, sqlstate},
    postgres::{
        clock::{self, POSTGRES_EPOCH_US},
        saved_plan::SavedPlan,
    },
    settings::REQUEST_RETENTION_S,
};

/// Answers that are younger are never purged, however many there are: `sql/admin/purge.sql` says the same.
const KEPT_AT_LEAST_US: i64 = 60 * 1_000_000;

/// 2020-01-01, in microseconds since 2000: there was no version 7 before. What says so is by a clock that was never set, or no
/// such UUID at all but 128 random bits: it does not tell.
const FIRST_US: i64 = 631_152_000 * 1_000_000;

thread_local! {
    static PURGED: SavedPlan = const { SavedPlan::new(c"SELECT p.up_to FROM mantle.purged_requests p", &[]) };
}

/// When an id was made, in microseconds since 2000; `None`: it does not say.
fn made_us(request: &pgrx::Uuid) -> Option<i64> {
    let bytes = request.as_bytes();
    let is_timed = bytes[6] >> 4 == 7 && bytes[8] >> 6 == 0b10;
    let time_ms = bytes[..6].iter().fold(0_i64, |time, byte| time << 8 | i64::from(*byte));
    let made_us = time_ms * 1_000 - POSTGRES_EPOCH_US;
    (is_timed && made_us >= FIRST_US).then_some(made_us)
}

/// Is an id as young as not to be too old, or does it not say? By the time when the transaction began: the clock need not be
/// read for each.
pub fn is_fresh(request: &pgrx::Uuid) -> bool {
    made_us(request).is_none_or(|made_us| clock::now() - made_us < KEPT_AT_LEAST_US)
}

/// MT021 for an id that is too old to be carried out for the first time.
#[pg_extern(volatile)]
fn request_fault(request: Option<pgrx::Uuid>) -> Fault {
    let request = request.filter(|request| !is_fresh(request))?;
    let made_us = made_us(&request)?;
    let oldest_us = clock::clock_timestamp() - i64::from(REQUEST_RETENTION_S.get()) * 1_000_000;
    let is_expired = made_us < oldest_us || {
        let purged = Spi::connect_mut(|_| PURGED.with(|s| s.rows(&[], |row| row.get::<i64>(1))));
        purged.into_iter().flatten().any(|up_to_us| made_us <= up_to_us)
    };
    is_expired.then(|| sqlstate(ErrorCode::RequestExpired))
}
