//! The objects' bytes. There are several kinds of stores; a locator says which one has the bytes, and the configuration says
//! which one takes new ones. Invariant: bytes are durable before metadata names them, and are removed only when no metadata names
//! them any more. A locator is never used again, so bytes are never overwritten.
//!
//! - `files`: a local folder, one file an object
//! - `bucket`: a bucket of another object store
//! - `body`: what a client sends
//! - `content`: what a client is sent
//! - `described`: what metadata says of a checksum
//! - `digest`: announced and kept digests
//! - `failure`: what can go wrong

mod body;
mod bucket;
mod content;
mod described;
mod digest;
mod failure;
mod files;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{Stream, StreamExt, stream, stream::BoxStream};
use mantle_types::{ErrorCode, Result};
use object_store::path::Path as Key;
use uuid::Uuid;

use self::{body::Body, bucket::BucketStore, files::FileStore};
pub use self::{
    content::Content,
    described::described_in,
    digest::{
        Algorithm, Checksum, ChecksumKind, Checksums, Expected, KEPT_AS, Mismatch, OWN_CHECKSUM, Trailer,
        checksum_of_parts, etag_of_parts, has_own_checksum,
    },
    failure::UploadError,
};
use crate::{
    config::{Config, FILES},
    waiting::unhurried,
};

/// All stores. A clone is the same stores.
#[derive(Clone)]
pub struct DataStore(Arc<Stores>);

struct Stores {
    files: Option<FileStore>,
    buckets: BTreeMap<String, BucketStore>,
    new: Kind,
}

/// Which store takes new bytes.
enum Kind {
    Files(FileStore),
    Bucket(BucketStore),
}

/// Where a locator leads.
enum Place<'a> {
    File(&'a FileStore, Key),
    Bucket(&'a BucketStore, Key),
}

/// Bytes that are durable but that no metadata names yet.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The locator that metadata keep: a text that begins with the kind of store.
    pub locator: String,
    pub size: u64,
    pub checksums: Checksums,
    pub written: Written,
}

/// Bytes in a store, and when they were written.
#[derive(Clone, Debug)]
pub struct OldBytes {
    pub locator: String,
    pub written: DateTime<Utc>,
}

/// When bytes were last written: no later than the time that their store tells, by which the sweeper judges their age.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    steady: Instant,
    wall: SystemTime,
}

impl Written {
    pub fn now() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// By the clock that has gone further: the steady one stands while the machine is suspended, the other can be set back.
    pub fn age(&self) -> Duration {
        self.steady.elapsed().max(self.wall.elapsed().unwrap_or_default())
    }
}

impl DataStore {
    /// Opens the stores of a configuration. Buckets are reached at the first call.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let files = config.data_dir.as_deref().map(FileStore::open).transpose().context("data_dir")?;
        let open = |(name, settings)| BucketStore::open(name, settings).with_context(|| format!("buckets.{name}"));
        let named = config.buckets.iter().map(|(name, settings)| Ok((name.clone(), open((name, settings))?)));
        let buckets = named.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        let name = config.new_bytes()?;
        let new = match (name, &files, buckets.get(name)) {
            (FILES, Some(files), _) => Kind::Files(files.clone()),
            (_, _, Some(bucket)) => Kind::Bucket(bucket.clone()),
            _ => bail!("new_bytes: there is no store `{name}`"),
        };
        Ok(Self(Arc::new(Stores { files, buckets, new })))
    }

    /// Whether any store marks bytes with the identity of the cluster.
    pub fn marks_bytes(&self) -> bool {
        !self.0.buckets.is_empty()
    }

    fn place(&self, locator: &str) -> Result<Place<'_>> {
        let place = match (&self.0.files, FileStore::key_of(locator), bucket::parse(locator)) {
            (Some(files), Some(key), _) => Some(Place::File(files, key)),
            (_, _, Some((name, key))) => self.0.buckets.get(name).map(|bucket| Place::Bucket(bucket, key)),
            _ => None,
        };
        place.ok_or_else(|| {
            tracing::error!(locator, "a locator names no store of this gateway's configuration");
            ErrorCode::Internal.into()
        })
    }

    /// Stores a client's stream and checks it against the announced digests. On an error no bytes remain.
    pub async fn put<S, E>(
        &self,
        cluster: Uuid,
        stream: S,
        size_max: u64,
        expected: Expected,
    ) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = Body::new(stream, size_max, expected);
        match &self.0.new {
            Kind::Files(files) => unhurried(files.put(&mut body)).await,
            Kind::Bucket(bucket) => unhurried(bucket.put(cluster, &mut body)).await,
        }
    }

    /// Removes bytes that no metadata names now or later. If that fails, the sweeper removes them later.
    pub async fn discard(&self, stored: &Stored) {
        self.delete(&stored.locator).await;
    }

    /// Reads a range that is not empty; `None` when the bytes are gone. `internal` if they end before the range does.
    pub async fn get(&self, locator: &str, range: Range<u64>) -> Result<Option<Content>> {
        match self.place(locator)? {
            Place::File(files, key) => unhurried(files.get(&key, range)).await,
            Place::Bucket(bucket, key) => unhurried(bucket.get(&key, range)).await,
        }
    }

    /// Removes bytes that no metadata names any more. If that fails, the sweeper removes them later.
    pub async fn delete(&self, locator: &str) {
        let removed = match self.place(locator) {
            Ok(Place::File(files, key)) => unhurried(files.delete(&key)).await,
            Ok(Place::Bucket(bucket, key)) => unhurried(bucket.delete(&key)).await,
            Err(_) => return,
        };
        match removed {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(cause) => tracing::warn!(%cause, locator, "could not remove bytes; the sweeper will"),
        }
    }

    /// Removes what uploads left that ended in their middle, if it was last written before then; returns how many files.
    pub async fn remove_unfinished(&self, before: SystemTime) -> Result<u64> {
        match &self.0.files {
            Some(files) => files.remove_unfinished(before).await,
            None => Ok(0),
        }
    }

    /// All stored bytes of this cluster, in no order.
    pub fn all(&self, cluster: Uuid) -> BoxStream<'static, Result<OldBytes>> {
        let files = self.0.files.iter().map(FileStore::all);
        let buckets = self.0.buckets.values().map(|bucket| bucket.all(cluster));
        stream::iter(files.chain(buckets).collect::<Vec<_>>()).flatten().boxed()
    }
}
