//! Ends uploads that no client ends, and removes manifests whose object is gone.

use std::time::Duration;

use chrono::Utc;
use mantle_types::{ErrorCode, Result};

use crate::{
    app::Gateway,
    store::{SweptUpload, UploadId, UploadState},
};

const PAGE_UPLOADS: usize = 1000;

/// Ends abandoned uploads, and removes the bytes of manifests that no object names; returns of how many.
pub(in crate::ops) async fn sweep(gateway: &Gateway) -> Result<u64> {
    let (mut after, mut removed) = (0, 0);
    loop {
        let page = gateway.store.all_uploads(after, PAGE_UPLOADS).await?;
        let Some(last) = page.last() else { return Ok(removed) };
        after = last.attempt.upload.0;
        for upload in page.iter().filter(|upload| upload.state != UploadState::Done) {
            removed += u64::from(end_if_due(gateway, upload).await?);
        }
        let done = page.iter().filter(|upload| upload.state == UploadState::Done);
        let manifests: Vec<String> = done.map(|upload| upload.attempt.upload.manifest()).collect();
        if manifests.is_empty() {
            continue;
        }
        for manifest in gateway.store.unused_locators(&manifests).await? {
            removed += u64::from(drop_manifest(gateway, &manifest).await?);
        }
    }
}

async fn end_if_due(gateway: &Gateway, upload: &SweptUpload) -> Result<bool> {
    let (limits, now) = (&gateway.limits, Utc::now());
    let lifetime = Duration::from_secs(limits.upload_lifetime_s);
    let is_over = !upload.is_in_namespace || !lifetime.is_zero() && upload.created < now - lifetime;
    let is_stuck =
        upload.state == UploadState::Sealed && upload.changed < now - Duration::from_millis(limits.orphan_grace_ms);
    if is_over {
        return match gateway.end_upload(None, upload.attempt, upload.state).await {
            Ok(()) => Ok(true),
            // It has become an object, or is becoming one.
            Err(e) if matches!(e.code(), ErrorCode::NoSuchUpload | ErrorCode::UploadBusy) => Ok(false),
            Err(e) => Err(e),
        };
    }
    if is_stuck {
        gateway.settle(upload.attempt).await?;
    }
    Ok(false)
}

async fn drop_manifest(gateway: &Gateway, manifest: &str) -> Result<bool> {
    let Some(upload) = UploadId::of_manifest(manifest) else { return Ok(false) };
    let locators = gateway.store.drop_manifest(upload, gateway.limits.read_grace_ms).await?;
    // A part that was copied may use the same bytes.
    let unused = if locators.is_empty() { locators } else { gateway.store.unused_locators(&locators).await? };
    let is_any = !unused.is_empty();
    gateway.delete_all(unused).await;
    Ok(is_any)
}
