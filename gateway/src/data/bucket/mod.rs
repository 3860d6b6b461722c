//! Bytes in a bucket of another object store: S3, Google Cloud Storage or Azure. This is for users who already have such a
//! store. The gateways then need no shared file system: each of them can read all bytes in the bucket.
//!
//! A key is `<cluster>/<xx>/<id>` below the bucket's prefix. It contains the cluster, so that a sweeper lists and
//! removes only what gateways of its own database have written.

mod connect;

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use mantle_types::{Error, ErrorCode, Result};
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart, path::Path as Key};
use uuid::Uuid;

use super::{Checksums, Content, OldBytes, Stored, UploadError, Written, body::Body};
use crate::config::Bucket;

/// Larger objects are uploaded in parts of this size, since some stores want equal parts; only the last may be smaller. S3 takes
/// 10,000 parts of at least 5 MiB, and the largest object has 5 GiB.
const PART_BYTES: usize = 8 << 20;
/// Parts of one upload that are sent while the next one arrives.
const PARTS_IN_FLIGHT: usize = 2;
/// Beginning of every locator: `bucket:<name>/<key>`.
const PREFIX: &str = "bucket:";

/// A bucket. A clone is the same bucket.
#[derive(Clone)]
pub(super) struct BucketStore {
    name: Arc<str>,
    store: Arc<dyn ObjectStore>,
}

/// The name of the bucket of a locator, and the key in it; `None` if a locator is not of this kind.
pub(super) fn parse(locator: &str) -> Option<(&str, Key)> {
    let (name, key) = locator.strip_prefix(PREFIX)?.split_once('/')?;
    Some((name, Key::parse(key).ok()?))
}

/// Names in a folder ascend, as those of files do. There are many folders, since some stores spread keys by their beginning.
fn new_key(cluster: Uuid) -> String {
    let id = Uuid::now_v7().simple().to_string();
    format!("{}/{}/{id}", cluster.simple(), &id[id.len() - 2..])
}

fn failed(cause: &object_store::Error) -> Error {
    match cause {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            tracing::error!(%cause, "the bucket of the objects' bytes refuses the gateway");
        }
        _ => tracing::error!(%cause, "the bucket of the objects' bytes failed"),
    }
    ErrorCode::BytesUnavailable.into()
}

impl BucketStore {
    /// Connects at the first call.
    pub(super) fn open(name: &str, settings: &Bucket) -> anyhow::Result<Self> {
        Ok(Self { name: name.into(), store: connect::connect(settings)? })
    }

    /// Stores a client's bytes. On an error none remain, unless the gateway ends.
    pub(super) async fn put<S, E>(&self, cluster: Uuid, body: &mut Body<S>) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let key = new_key(cluster);
        let locator = format!("{PREFIX}{}/{key}", self.name);
        let key = Key::from(key);
        let first = body.piece(PART_BYTES).await?;
        // An object in parts gets the time at which its upload began.
        let written = Written::now();
        let checksums = if first.len() < PART_BYTES {
            let checksums = body.check()?;
            self.store.put(&key, PutPayload::from(first)).await.map_err(|cause| failed(&cause))?;
            checksums
        } else {
            let upload = self.store.put_multipart(&key).await.map_err(|cause| failed(&cause))?;
            let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
            match send_parts(&mut parts, first, body).await {
                // It aborts by itself if it fails.
                Ok(checksums) => parts.finish().await.map(|_| checksums).map_err(|cause| failed(&cause))?,
                Err(error) => {
                    if let Err(cause) = parts.abort().await {
                        tracing::warn!(%cause, "an upload could not be aborted; its parts stay in the bucket");
                    }
                    return Err(error);
                }
            }
        };
        Ok(Stored::whole(locator, body.size(), checksums, written))
    }

    /// Reads a range that is not empty; `None` when the bytes are gone.
    pub(super) async fn get(&self, key: &Key, range: Range<u64>) -> Result<Option<Content>> {
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let found = match self.store.get_opts(key, options).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(|cause| failed(&cause))?,
        };
        if found.range != range {
            tracing::error!(%key, ?range, there = ?found.range, "a bucket's object ends before its bytes do");
            return Err(ErrorCode::Internal.into());
        }
        let mut pieces = found.into_stream();
        let first = pieces.try_next().await.map_err(|cause| failed(&cause))?.unwrap_or_default();
        let is_all = first.len() as u64 == range.end - range.start;
        let rest = pieces.map_err(io::Error::other);
        Ok(Some(Content { first, rest: (!is_all).then(|| rest.boxed()) }))
    }

    pub(super) async fn delete(&self, key: &Key) -> object_store::Result<()> {
        self.store.delete(key).await
    }

    /// All bytes that gateways of this cluster have stored, in no order.
    pub(super) fn all(&self, cluster: Uuid) -> BoxStream<'static, Result<OldBytes>> {
        let (name, folder) = (self.name.clone(), Key::from(cluster.simple().to_string()));
        let all = self.store.list(Some(&folder)).map_err(|cause| failed(&cause));
        let locator = move |key: Key| format!("{PREFIX}{name}/{key}");
        all.map_ok(move |meta| OldBytes { locator: locator(meta.location), written: meta.last_modified }).boxed()
    }
}

/// Sends the parts of a body as they arrive; on an error the upload is still open.
async fn send_parts<S, E>(
    parts: &mut WriteMultipart,
    first: Bytes,
    body: &mut Body<S>,
) -> Result<Checksums, UploadError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut part = first;
    while !part.is_empty() {
        parts.wait_for_capacity(PARTS_IN_FLIGHT).await.map_err(|cause| failed(&cause))?;
        parts.put(part);
        part = body.piece(PART_BYTES).await?;
    }
    body.check()
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use object_store::memory::InMemory;

    use super::*;
    use crate::data::Expected;

    fn bucket() -> BucketStore {
        BucketStore { name: "main".into(), store: Arc::new(InMemory::new()) }
    }

    fn body(bytes: &[u8]) -> Body<impl Stream<Item = io::Result<Bytes>> + Unpin> {
        let chunks: Vec<_> = bytes.chunks(64 << 10).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        Body::new(stream::iter(chunks), u64::MAX, Expected::default())
    }

    async fn read(bucket: &BucketStore, locator: &str, range: Range<u64>) -> Option<Vec<u8>> {
        let (name, key) = parse(locator).unwrap();
        assert_eq!(name, "main");
        let content = bucket.get(&key, range).await.unwrap()?;
        let pieces: Vec<Bytes> = content.into_stream().try_collect().await.unwrap();
        Some(pieces.concat())
    }

    async fn listed(bucket: &BucketStore, cluster: Uuid) -> Vec<String> {
        let mut all: Vec<_> = bucket.all(cluster).map_ok(|old| old.locator).try_collect().await.unwrap();
        all.sort();
        all
    }

    #[tokio::test]
    async fn bytes_of_any_size_come_back() {
        let (bucket, cluster) = (bucket(), Uuid::from_u128(7));
        for size in [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 7] {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let stored = bucket.put(cluster, &mut body(&bytes)).await.unwrap();
            assert_eq!(stored.size, size as u64);
            if size > 0 {
                assert!(read(&bucket, &stored.pieces[0].locator, 0..size as u64).await.unwrap() == bytes, "{size}");
                let last = read(&bucket, &stored.pieces[0].locator, size as u64 - 1..size as u64).await;
                assert_eq!(last.unwrap(), bytes[size - 1..]);
            }
            assert_eq!(listed(&bucket, cluster).await, [stored.pieces[0].locator.as_str()]);
            let key = parse(&stored.pieces[0].locator).unwrap().1;
            bucket.delete(&key).await.unwrap();
            assert_eq!(read(&bucket, &stored.pieces[0].locator, 0..1).await, None);
        }
    }

    #[tokio::test]
    async fn an_object_that_is_too_short_is_an_error() {
        let bucket = bucket();
        let stored = bucket.put(Uuid::from_u128(7), &mut body(b"abc")).await.unwrap();
        let key = parse(&stored.pieces[0].locator).unwrap().1;
        assert!(bucket.get(&key, 1..4).await.is_err());
    }

    #[tokio::test]
    async fn what_another_cluster_stored_is_not_listed() {
        let bucket = bucket();
        let (ours, theirs) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let stored = bucket.put(ours, &mut body(b"abc")).await.unwrap();
        let _stored = bucket.put(theirs, &mut body(b"abc")).await.unwrap();
        assert_eq!(listed(&bucket, ours).await, [stored.pieces[0].locator.clone()]);
    }

    #[tokio::test]
    async fn a_body_that_breaks_leaves_nothing() {
        for size in [10, 2 * PART_BYTES] {
            let bucket = bucket();
            let chunks = [Ok(Bytes::from(vec![0; size])), Err(io::Error::other("broken"))];
            let mut body = Body::new(stream::iter(chunks), u64::MAX, Expected::default());
            let broken = bucket.put(Uuid::from_u128(7), &mut body).await;
            assert!(matches!(broken, Err(UploadError::Body(_))));
            assert!(listed(&bucket, Uuid::from_u128(7)).await.is_empty());
        }
    }

    #[test]
    fn only_locators_of_buckets_are_read() {
        assert_eq!(parse("bucket:main/0/a").map(|(name, key)| (name, key.to_string())), Some(("main", "0/a".into())));
        for other in ["objects/00/a", "manifest:7", "v1:0.0/1.7/0+1", "bucket:main", "bucket:main/../a", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
