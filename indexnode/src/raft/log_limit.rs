//! Keeps the log small when its entries are large: openraft counts entries, an import writes megabytes in each.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{MissedTickBehavior, interval};

use super::{Raft, log::LogStore};

/// More log than this on disk calls for a snapshot, and for forgetting what it covers.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Entries kept behind that snapshot for followers that are a little behind.
const ENTRIES_KEPT: u64 = 16;
const LOOK: Duration = Duration::from_secs(1);

/// Never returns.
pub async fn enforce(raft: &Raft, log: &LogStore) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
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
