//! Refuses request ids that are too old (P19): their recorded answer may be gone, and the request would be carried out
//! again.
//!
//! A UUID of version 7 begins with the time when it was made; other versions do not tell. An id is too old if it was
//! made longer ago than answers are kept, or before the position up to which answers were purged because there were too
//! many (`sql/admin/purge.sql`). The caller has found no recorded answer.

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

/// Younger answers are never purged, however many there are; `sql/admin/purge.sql` has the same bound.
const KEPT_AT_LEAST_US: i64 = 60 * 1_000_000;

/// 2020-01-01, in microseconds since 2000. There was no version 7 before, so an earlier time comes from a clock that
/// was never set, or from 128 random bits, and is ignored.
const FIRST_US: i64 = 631_152_000 * 1_000_000;

thread_local! {
    static PURGED: SavedPlan = const { SavedPlan::new(c"SELECT p.up_to FROM mantle.purged_requests p", &[]) };
}

/// When an id was made, in microseconds since 2000; `None` if it does not tell.
fn made_us(request: &pgrx::Uuid) -> Option<i64> {
    let bytes = request.as_bytes();
    let is_timed = bytes[6] >> 4 == 7 && bytes[8] >> 6 == 0b10;
    let time_ms = bytes[..6].iter().fold(0_i64, |time, byte| time << 8 | i64::from(*byte));
    let made_us = time_ms * 1_000 - POSTGRES_EPOCH_US;
    (is_timed && made_us >= FIRST_US).then_some(made_us)
}

/// Whether an id is young enough, or does not tell. Compares with the start of the transaction, to avoid reading the
/// clock for each id.
pub fn is_fresh(request: &pgrx::Uuid) -> bool {
    made_us(request).is_none_or(|made_us| clock::now() - made_us < KEPT_AT_LEAST_US)
}

/// MT021 for a request id (version 7) so old that its answer may have been purged. Called when there is no answer.
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
