//! Before images: what directories were when somebody began to read a table, for those that change before the reader comes
//! to them. So a snapshot is of one moment though it is taken shard by shard, and nobody who changes the table waits for it.
//!
//! Invariant: each id of a shard that was not read yet, and that was put, changed or removed since the reading began, has an
//! image: `None` when it was not there.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use mantle_types::{DirectoryId, PartitionId, Permission};

use super::table::Record;

/// A reading under way: held by the reader alone, so that it ends with it.
#[derive(Debug)]
pub(super) struct Reading {
    shards_read: AtomicUsize,
}

impl Reading {
    /// Shards below this have been read. Called by the reader, who keeps the table from changing meanwhile.
    pub(super) fn set_shards_read(&self, shards: usize) {
        self.shards_read.store(shards, Ordering::Relaxed);
    }
}

/// A directory as it was.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pid: PartitionId,
    name: Box<str>,
    id: DirectoryId,
    version: u64,
    permission: Permission,
    pub is_displaced: bool,
}

impl Image {
    pub(super) fn new(record: &Record<'_>, is_displaced: bool) -> Self {
        let Record { pid, name, id, version, permission } = *record;
        Self { pid, name: name.into(), id, version, permission, is_displaced }
    }

    pub(super) fn record(&self) -> Record<'_> {
        Record { pid: self.pid, name: &self.name, id: self.id, version: self.version, permission: self.permission }
    }
}

/// The images of one reading.
pub(super) struct BeforeImages {
    reading: Weak<Reading>,
    /// By shard and id.
    images: BTreeMap<(usize, DirectoryId), Option<Image>>,
}

impl BeforeImages {
    /// Of a reading that begins now.
    pub(super) fn begin() -> (Self, Arc<Reading>) {
        let reading = Arc::new(Reading { shards_read: AtomicUsize::new(0) });
        (Self { reading: Arc::downgrade(&reading), images: BTreeMap::new() }, reading)
    }

    /// Are these the images of that reading?
    pub(super) fn are_of(&self, reading: &Arc<Reading>) -> bool {
        self.reading.as_ptr() == Arc::as_ptr(reading)
    }

    /// Has the reader gone?
    pub(super) fn is_over(&self) -> bool {
        self.reading.strong_count() == 0
    }

    /// Must a directory be kept that is about to change for the first time?
    pub(super) fn lack(&self, shard: usize, id: DirectoryId) -> bool {
        let shards_read = self.reading.upgrade().map_or(usize::MAX, |r| r.shards_read.load(Ordering::Relaxed));
        shard >= shards_read && !self.images.contains_key(&(shard, id))
    }

    pub(super) fn keep(&mut self, shard: usize, id: DirectoryId, image: Option<Image>) {
        self.images.insert((shard, id), image);
    }

    /// Has the directory changed since?
    pub(super) fn has(&self, shard: usize, id: DirectoryId) -> bool {
        self.images.contains_key(&(shard, id))
    }

    /// The directories of a shard that have changed, as they were.
    pub(super) fn of_shard(&self, shard: usize) -> impl Iterator<Item = &Image> {
        let ids = (shard, DirectoryId(0))..=(shard, DirectoryId(u64::MAX));
        self.images.range(ids).filter_map(|(_, image)| image.as_ref())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let names: usize = self.images.values().flatten().map(|image| image.name.len()).sum();
        self.images.len() * size_of::<((usize, DirectoryId), Option<Image>)>() + names
    }
}
