//! Bounds the log in bytes. openraft bounds it in entries, but an import writes megabytes in each.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{MissedTickBehavior, interval};

use super::{Raft, log::LogStore};

/// A larger log on disk triggers a snapshot, and the purge of the entries that it covers.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Entries kept before that snapshot for followers that are a little behind.
const ENTRIES_KEPT: u64 = 16;
const CHECK: Duration = Duration::from_secs(1);

/// Never returns.
pub async fn enforce(raft: &Raft, log: &LogStore) {
    let mut check = interval(CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        check.tick().await;
        if log.disk_bytes() <= LOG_BYTES_MAX {
            continue;
        }
        let (snapshot, applied) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.snapshot.map_or(0, |id| id.index), metrics.last_applied.map_or(0, |id| id.index))
        };
        let purge_to = snapshot.saturating_sub(ENTRIES_KEPT);
        let trigger = raft.trigger();
        let purged = log.purged_index();
        let result = if purge_to > purged {
            trigger.purge_log(purge_to).await
        } else if applied > snapshot {
            trigger.snapshot().await
        } else {
            continue;
        };
        if let Err(e) = result {
            tracing::warn!(error = %e, "cannot shorten the log");
        }
    }
}
