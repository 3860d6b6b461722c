//! The sweeper removes files and keys of buckets that no metadata name and that are older than the longest upload. Crashes
//! and unknown outcomes leave such bytes: between the writing of bytes and of their metadata, and between a commit and the
//! removal of replaced bytes. PostgreSQL says, in batches, which locators are unused; without its answer nothing is removed.
//! The sweeper also removes the files of interrupted uploads, and ends abandoned multipart uploads. Bytes in volumes are
//! the subject of `volumes`.

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use futures::{StreamExt, TryStreamExt};
use mantle_types::Result;

use crate::app::Gateway;

const BATCH_LOCATORS: usize = 1000;

pub async fn run(gateway: Arc<Gateway>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(gateway.limits.sweep_interval_ms));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Skip the first tick, which is immediate: a starting gateway should not list all bytes.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match sweep(&gateway).await {
            Ok(removed) => tracing::debug!(removed, "swept the stores of bytes"),
            Err(error) => tracing::warn!(%error, "could not sweep the stores of bytes; trying again later"),
        }
    }
}

/// Removes old, unused bytes; returns of how many objects or uploads.
pub async fn sweep(gateway: &Gateway) -> Result<u64> {
    let before = Utc::now() - Duration::from_millis(gateway.limits.orphan_grace_ms);
    let mut removed = super::uploads::sweep(gateway).await?;
    removed += gateway.data.remove_unfinished(before.into()).await?;
    let all = gateway.data.all(gateway.mark().await?);
    let old = all.try_filter(|bytes| futures::future::ready(bytes.written < before));
    let mut batches = old.map_ok(|bytes| bytes.locator).try_chunks(BATCH_LOCATORS);
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(|e| e.1)?;
        for locator in gateway.store.unused_locators(&batch).await? {
            gateway.data.delete(&locator).await;
            removed += 1;
        }
    }
    metrics::counter!("mantle_gateway_orphans_removed_total").increment(removed);
    Ok(removed)
}
