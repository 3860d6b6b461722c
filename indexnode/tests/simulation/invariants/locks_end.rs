//! Locks end: none is held when everything is quiet. And none ends too early: until a committed rename is applied, every index
//! that has applied its prepare holds its lock, or has another epoch.

use super::{CheckResult, Sample};
use crate::postgres::Postgres;

/// Checks that no lock ends too early.
pub fn check(sample: &Sample, postgres: &Postgres) -> CheckResult {
    let waiting = postgres.attempts.iter().rev().take_while(|rename| rename.commit_lsn > sample.applied_lsn());
    for rename in waiting.filter(|r| r.epoch == sample.epoch && r.attempt <= sample.applied.index) {
        let holds =
            |lock: &mantle_indexnode::index::LockInfo| lock.request == rename.request && lock.attempt == rename.attempt;
        if !sample.locks.iter().any(holds) {
            return Err(format!(
                "host {} (entry {}) holds no lock for attempt {} of {}, which is committed and not applied",
                sample.host, sample.applied, rename.attempt, rename.request
            ));
        }
    }
    Ok(())
}

/// Checks that no lock is held at the end.
pub fn at_end(sample: &Sample) -> CheckResult {
    if sample.locks.is_empty() {
        return Ok(());
    }
    Err(format!("host {} holds locks after everything has ended: {:?}", sample.host, sample.locks))
}
