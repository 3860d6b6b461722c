//! Snapshots: one file with the state up to some log entry.
//!
//! Invariant: the file named `snapshot` is always complete: a new one is written beside it, flushed and renamed over it. The
//! same bytes go over the network. Layout: length and CRC-32 of the head (4 bytes each), the head, then the index's own
//! (checksummed) format. Older releases wrote openraft's metadata alone as the head.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{durable, types::SnapshotMeta};
use crate::index::Index;

const FILE: &str = "snapshot";
const META_BYTES_MAX: u32 = 1 << 20;

/// What the file says before the index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// The last entry and the membership.
    pub meta: SnapshotMeta,
    /// Hash of the entries up to that one; 0 if it is unknown (see `fingerprint.rs`).
    pub history: u64,
}

/// An open snapshot.
#[derive(Debug)]
pub struct SnapshotFile {
    /// The file, positioned at its beginning.
    pub file: File,
    /// Length, in bytes.
    pub bytes: u64,
    path: PathBuf,
    /// True if it came from the leader and is not the current snapshot yet.
    is_received: bool,
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if self.is_received
            && let Err(e) = fs::remove_file(&self.path)
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), error = %e, "cannot remove a received snapshot");
        }
    }
}

/// The directory of a replica's snapshots.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    folder: PathBuf,
}

impl SnapshotStore {
    /// Opens the directory and removes files that a crash left unfinished.
    pub fn open(folder: &Path) -> io::Result<Self> {
        durable::create_dir(folder)?;
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            if path.extension().is_some_and(|e| e == "part") {
                fs::remove_file(&path)?;
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// The current snapshot, if there is one.
    pub fn current(&self) -> io::Result<Option<(SnapshotMeta, SnapshotFile)>> {
        let path = self.folder.join(FILE);
        path.exists().then(|| open(path, false)).transpose()
    }

    /// Begins a new file with its head; the output of [`SnapshotWriter`](crate::index::SnapshotWriter) follows.
    pub fn begin(&self, head: &SnapshotHead) -> io::Result<UnfinishedSnapshot> {
        let path = self.unfinished_path("build");
        let mut file = File::create(&path)?;
        let encoded = postcard::to_stdvec(head).map_err(io::Error::other)?;
        file.write_all(&(encoded.len() as u32).to_le_bytes())?;
        file.write_all(&crc32fast::hash(&encoded).to_le_bytes())?;
        file.write_all(&encoded)?;
        Ok(UnfinishedSnapshot { path, file })
    }

    /// Makes an unfinished snapshot the current one, durably.
    pub fn finish(&self, unfinished: UnfinishedSnapshot) -> io::Result<()> {
        self.promote(&unfinished.path)
    }

    /// Creates a file for a snapshot that the leader sends.
    pub fn receive(&self) -> io::Result<(File, PathBuf)> {
        let path = self.unfinished_path("receive");
        Ok((File::create(&path)?, path))
    }

    /// Opens a received file.
    pub fn received(&self, path: PathBuf) -> io::Result<(SnapshotMeta, SnapshotFile)> {
        open(path, true)
    }

    /// Checks that the file is complete, without building its index.
    pub fn check(&self, snapshot: &SnapshotFile) -> io::Result<()> {
        let mut input = BufReader::with_capacity(1 << 20, &snapshot.file);
        read_head(&mut input)?;
        Index::check_snapshot(&mut input)?;
        (&snapshot.file).rewind()
    }

    /// Reads head and index of a snapshot, and makes the file the current one.
    pub fn install(&self, snapshot: SnapshotFile) -> io::Result<(SnapshotHead, Index)> {
        let mut input = BufReader::with_capacity(1 << 20, &snapshot.file);
        let head = read_head(&mut input)?;
        let index = Index::read_snapshot(&mut input)?;
        if snapshot.is_received {
            self.promote(&snapshot.path)?;
        } else if snapshot.path != self.folder.join(FILE) {
            let path = self.unfinished_path("copy");
            let mut copy = UnfinishedSnapshot { file: File::create(&path)?, path };
            io::copy(&mut File::open(&snapshot.path)?, &mut copy.file)?;
            self.finish(copy)?;
        }
        Ok((head, index))
    }

    fn promote(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()?;
        let current = self.folder.join(FILE);
        fs::rename(path, &current)?;
        durable::sync_parent(&current)
    }

    fn unfinished_path(&self, purpose: &str) -> PathBuf {
        self.folder.join(format!("{purpose}-{:016x}.part", rand::random::<u64>()))
    }
}

/// A snapshot file being built; removed when dropped unfinished.
#[derive(Debug)]
pub struct UnfinishedSnapshot {
    path: PathBuf,
    file: File,
}

impl Write for UnfinishedSnapshot {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for UnfinishedSnapshot {
    fn drop(&mut self) {
        // After `finish` the file has another name, and this finds nothing.
        let _ = fs::remove_file(&self.path);
    }
}

fn open(path: PathBuf, is_received: bool) -> io::Result<(SnapshotMeta, SnapshotFile)> {
    let (file, mut input) = (File::open(&path)?, BufReader::new(File::open(&path)?));
    // Made before the metadata is read: a received file that is damaged is removed.
    let snapshot = SnapshotFile { bytes: file.metadata()?.len(), file, path, is_received };
    Ok((read_head(&mut input)?.meta, snapshot))
}

fn read_head(input: &mut impl Read) -> io::Result<SnapshotHead> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the snapshot's head is damaged");
    let mut number = [0; 4];
    input.read_exact(&mut number)?;
    let length = u32::from_le_bytes(number);
    input.read_exact(&mut number)?;
    if length > META_BYTES_MAX {
        return Err(damaged());
    }
    let mut encoded = vec![0; length as usize];
    input.read_exact(&mut encoded)?;
    if crc32fast::hash(&encoded) != u32::from_le_bytes(number) {
        return Err(damaged());
    }
    match postcard::take_from_bytes::<SnapshotMeta>(&encoded).map_err(|_| damaged())? {
        (meta, []) => Ok(SnapshotHead { meta, history: 0 }),
        (meta, rest) => Ok(SnapshotHead { meta, history: postcard::from_bytes(rest).map_err(|_| damaged())? }),
    }
}
