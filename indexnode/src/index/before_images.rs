//! Before-images: copies of directories as they were when a scan of the table began, kept for those that change before the
//! scan reaches them. So a snapshot shows one moment although it is written shard by shard, and no change waits for it.
//!
//! Invariant: an id that was put, changed or removed since the scan began, in a shard that is not scanned yet, has an image.
//! The image is `None` if the directory did not exist.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use mantle_types::{DirectoryId, message::DirectoryRecord};

/// A scan in progress. Only the reader holds it, so dropping it ends the scan.
#[derive(Debug)]
pub(super) struct TableScan {
    /// Shards below this number are scanned. The reader sets it, and keeps the table from changing meanwhile.
    pub shards_scanned: AtomicUsize,
}

/// A directory as it was, and whether it was displaced.
type Image = (DirectoryRecord, bool);

pub(super) struct BeforeImages {
    scan: Weak<TableScan>,
    /// Keyed by shard and id.
    images: BTreeMap<(usize, DirectoryId), Option<Image>>,
}

impl BeforeImages {
    pub(super) fn begin() -> (Self, Arc<TableScan>) {
        let scan = Arc::new(TableScan { shards_scanned: AtomicUsize::new(0) });
        (Self { scan: Arc::downgrade(&scan), images: BTreeMap::new() }, scan)
    }

    pub(super) fn belong_to(&self, scan: &Arc<TableScan>) -> bool {
        self.scan.as_ptr() == Arc::as_ptr(scan)
    }

    pub(super) fn is_scan_over(&self) -> bool {
        self.scan.strong_count() == 0
    }

    /// Tells whether a directory that is about to change needs an image: its shard is not scanned, and it has none yet.
    pub(super) fn must_keep(&self, shard: usize, id: DirectoryId) -> bool {
        let shards_scanned = self.scan.upgrade().map_or(usize::MAX, |r| r.shards_scanned.load(Ordering::Relaxed));
        shard >= shards_scanned && !self.images.contains_key(&(shard, id))
    }

    pub(super) fn insert(&mut self, shard: usize, id: DirectoryId, image: Option<Image>) {
        self.images.insert((shard, id), image);
    }

    /// Tells whether the directory has changed since the scan began.
    pub(super) fn contains(&self, shard: usize, id: DirectoryId) -> bool {
        self.images.contains_key(&(shard, id))
    }

    /// The changed directories of a shard, as they were.
    pub(super) fn in_shard(&self, shard: usize) -> impl Iterator<Item = &Image> {
        let ids = (shard, DirectoryId(0))..=(shard, DirectoryId(u64::MAX));
        self.images.range(ids).filter_map(|(_, image)| image.as_ref())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let names: usize = self.images.values().flatten().map(|(record, _)| record.name.len()).sum();
        self.images.len() * size_of::<((usize, DirectoryId), Option<Image>)>() + names
    }
}
