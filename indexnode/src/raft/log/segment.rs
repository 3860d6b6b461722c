//! Segment files: consecutive entries, the file named after its first index.
//!
//! Invariant: segments have no gaps between them; only the last one grows, and only its end can be incomplete.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::record::{self, HEADER_BYTES};
use crate::raft::{durable, types::Entry};

const SUFFIX: &str = "seg";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub offset: u64,
    /// Of header and payload.
    pub length: u32,
}

pub struct Segment {
    pub first: u64,
    pub locations: Vec<Location>,
    /// Readers share it.
    pub file: Arc<File>,
    path: PathBuf,
}

impl Segment {
    /// Creates an empty segment; its name is durable when this returns.
    pub fn create(folder: &Path, first: u64) -> io::Result<Self> {
        let path = folder.join(format!("{first:020}.{SUFFIX}"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        durable::sync_parent(&path)?;
        Ok(Self { first, locations: Vec::new(), file: Arc::new(file), path })
    }

    /// Opens every segment of a directory, in order, and passes each entry to `visit`. An incomplete end of the last segment is
    /// truncated; any other damage, or a gap, is an error.
    pub fn open_all(folder: &Path, mut visit: impl FnMut(&Entry)) -> io::Result<Vec<Self>> {
        let mut paths = Vec::new();
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            if path.extension().is_some_and(|e| e == SUFFIX) {
                let stem = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u64>().ok());
                let first = stem.ok_or_else(|| damaged(&path, "its name is not an index"))?;
                paths.push((first, path));
            }
        }
        paths.sort();
        let count = paths.len();
        let mut segments: Vec<Self> = Vec::with_capacity(count);
        for (i, (first, path)) in paths.into_iter().enumerate() {
            if segments.last().is_some_and(|previous| previous.end() != first) {
                return Err(damaged(&path, "entries are missing before it"));
            }
            segments.push(Self::open(first, path, i + 1 == count, &mut visit)?);
        }
        Ok(segments)
    }

    fn open(first: u64, path: PathBuf, is_last: bool, visit: &mut impl FnMut(&Entry)) -> io::Result<Self> {
        let bytes = fs::read(&path)?;
        let mut locations = Vec::new();
        let mut offset = 0;
        while offset < bytes.len() {
            let Some(payload) = record::parse(&bytes[offset..]) else {
                if !is_last || record::any_within(&bytes[offset + 1..]) {
                    let why = format!("the record at byte {offset} is damaged and others follow it");
                    return Err(damaged(&path, &why));
                }
                tracing::warn!(segment = %path.display(), offset, "cutting off an entry that a crash left unfinished");
                break;
            };
            let entry: Entry = postcard::from_bytes(payload)
                .map_err(|e| damaged(&path, &format!("the record at byte {offset} is not an entry: {e}")))?;
            let expected = first + locations.len() as u64;
            if entry.log_id.index != expected {
                let found = entry.log_id.index;
                return Err(damaged(&path, &format!("entry {found} stands where {expected} belongs")));
            }
            visit(&entry);
            let length = HEADER_BYTES + payload.len();
            locations.push(Location { offset: offset as u64, length: length as u32 });
            offset += length;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        if offset < bytes.len() {
            file.set_len(offset as u64)?;
            file.sync_all()?;
        }
        Ok(Self { first, locations, file: Arc::new(file), path })
    }

    /// One past the last index.
    pub fn end(&self) -> u64 {
        self.first + self.locations.len() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.locations.last().map_or(0, |l| l.offset + u64::from(l.length))
    }

    /// Removes the entries from `end` on, durably.
    pub fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.locations.truncate((end - self.first) as usize);
        self.file.set_len(self.bytes())?;
        self.file.sync_all()
    }

    /// Deletes the file. Readers that have it open can finish.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        durable::sync_parent(&self.path)
    }
}

pub fn read_entry(file: &File, location: Location) -> io::Result<Entry> {
    let mut bytes = vec![0; location.length as usize];
    file.read_exact_at(&mut bytes, location.offset)?;
    let bad =
        || io::Error::new(io::ErrorKind::InvalidData, "a record of the Raft log was damaged after it was written");
    let payload = record::parse(&bytes).ok_or_else(bad)?;
    postcard::from_bytes(payload).map_err(|_| bad())
}

fn damaged(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("Raft log segment {}: {why}", path.display()))
}
