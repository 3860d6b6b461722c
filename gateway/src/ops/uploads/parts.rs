//! UploadPart and UploadPartCopy. The bytes are durable before the part is recorded. A copied part shares the bytes of its
//! source, and reads them once for its etag and checksum. Of bytes inside PostgreSQL it stores a copy (P62).

use std::ops::Range;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use mantle_types::{Error, ErrorCode, PartitionId, Result, inline::is_inline};

use super::super::{
    copy_object::Place,
    object_bytes::{RENEWALS_MAX, extents_of},
    restarts::Restarts,
    stat::Found,
};
use crate::{
    app::{Call, Gateway},
    data::{Algorithm, Checksums, Content, Expected, Stored, UploadError},
    store::{Entry, Extent, LeasedPartition, NewPart, Part, SourceOfPart, Upload, UploadId},
};

/// Most extents of one copied part.
const EXTENTS_MAX: usize = 10_000;

/// The object that a part is copied of.
pub struct PartSource<'a> {
    pub place: Place<'a>,
    /// The bytes; all of them if `None`.
    pub range: Option<Range<u64>>,
}

impl Gateway {
    /// Stores the bytes of a part. May be cancelled: nothing is visible yet.
    pub async fn store_part<S, E>(&self, body: S, expected: Expected) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.store_bytes(body, expected, 0).await
    }

    /// Makes stored bytes a part. If cancelled, it may leave bytes to the sweeper.
    pub async fn put_part(
        &self,
        call: &Call,
        namespace: &str,
        upload: &Upload,
        number: i32,
        mut stored: Stored,
    ) -> Result<()> {
        let mut renewals = 0;
        loop {
            match self.record_part(call, namespace, upload, number, &mut stored).await {
                Ok(replaced) => {
                    self.data.named(stored);
                    self.delete_all(replaced).await;
                    return Ok(());
                }
                Err(error) if error.code() == ErrorCode::StaleSegment && renewals < RENEWALS_MAX => {
                    stored.renew().await?;
                    renewals += 1;
                }
                Err(error) => {
                    if error.code() != ErrorCode::UnknownOutcome {
                        self.data.discard(stored).await;
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn record_part(
        &self,
        call: &Call,
        namespace: &str,
        upload: &Upload,
        number: i32,
        stored: &mut Stored,
    ) -> Result<Vec<String>> {
        let part = NewPart {
            number,
            etag: stored.checksums.md5.clone(),
            checksum: stored.checksums.checksum.value.clone(),
            extents: extents_of(stored),
        };
        let partition = self.before_swept(stored, self.leased(namespace, upload).await?, None)?;
        stored.sent();
        self.store.put_part(&call.caller, upload.attempt.ns, partition, &part, None).await
    }

    /// The partition of an upload, with a lease from now on.
    async fn leased(&self, namespace: &str, upload: &Upload) -> Result<LeasedPartition> {
        let start = self.index.resolution_start(namespace).await?;
        Ok(self.store.lease(&start, upload.id.partition()))
    }

    /// Makes a part of an object that `accept` accepts, or of a range of it.
    pub async fn copy_part<E: From<Error>>(
        &self,
        call: &Call,
        namespace: &str,
        upload: &Upload,
        number: i32,
        source: &PartSource<'_>,
        accept: impl Fn(&Entry) -> Result<(), E>,
    ) -> Result<Part, E> {
        let mut restarts = Restarts::default();
        loop {
            let found = self.source_of_copy(call, source.place).await?;
            let entry = &found.entry;
            accept(entry)?;
            let range = self.range_of_part(entry, source.range.clone())?;
            if entry.locator.as_deref().is_some_and(is_inline) {
                match self.store_copied_part(call, namespace, upload, number, &found, range).await? {
                    Some(part) => return Ok(part),
                    None => restarts.again().await?,
                }
                continue;
            }
            let Some(read) = self.read_part(upload, &found, range.clone()).await? else {
                // The source was replaced or removed since it was read; it is read again.
                restarts.again().await?;
                continue;
            };
            let (Checksums { md5, checksum }, extents) = read;
            let part = NewPart { number, etag: md5.clone(), checksum: checksum.value.clone(), extents };
            let partition = self.leased(namespace, upload).await?;
            let of = SourceOfPart { directory: found.partition, entry };
            match self.store.put_part(&call.caller, upload.attempt.ns, partition, &part, Some(of)).await {
                Ok(replaced) => {
                    self.delete_all(replaced).await;
                    let size = range.end - range.start;
                    let created = chrono::Utc::now();
                    return Ok(Part { number, size, etag: md5, checksum: checksum.value, created });
                }
                Err(e) if e.code() == ErrorCode::SourceChanged => restarts.again().await?,
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }

    /// Makes a part of bytes that are inside PostgreSQL: it gets bytes of its own, in the store. `None` when the source has changed.
    async fn store_copied_part(
        &self,
        call: &Call,
        namespace: &str,
        upload: &Upload,
        number: i32,
        Found { entry, partition, .. }: &Found,
        range: Range<u64>,
    ) -> Result<Option<Part>> {
        let size = range.end - range.start;
        let content = match size {
            0 => Content::empty(),
            _ => match self.read_object(partition.pid, entry, range).await? {
                Some(content) => content,
                None => return Ok(None),
            },
        };
        let expected = Expected { kept: Some(super::checksum_of(upload)?.0), ..Expected::default() };
        let stored = self.store_bytes(content.into_stream(), expected, 0).await.map_err(|error| match error {
            UploadError::Store(error) => error,
            error => {
                tracing::error!(?error, "the bytes of a copied part cannot be stored");
                ErrorCode::Internal.into()
            }
        })?;
        let Checksums { md5, checksum } = stored.checksums.clone();
        self.put_part(call, namespace, upload, number, stored).await?;
        Ok(Some(Part { number, size, etag: md5, checksum: checksum.value, created: chrono::Utc::now() }))
    }

    fn range_of_part(&self, entry: &Entry, range: Option<Range<u64>>) -> Result<Range<u64>> {
        let range = range.unwrap_or(0..entry.size);
        if range.end > entry.size {
            let why = format!("Range specified is not valid for source object of size: {}", entry.size);
            return Err(Error::new(ErrorCode::InvalidRange, why));
        }
        self.check_source_bytes(range.end - range.start)?;
        Ok(range)
    }

    /// Digests and places of a source's bytes; `None` when they are gone.
    async fn read_part(
        &self,
        upload: &Upload,
        Found { entry, partition, .. }: &Found,
        range: Range<u64>,
    ) -> Result<Option<(Checksums, Vec<Extent>)>> {
        let Some(locator) = &entry.locator else { return Err(ErrorCode::NoData.into()) };
        let algorithm = super::checksum_of(upload)?.0;
        let extents = match UploadId::of_manifest(locator) {
            Some(manifest) => self.store.extents_between(manifest, range.clone(), EXTENTS_MAX).await?,
            None => vec![Extent { locator: locator.clone(), start: range.start, length: range.end - range.start }],
        };
        if extents.iter().map(|extent| extent.length).sum::<u64>() != range.end - range.start || extents.is_empty() {
            return Ok(None);
        }
        match self.digests_of(partition.pid, entry, range, algorithm).await? {
            Some(checksums) => Ok(Some((checksums, extents))),
            None => Ok(None),
        }
    }

    /// Digests of stored bytes; `None` when they are gone.
    pub(in crate::ops) async fn digests_of(
        &self,
        pid: PartitionId,
        object: &Entry,
        range: Range<u64>,
        algorithm: Algorithm,
    ) -> Result<Option<Checksums>> {
        let expected = Expected { kept: Some(algorithm), ..Expected::default() };
        let mut hashers = expected.hashers();
        if !range.is_empty() {
            let Some(content) = self.read_object(pid, object, range).await? else { return Ok(None) };
            let mut bytes = content.into_stream();
            while let Some(chunk) = bytes.next().await {
                hashers.update(&chunk.map_err(|cause| {
                    tracing::error!(%cause, locator = object.locator, "cannot read the source of a copy");
                    Error::from(ErrorCode::Internal)
                })?);
            }
        }
        expected.check(hashers).map(Some).map_err(|_| ErrorCode::Internal.into())
    }

    /// The parts of an upload after a number, in order, and whether there are more.
    pub async fn list_parts(&self, upload: &Upload, after: i32, limit: usize) -> Result<(Vec<Part>, bool)> {
        self.page_of_parts(upload.id, after, limit).await
    }

    /// The same of an object that was uploaded in parts; `None` for any other.
    pub async fn parts_of_object(&self, entry: &Entry, after: i32, limit: usize) -> Result<Option<(Vec<Part>, bool)>> {
        let Some(manifest) = entry.locator.as_deref().and_then(UploadId::of_manifest) else { return Ok(None) };
        self.page_of_parts(manifest, after, limit).await.map(Some)
    }

    async fn page_of_parts(&self, upload: UploadId, after: i32, limit: usize) -> Result<(Vec<Part>, bool)> {
        let mut parts = self.store.list_parts(upload, after, limit as i32 + 1).await?;
        let is_truncated = parts.len() > limit;
        parts.truncate(limit);
        Ok((parts, is_truncated))
    }
}
