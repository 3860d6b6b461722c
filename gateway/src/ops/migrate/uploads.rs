//! Moves the bytes of uploads in parts, finished or not, part by part. Objects name an upload as their manifest, and its extents move
//! under that name: once, however many objects share it. A part that was copied gets bytes of its own. The old bytes are removed
//! once no row names them. A read that is under way looks again where the rest is.

use std::{collections::HashSet, io, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use mantle_types::{Error, ErrorCode, NamespaceId, Result};

use super::{Fate, OBJECTS_AT_ONCE};
use crate::{
    app::Gateway,
    data::{DataStore, Expected, Mark, Stored, UploadError},
    disconnect::run_detached,
    ops::object_bytes::{RENEWALS_MAX, extents_of},
    store::{Extent, ExtentOfPart, UploadId},
};

/// Uploads that are looked at in one call of PostgreSQL.
const PAGE_UPLOADS: usize = 1000;

/// A part whose bytes are about to move.
struct Part {
    upload: UploadId,
    number: i32,
    extents: Vec<Extent>,
    /// MD5 in hexadecimal; `None` of a manifest that was not uploaded in parts.
    etag: Option<String>,
}

impl Part {
    fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.length).sum()
    }

    fn locators(&self) -> Vec<&str> {
        self.extents.iter().map(|extent| extent.locator.as_str()).collect()
    }

    /// Its bytes, of which some may turn out to be gone.
    fn content(&self, data: DataStore) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static {
        let wanted: Vec<Extent> = self.extents.iter().filter(|extent| extent.length > 0).cloned().collect();
        let open = move |Extent { locator, start, length }: Extent| {
            let data = data.clone();
            async move {
                let found = data.get(&locator, start..start + length).await.map_err(io::Error::other)?;
                let found = found.ok_or_else(|| io::Error::other(Error::from(ErrorCode::BytesMissing)))?;
                Ok::<_, io::Error>(found.into_stream())
            }
        };
        stream::iter(wanted).then(open).try_flatten().boxed()
    }
}

/// The parts of an upload.
fn parts_of(upload: UploadId, extents: Vec<ExtentOfPart>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for ExtentOfPart { part: number, extent, etag, .. } in extents {
        match parts.last_mut().filter(|last| last.number == number) {
            Some(last) => last.extents.push(extent),
            None => parts.push(Part { upload, number, extents: vec![extent], etag }),
        }
    }
    parts
}

impl Gateway {
    /// Moves the bytes of the uploads of these namespaces.
    pub(super) async fn migrate_uploads(self: &Arc<Self>, namespaces: &HashSet<NamespaceId>) -> Result<()> {
        let mut after = 0;
        loop {
            let page = self.store.all_uploads(after, PAGE_UPLOADS).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.attempt.upload.0;
            let ours = page.into_iter().map(|upload| upload.attempt).filter(|attempt| namespaces.contains(&attempt.ns));
            let moves = stream::iter(ours).map(|attempt| self.clone().migrate_upload(attempt.upload));
            let mut fates = moves.buffer_unordered(OBJECTS_AT_ONCE);
            while let Some(fate) = fates.next().await {
                let (fate, bytes) = fate?;
                self.note(fate, bytes);
            }
        }
    }

    /// Moves what is not moved yet; returns how many bytes that was. An error of one part is a fate.
    async fn migrate_upload(self: Arc<Self>, upload: UploadId) -> Result<(Fate, u64)> {
        let (mut bytes, mut all) = (0, Fate::Passed);
        for part in parts_of(upload, self.store.upload_extents(upload).await?) {
            if part.extents.iter().all(|extent| self.data.is_in_volume(&extent.locator)) {
                continue;
            }
            let (gateway, number, size) = (self.clone(), part.number, part.bytes());
            // A row that is sent may be changed, so this is not given up in the middle.
            let fate = run_detached(async move { gateway.move_part(&part).await }).await;
            match fate {
                Ok(Fate::Moved) => bytes += size,
                Ok(_) => {}
                Err(ref error) if matches!(error.code(), ErrorCode::StorageFull | ErrorCode::DatabaseUnavailable) => {
                    return fate.map(|fate| (fate, bytes));
                }
                Err(ref error) => {
                    tracing::error!(%error, upload = upload.0, part = number, "the bytes of a part could not be moved");
                }
            }
            all = all.max(fate.unwrap_or(Fate::Failed));
        }
        Ok((all, bytes))
    }

    async fn move_part(&self, part: &Part) -> Result<Fate> {
        let Some(mut stored) = self.store_part_again(part).await? else {
            // It was put again, or its upload has ended. Or the bytes of its source have moved: the next run finds it.
            let now = parts_of(part.upload, self.store.upload_extents(part.upload).await?);
            let is_same = now.iter().any(|now| now.number == part.number && now.extents == part.extents);
            return Ok(if is_same { Fate::Failed } else { Fate::Passed });
        };
        for _ in 0..RENEWALS_MAX {
            stored.sent();
            let replaced =
                self.store.replace_extents(part.upload, part.number, &part.locators(), &extents_of(&stored)).await;
            match replaced {
                Ok(old) => {
                    self.data.named(stored);
                    self.remove_unused(&old).await;
                    return Ok(Fate::Moved);
                }
                Err(error) if error.code() == ErrorCode::StaleSegment => stored.renew().await?,
                Err(error) => return self.not_named(stored, error).await,
            }
        }
        Err(ErrorCode::StaleSegment.into())
    }

    /// Removes bytes that no row names. If PostgreSQL does not say which these are, the sweeper removes them later.
    async fn remove_unused(&self, locators: &[String]) {
        if locators.is_empty() {
            return;
        }
        match self.store.unused_locators(locators).await {
            Ok(unused) => {
                for locator in unused {
                    self.data.delete(&locator).await;
                }
            }
            Err(error) => tracing::debug!(%error, "bytes that were moved are left to the sweeper"),
        }
    }

    /// The bytes where a put would store them; `None` if they are gone, or not what the etag says.
    async fn store_part_again(&self, part: &Part) -> Result<Option<Stored>> {
        let generation = Some(self.ids.next_generation().await?);
        let mark = Mark { cluster: self.mark().await?, generation };
        let expected = Expected { size: Some(part.bytes()), ..Expected::default() };
        let stored = match self.data.put(mark, part.content(self.data.clone()), u64::MAX, expected, 0).await {
            Ok(stored) => stored,
            Err(UploadError::Store(error)) => return Err(error),
            Err(error) => {
                let (upload, part) = (part.upload.0, part.number);
                tracing::warn!(?error, upload, part, "the bytes of a part cannot be read");
                return Ok(None);
            }
        };
        let is_right =
            stored.size == part.bytes() && part.etag.as_ref().is_none_or(|etag| *etag == stored.checksums.md5);
        if !is_right {
            tracing::error!(upload = part.upload.0, part = part.number, "the bytes of a part do not match its etag");
            self.data.discard(stored).await;
            return Ok(None);
        }
        Ok(Some(stored))
    }
}
