//! The objects' bytes. There are several kinds of stores: a locator says which one has the bytes, and the configuration says
//! which one takes new ones. Invariant: bytes are durable before metadata name them, and are removed only when no metadata name
//! them any more. A locator is never used again, so bytes are never overwritten.
//!
//! - `files`: a local folder, one file an object
//! - `volumes`: this gateway's volume, a file for many objects
//! - `bucket`: a bucket of another object store
//! - `body`: what a client sends
//! - `content`: what a client is sent
//! - `described`: what metadata says of a checksum
//! - `digest`: announced and kept digests
//! - `failure`: what can go wrong
//! - `folder`: folders whose names are flushed

mod body;
mod bucket;
mod content;
mod described;
mod digest;
mod failure;
mod files;
/// Folders whose names are flushed.
pub mod folder;
/// Bytes in volumes.
pub mod volumes;

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
use mantle_volumes::Generation;
use object_store::path::Path as Key;
use uuid::Uuid;

use self::{
    body::Body,
    bucket::BucketStore,
    files::FileStore,
    volumes::{Claim, Pins, Volumes},
};
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
    config::{Config, FILES, VOLUMES},
    waiting::unhurried,
};

/// The locator of no bytes, where a store keeps nothing of them.
const EMPTY: &str = "empty:";

/// All stores. A clone is the same stores.
#[derive(Clone)]
pub struct DataStore(Arc<Stores>);

struct Stores {
    files: Option<FileStore>,
    volumes: Option<Volumes>,
    buckets: BTreeMap<String, BucketStore>,
    new: Kind,
}

/// Which store takes new bytes.
enum Kind {
    Files(FileStore),
    Volumes(Volumes),
    Bucket(BucketStore),
}

/// What a put has to tell its store.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The identity of the metadata database, with which buckets mark bytes.
    pub cluster: Uuid,
    /// Names the write, for volumes; no other write has or had it.
    pub generation: Option<Generation>,
}

/// Where a locator leads.
enum Place<'a> {
    File(&'a FileStore, Key),
    Volume(&'a Volumes),
    Bucket(&'a BucketStore, Key),
    Nowhere,
}

/// Bytes that are durable and that no metadata name yet. Call [`Stored::sent`] before metadata that name them are sent, and
/// [`DataStore::named`] or [`DataStore::discard`] once it is certain what became of the metadata.
#[derive(Debug)]
#[must_use]
pub struct Stored {
    /// Where they are, in their order: one piece, or several of a large object in a volume; none if they were not stored.
    pub pieces: Vec<StoredPiece>,
    /// The bytes of a small object, which are not stored here: the metadata has to take them.
    pub inline: Option<Bytes>,
    pub size: u64,
    pub checksums: Checksums,
    pub written: Written,
    claim: Option<Claim>,
}

/// A part of stored bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPiece {
    /// What metadata keeps of them: a text that begins with the kind of store.
    pub locator: String,
    /// In bytes.
    pub length: u64,
}

impl Stored {
    fn whole(locator: String, size: u64, checksums: Checksums, written: Written) -> Self {
        let pieces = vec![StoredPiece { locator, length: size }];
        Self { pieces, inline: None, size, checksums, written, claim: None }
    }

    fn inline(bytes: Bytes, checksums: Checksums) -> Self {
        let (size, written) = (bytes.len() as u64, Written::now());
        Self { pieces: Vec::new(), inline: Some(bytes), size, checksums, written, claim: None }
    }

    fn empty(checksums: Checksums) -> Self {
        Self::whole(EMPTY.into(), 0, checksums, Written::now())
    }

    /// From now on metadata may name them.
    pub fn sent(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.sent();
        }
    }

    /// Metadata names them, or certainly never will: then their blocks are free.
    pub fn settle(&mut self, is_named: bool) {
        if let Some(claim) = self.claim.take() {
            claim.settle(is_named);
        }
    }

    /// PostgreSQL answered that a segment of them is not leased under their epoch. Waits until it is leased under another epoch,
    /// and puts that epoch into the locators.
    ///
    /// # Errors
    /// `StaleSegment`, `BytesUnavailable`: they have to be stored again.
    pub async fn renew(&mut self) -> Result<()> {
        let Some(claim) = &mut self.claim else { return Err(ErrorCode::StaleSegment.into()) };
        claim.renew().await?;
        self.pieces = volumes::pieces(claim);
        Ok(())
    }
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

    /// By the clock that has gone further: the steady one stops while the machine is suspended, the other can be set back.
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
        let answer_wait = Duration::from_millis(config.limits.answer_wait_ms);
        let volumes = config.volumes.as_ref().map(|settings| Volumes::new(settings, answer_wait));
        let name = config.new_bytes()?;
        let new = match (name, &files, &volumes, buckets.get(name)) {
            (FILES, Some(files), ..) => Kind::Files(files.clone()),
            (VOLUMES, _, Some(volumes), _) => Kind::Volumes(volumes.clone()),
            (.., Some(bucket)) => Kind::Bucket(bucket.clone()),
            _ => bail!("new_bytes: there is no store `{name}`"),
        };
        Ok(Self(Arc::new(Stores { files, volumes, buckets, new })))
    }

    /// The volumes, if there is a section of the configuration.
    pub fn volumes(&self) -> Option<&Volumes> {
        self.0.volumes.as_ref()
    }

    /// Whether new bytes go into a volume, and so need a generation.
    pub fn puts_into_volume(&self) -> bool {
        matches!(self.0.new, Kind::Volumes(_))
    }

    /// Whether a locator is of a volume, or of no bytes: then there is nothing to move into one.
    pub fn is_in_volume(&self, locator: &str) -> bool {
        volumes::is_ours(locator) || locator == EMPTY
    }

    /// An error while new bytes cannot be stored, as far as that is known.
    pub fn is_ready(&self) -> Result<()> {
        match &self.0.new {
            Kind::Volumes(volumes) => volumes.own().map(drop),
            Kind::Files(_) | Kind::Bucket(_) => Ok(()),
        }
    }

    /// Whether any store marks bytes with the identity of the cluster.
    pub fn marks_bytes(&self) -> bool {
        !self.0.buckets.is_empty()
    }

    fn place(&self, locator: &str) -> Result<Place<'_>> {
        let place = match (&self.0.files, FileStore::key_of(locator), bucket::parse(locator)) {
            (Some(files), Some(key), _) => Some(Place::File(files, key)),
            (_, _, Some((name, key))) => self.0.buckets.get(name).map(|bucket| Place::Bucket(bucket, key)),
            _ if volumes::is_ours(locator) => self.0.volumes.as_ref().map(Place::Volume),
            _ if locator == EMPTY => Some(Place::Nowhere),
            _ => None,
        };
        place.ok_or_else(|| {
            tracing::error!(locator, "a locator names no store of this gateway's configuration");
            ErrorCode::Internal.into()
        })
    }

    /// Stores a client's stream and compares it with the announced digests. On an error no bytes remain. A stream of at most
    /// `inline_max` bytes is not stored but returned; 0: every stream is stored.
    pub async fn put<S, E>(
        &self,
        mark: Mark,
        stream: S,
        size_max: u64,
        expected: Expected,
        inline_max: usize,
    ) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = Body::new(stream, size_max, expected);
        if inline_max > 0
            && let Some(bytes) = unhurried(body.whole(inline_max)).await?
        {
            let checksums = body.check()?;
            return Ok(if bytes.is_empty() { Stored::empty(checksums) } else { Stored::inline(bytes, checksums) });
        }
        match &self.0.new {
            Kind::Files(files) => unhurried(files.put(&mut body)).await,
            Kind::Volumes(volumes) => {
                let generation =
                    mark.generation.ok_or(ErrorCode::Internal).map_err(|code| UploadError::Store(code.into()))?;
                unhurried(volumes.put(generation, &mut body)).await
            }
            Kind::Bucket(bucket) => unhurried(bucket.put(mark.cluster, &mut body)).await,
        }
    }

    /// Says that metadata names the bytes.
    pub fn named(&self, mut stored: Stored) {
        stored.settle(true);
    }

    /// Removes bytes that certainly no metadata names, and none will. If that fails, the sweeper removes them later.
    pub async fn discard(&self, mut stored: Stored) {
        stored.settle(false);
        for piece in &stored.pieces {
            self.delete(&piece.locator).await;
        }
    }

    /// Reads a range that is not empty; `None` when the bytes are gone. `internal` if they end before the range does.
    /// `bytes_corrupt` if they are not those that were written: either they are gone, or damaged.
    pub async fn get(&self, locator: &str, range: Range<u64>) -> Result<Option<Content>> {
        match self.place(locator)? {
            Place::File(files, key) => unhurried(files.get(&key, range)).await,
            Place::Volume(volumes) => match unhurried(volumes.get(locator, range)).await {
                Err(gone) if gone.code() == ErrorCode::BytesMissing => Ok(None),
                found => found.map(Some),
            },
            Place::Bucket(bucket, key) => unhurried(bucket.get(&key, range)).await,
            Place::Nowhere => {
                tracing::error!("a range of no bytes was asked for");
                Err(ErrorCode::Internal.into())
            }
        }
    }

    /// Pins bytes in this gateway's volume that a read comes to later, as if it was at them already.
    pub fn pin(&self, locator: &str) -> Option<Pins> {
        self.0.volumes.as_ref().filter(|_| volumes::is_ours(locator))?.pin(locator)
    }

    /// Removes bytes that no metadata names any more. If that fails, the sweeper removes them later. Those in volumes are removed by
    /// the gateway that has the volume: PostgreSQL tells it.
    pub async fn delete(&self, locator: &str) {
        let removed = match self.place(locator) {
            Ok(Place::File(files, key)) => unhurried(files.delete(&key)).await,
            Ok(Place::Bucket(bucket, key)) => unhurried(bucket.delete(&key)).await,
            Ok(Place::Volume(_) | Place::Nowhere) | Err(_) => return,
        };
        match removed {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(cause) => tracing::warn!(%cause, locator, "could not remove bytes; the sweeper will"),
        }
    }

    /// Removes what interrupted uploads left, if it was last written before this time; returns how many files.
    pub async fn remove_unfinished(&self, before: SystemTime) -> Result<u64> {
        match &self.0.files {
            Some(files) => files.remove_unfinished(before).await,
            None => Ok(0),
        }
    }

    /// All stored bytes of this cluster but those in volumes, in no order.
    pub fn all(&self, cluster: Uuid) -> BoxStream<'static, Result<OldBytes>> {
        let files = self.0.files.iter().map(FileStore::all);
        let buckets = self.0.buckets.values().map(|bucket| bucket.all(cluster));
        stream::iter(files.chain(buckets).collect::<Vec<_>>()).flatten().boxed()
    }
}
