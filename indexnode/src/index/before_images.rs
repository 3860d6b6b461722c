//! Before images: what directories were when somebody began to read a table, for those that change before the reader comes
//! to them. So a snapshot is of one moment though it is taken shard by shard, and nobody who changes the table waits for it.
//!
//! Invariant: each id of a shard that was not read yet, and that was put, changed or removed since the scan began, has an
//! image: `None` when it was not there.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use mantle_types::DirectoryId;

use super::record::OwnedRecord;

/// A scan under way: held by the reader alone, so that it ends with it.
#[derive(Debug)]
pub(super) struct TableScan {
    shards_scanned: AtomicUsize,
}

impl TableScan {
    /// Shards below this have been read. Called by the reader, who keeps the table from changing meanwhile.
    pub(super) fn set_shards_scanned(&self, shards: usize) {
        self.shards_scanned.store(shards, Ordering::Relaxed);
    }
}

/// The images of one scan.
pub(super) struct BeforeImages {
    scan: Weak<TableScan>,
    /// By shard and id.
    images: BTreeMap<(usize, DirectoryId), Option<OwnedRecord>>,
}

impl BeforeImages {
    /// Of a scan that begins now.
    pub(super) fn begin() -> (Self, Arc<TableScan>) {
        let scan = Arc::new(TableScan { shards_scanned: AtomicUsize::new(0) });
        (Self { scan: Arc::downgrade(&scan), images: BTreeMap::new() }, scan)
    }

    /// Are these the images of that scan?
    pub(super) fn belong_to(&self, scan: &Arc<TableScan>) -> bool {
        self.scan.as_ptr() == Arc::as_ptr(scan)
    }

    /// Has the reader gone?
    pub(super) fn is_scan_over(&self) -> bool {
        self.scan.strong_count() == 0
    }

    /// Must a directory be kept that is about to change for the first time?
    pub(super) fn must_keep(&self, shard: usize, id: DirectoryId) -> bool {
        let shards_scanned = self.scan.upgrade().map_or(usize::MAX, |r| r.shards_scanned.load(Ordering::Relaxed));
        shard >= shards_scanned && !self.images.contains_key(&(shard, id))
    }

    pub(super) fn insert(&mut self, shard: usize, id: DirectoryId, image: Option<OwnedRecord>) {
        self.images.insert((shard, id), image);
    }

    /// Has the directory changed since?
    pub(super) fn contains(&self, shard: usize, id: DirectoryId) -> bool {
        self.images.contains_key(&(shard, id))
    }

    /// The directories of a shard that have changed, as they were.
    pub(super) fn in_shard(&self, shard: usize) -> impl Iterator<Item = &OwnedRecord> {
        let ids = (shard, DirectoryId(0))..=(shard, DirectoryId(u64::MAX));
        self.images.range(ids).filter_map(|(_, image)| image.as_ref())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let names: usize = self.images.values().flatten().map(|image| image.name_bytes()).sum();
        self.images.len() * size_of::<((usize, DirectoryId), Option<OwnedRecord>)>() + names
    }
}
