//! Expiry of rename locks: if a gateway dies after it has prepared a rename, the lock must not stay for ever.
//!
//! Invariant: a lock is released only after the attempt's abort record is in PostgreSQL, so that a late commit cannot move a
//! directory that is no longer locked (P20). Time is the leader's monotonic clock, from when this leader learned of the lock.
//! A new leader starts the count again, which only prolongs the lock.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use mantle_types::{Error, ErrorCode, RequestKey, Result};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    failpoints::{self, Failpoint},
    index::command::Command,
    node::{Leadership, Node},
    postgres::upstream::{Database, Session},
};

const SCAN: Duration = Duration::from_millis(100);
/// Time until the next abort of an attempt whose abort failed or that was found committed.
const RETRY: Duration = Duration::from_secs(5);

/// The times of a lock on this leader's clock.
struct Times {
    expires: Instant,
    next_abort: Instant,
}

/// Releases expired locks during one term; never returns.
pub async fn expire(node: &Arc<Node>, leadership: &Leadership, database: &Database) {
    let mut known: HashMap<(RequestKey, u64), Times> = HashMap::new();
    let mut aborts = JoinSet::new();
    let mut scan = interval(SCAN);
    scan.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        scan.tick().await;
        while aborts.try_join_next().is_some() {}
        let locks = node.state.read().index.locks();
        let now = Instant::now();
        known.retain(|(request, attempt), _| {
            locks.iter().any(|lock| lock.request == *request && lock.attempt == *attempt)
        });
        let mut expired = 0;
        for lock in locks {
            let expires = now + Duration::from_millis(u64::from(lock.lock_ms));
            let times = known.entry((lock.request, lock.attempt)).or_insert(Times { expires, next_abort: expires });
            expired += u64::from(times.expires <= now);
            if times.next_abort > now {
                continue;
            }
            times.next_abort = now + RETRY;
            let (node, leadership, database) = (node.clone(), leadership.clone(), database.clone());
            aborts.spawn(async move {
                tracing::warn!(request = %lock.request, attempt = lock.attempt, "a rename lock expired");
                // The message of a committed attempt releases its lock. `abort_rename` logs a failure; the next scan retries.
                let is_aborted = failpoints::is_hit(Failpoint::UnlockWithoutAbort)
                    || abort_rename(&node, &database, &lock.request, lock.attempt)
                        .await
                        .is_ok_and(|is_aborted| is_aborted);
                if is_aborted {
                    let release = Command::Release { request: lock.request, attempt: lock.attempt };
                    if let Err(e) = node.propose_as(&leadership, &release).await {
                        tracing::warn!(request = %lock.request, error = %e, "cannot release an expired lock");
                    }
                }
            });
        }
        node.expired_locks.store(expired, Ordering::Relaxed);
    }
}

/// Writes the abort record of an attempt; `false` if the attempt is already committed. Shares its session with no other
/// statement, because this one may wait for a transaction that is about to commit.
pub async fn abort_rename(node: &Node, database: &Database, request: &RequestKey, attempt: u64) -> Result<bool> {
    let abort = |session: Session| async move { session.abort_rename(request, attempt).await };
    node.abort_sessions.ask(database, abort).await.map_err(|e: anyhow::Error| {
        tracing::warn!(%request, attempt, error = format!("{e:#}"), "cannot write an abort record");
        Error::new(ErrorCode::DatabaseUnavailable, "the abort record cannot be written now")
    })
}
