//! Bytes as files in a local folder, one for each object. The crate `object_store` writes large files, and lists and removes
//! all files. To read a small file it would use four blocking threads in turn, so `read` does that instead.

mod read;
mod staged;
mod write;

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use mantle_types::{ErrorCode, Result};
use object_store::{
    MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, local::LocalFileSystem, path::Path as Key,
};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::{Content, OldBytes, Stored, UploadError, Written, body::Body, failure::failed, folder::create_folder};

/// Larger objects are written in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// First component of every locator.
const OBJECTS: &str = "objects";

/// A folder of files. A clone is the same folder.
#[derive(Clone)]
pub(super) struct FileStore {
    folder: PathBuf,
    store: Arc<dyn ObjectStore>,
}

/// The subdirectory is random, and names in it ascend. PostgreSQL has an index of locators: a random name would change
/// an index page that no other write has changed since the last checkpoint, and the whole page would go into the WAL.
fn new_locator() -> String {
    let id = Uuid::now_v7().simple().to_string();
    format!("{OBJECTS}/{}/{id}", &id[id.len() - 2..])
}

impl FileStore {
    /// Opens a directory, or creates it. Writes are flushed to the disk before they return.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        create_folder(folder)?;
        let store = Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true));
        Ok(Self { folder: folder.to_owned(), store })
    }

    /// The file of a locator; `None` if a locator is not of this kind.
    pub(super) fn key_of(locator: &str) -> Option<Key> {
        let is_file = locator.strip_prefix(OBJECTS).is_some_and(|rest| rest.starts_with('/'));
        if is_file { Key::parse(locator).ok() } else { None }
    }

    fn path_of(&self, key: &Key) -> PathBuf {
        self.folder.join(key.as_ref())
    }

    /// Stores a client's bytes. On an error none remain.
    pub(super) async fn put<S, E>(&self, body: &mut Body<S>) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let locator = new_locator();
        let key = Key::from(locator.as_str());
        let first = body.piece(PIECE_BYTES).await?;
        if first.len() == PIECE_BYTES {
            let mut parts = self.store.put_multipart(&key).await?;
            return match put_parts(&mut *parts, first, body).await {
                Ok((checksums, written)) => Ok(Stored::whole(locator, body.size(), checksums, written)),
                Err(error) => {
                    if let Err(cause) = parts.abort().await {
                        tracing::debug!(%cause, "an aborted upload is left to the sweeper");
                    }
                    Err(error)
                }
            };
        }
        let checksums = body.check()?;
        let (written, path) = (Written::now(), self.path_of(&key));
        let done = spawn_blocking(move || write::write_new(&path, &first)).await;
        done.unwrap_or_else(|panic| Err(io::Error::other(panic)))?;
        Ok(Stored::whole(locator, body.size(), checksums, written))
    }

    /// Reads a range that is not empty; `None` when the bytes are gone. `internal` if they end before the range does.
    pub(super) async fn get(&self, key: &Key, range: Range<u64>) -> Result<Option<Content>> {
        read::read(self.path_of(key), range).await.map_err(|cause| failed(&cause))
    }

    pub(super) async fn delete(&self, key: &Key) -> object_store::Result<()> {
        self.store.delete(key).await
    }

    /// Removes what interrupted uploads left, if it was last written before this time; returns how many files.
    pub(super) async fn remove_unfinished(&self, before: SystemTime) -> Result<u64> {
        let objects = self.folder.join(OBJECTS);
        let removed = spawn_blocking(move || staged::remove(&objects, before)).await;
        removed.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(|cause| {
            tracing::error!(%cause, "cannot remove what unfinished uploads left");
            ErrorCode::Internal.into()
        })
    }

    /// All stored bytes, in no order.
    pub(super) fn all(&self) -> BoxStream<'static, Result<OldBytes>> {
        let all = self.store.list(Some(&OBJECTS.into())).map_err(|cause| failed(&cause));
        all.map_ok(|meta| OldBytes { locator: meta.location.to_string(), written: meta.last_modified }).boxed()
    }
}

/// Writes the pieces of a body; on an error the upload is still open.
async fn put_parts<S, E>(
    parts: &mut dyn MultipartUpload,
    first: Bytes,
    body: &mut Body<S>,
) -> Result<(super::Checksums, Written), UploadError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut piece, mut written) = (first, Written::now());
    while !piece.is_empty() {
        written = Written::now();
        parts.put_part(PutPayload::from(piece)).await?;
        piece = body.piece(PIECE_BYTES).await?;
    }
    let checksums = body.check()?;
    parts.complete().await?;
    Ok((checksums, written))
}
