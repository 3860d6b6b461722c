//! The objects' bytes: files in a local directory. Large ones are written, and all are listed and removed, through
//! `object_store`; it would take four blocking threads in turn to read a small one, so reading is in `read`. Invariant:
//! bytes are durable before metadata names them, and are removed only when no metadata names them any more. A locator is
//! used once, so bytes are never overwritten.

mod described;
mod digest;
mod read;
mod staged;
mod write;

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use mantle_types::{ErrorCode, Result};
use object_store::{MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload, local::LocalFileSystem};
use tokio::task::spawn_blocking;
use uuid::Uuid;

pub use self::{
    described::described_in,
    digest::{
        Algorithm, Checksum, ChecksumKind, Checksums, Expected, KEPT_AS, Mismatch, OWN_CHECKSUM, Trailer,
        checksum_of_parts, etag_of_parts, has_own_checksum,
    },
    read::Content,
};

/// Larger objects are written in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// First component of every locator.
const OBJECTS: &str = "objects";

/// A clone is the same store.
#[derive(Clone)]
pub struct DataStore {
    folder: PathBuf,
    store: Arc<dyn ObjectStore>,
}

/// Bytes that are durable but that no metadata names yet.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Path relative to the data directory.
    pub locator: String,
    pub size: u64,
    pub checksums: Checksums,
    pub written: Written,
}

/// When bytes were last written: no later than the file's time of modification, by which the sweeper judges their age.
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

#[derive(Debug)]
pub enum UploadError {
    TooLarge,
    /// The client's stream broke, or failed verification.
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The bytes do not match an announced digest.
    Mismatch(Mismatch),
    /// The file system failed, or a use case refused.
    Store(mantle_types::Error),
}

impl From<object_store::Error> for UploadError {
    fn from(cause: object_store::Error) -> Self {
        Self::Store(failed(&cause))
    }
}

impl From<io::Error> for UploadError {
    fn from(cause: io::Error) -> Self {
        Self::Store(failed(&cause))
    }
}

fn failed(cause: &(dyn std::error::Error + 'static)) -> mantle_types::Error {
    if is_full(cause) {
        tracing::warn!(cause, "the data store is full");
        return ErrorCode::StorageFull.into();
    }
    tracing::error!(cause, "the data store failed");
    ErrorCode::Internal.into()
}

/// Whether a write failed for want of space, or of the space that this user may take.
fn is_full(cause: &(dyn std::error::Error + 'static)) -> bool {
    use io::{Error, ErrorKind};
    let mut kinds = anyhow::Chain::new(cause).filter_map(|cause| cause.downcast_ref::<Error>().map(Error::kind));
    kinds.any(|kind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

fn path_of(locator: &str) -> Result<object_store::path::Path> {
    object_store::path::Path::parse(locator).map_err(|cause| {
        tracing::error!(locator, %cause, "a locator is not a path");
        ErrorCode::Internal.into()
    })
}

/// The subdirectory is random, and names in it ascend. PostgreSQL has an index of locators: a random name would change
/// an index page that no other write has changed since the last checkpoint, and the whole page would go into the WAL.
fn new_locator() -> String {
    let id = Uuid::now_v7().simple().to_string();
    format!("{OBJECTS}/{}/{id}", &id[id.len() - 2..])
}

impl DataStore {
    /// Opens a directory, or creates it. Writes are flushed to the disk before they return.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let store = Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true));
        Ok(Self { folder: folder.to_owned(), store })
    }

    /// Stores a client's stream and checks it against the announced digests. On an error no bytes remain.
    pub async fn put<S, E>(&self, mut body: S, size_max: u64, expected: Expected) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let locator = new_locator();
        let path = path_of(&locator).map_err(UploadError::Store)?;
        let mut hashers = expected.hashers();
        let mut size = 0u64;
        let mut written = Written::now();
        let mut piece = BytesMut::new();
        let mut upload: Option<Box<dyn MultipartUpload>> = None;
        let received: Result<(), UploadError> = async {
            while let Some(chunk) = body.next().await {
                let chunk = chunk.map_err(|e| UploadError::Body(e.into()))?;
                size += chunk.len() as u64;
                if size > size_max {
                    return Err(UploadError::TooLarge);
                }
                hashers.update(&chunk);
                piece.extend_from_slice(&chunk);
                if piece.len() >= PIECE_BYTES {
                    let parts = match &mut upload {
                        Some(parts) => parts,
                        none => none.insert(self.store.put_multipart(&path).await?),
                    };
                    written = Written::now();
                    parts.put_part(PutPayload::from(piece.split().freeze())).await?;
                }
            }
            Ok(())
        }
        .await;
        let checked = received.and_then(|()| expected.check(hashers).map_err(UploadError::Mismatch));
        match (&checked, upload) {
            (Ok(_), Some(mut parts)) => {
                if !piece.is_empty() {
                    written = Written::now();
                    parts.put_part(PutPayload::from(piece.freeze())).await?;
                }
                parts.complete().await?;
            }
            (Ok(_), None) => {
                written = Written::now();
                let path = self.file_of(&path);
                let done = spawn_blocking(move || write::write_new(&path, &piece)).await;
                done.unwrap_or_else(|panic| Err(io::Error::other(panic)))?;
            }
            (Err(_), Some(mut parts)) => {
                if let Err(cause) = parts.abort().await {
                    tracing::debug!(%cause, "an aborted upload is left to the sweeper");
                }
            }
            (Err(_), None) => {}
        }
        checked.map(|checksums| Stored { locator, size, checksums, written })
    }

    fn file_of(&self, path: &object_store::path::Path) -> PathBuf {
        self.folder.join(path.as_ref())
    }

    /// Reads a range that is not empty; `None` when the bytes are gone. `internal` if they end before the range does.
    pub async fn get(&self, locator: &str, range: Range<u64>) -> Result<Option<Content>> {
        let path = self.file_of(&path_of(locator)?);
        read::read(path, range).await.map_err(|cause| failed(&cause))
    }

    /// Removes bytes that no metadata names. If that fails, the sweeper removes them later.
    pub async fn delete(&self, locator: &str) {
        let Ok(path) = path_of(locator) else { return };
        match self.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(cause) => tracing::warn!(%cause, locator, "could not remove bytes; the sweeper will"),
        }
    }

    /// Removes what uploads left that ended in their middle, if it was last written before then; returns how many files.
    pub async fn remove_unfinished(&self, before: SystemTime) -> Result<u64> {
        let objects = self.folder.join(OBJECTS);
        let removed = spawn_blocking(move || staged::remove(&objects, before)).await;
        removed.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(|cause| {
            tracing::error!(%cause, "cannot remove what unfinished uploads left");
            ErrorCode::Internal.into()
        })
    }

    /// All stored bytes, in no order.
    pub fn all(&self) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(Some(&OBJECTS.into())).map_err(|cause| failed(&cause)).boxed()
    }
}
