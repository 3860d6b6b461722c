//! IndexTable: place `(pid, name)` → directory, and id → place.
//!
//! Invariants (`invariants` checks them):
//! - Every id has one cell.
//! - A place that any directory claims has exactly one *occupant*. The other claimants are *displaced*: found by id, not by
//!   path. When an occupant leaves, the displaced claimant with the highest id becomes the occupant.
//! - So once every place has one claimant, the table depends on the newest record of each id only, not on their order.
//! - A directory's child count is the number of occupied places under it.
//!
//! Measured (`tests/memory.rs`, names of 8.9 bytes on average): 59 to 66 bytes a directory, from 20,000 directories on.

use std::{
    collections::{BTreeSet, HashMap},
    hash::BuildHasher,
    sync::Arc,
};

use mantle_types::{DirectoryId, PartitionId, limits::NAME_BYTES_MAX, message::DirectoryRecord};

use super::{
    arena::{Address, Arena},
    before_images::{BeforeImages, TableScan},
    cell::{Cell, CellMut, cell_bytes},
    digest,
    hashing::{IdHasher, PlaceHasher, id_hash, place_hash},
    permissions::{PermissionIndex, Permissions},
    record::{Directory, Record, directory_of},
    seed::Seed,
    sharded_table::{ShardedTable, shard_of},
};

/// The hash of a place, and the cell that is most probably its occupant's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    hash: u64,
    at: Option<Address>,
}

pub(super) struct IndexTable {
    seed: Seed,
    id_seed: u64,
    arena: Arena,
    pub(super) places: ShardedTable,
    pub(super) ids: ShardedTable,
    pub(super) permissions: Permissions,
    /// Child counts of directories that are not in the table (yet, or any more).
    pub(super) absent_parents: HashMap<DirectoryId, u32, Seed>,
    /// The displaced claimants.
    pub(super) displaced: BTreeSet<(PartitionId, Box<str>, DirectoryId)>,
    /// Directories that left a place or changed their permission since the last [`take_modified`](Self::take_modified).
    modified: Vec<DirectoryId>,
    /// For a scan in progress.
    before_images: Option<BeforeImages>,
    /// The sum of the hashes of all records (see `digest.rs`), kept while they change.
    digest: u64,
}

impl IndexTable {
    pub(super) fn new(seed: Seed) -> Self {
        Self {
            id_seed: seed.hash_one("id"),
            arena: Arena::new(),
            places: ShardedTable::new(),
            ids: ShardedTable::new(),
            permissions: Permissions::new(seed.clone()),
            absent_parents: HashMap::with_hasher(seed.clone()),
            displaced: BTreeSet::new(),
            modified: Vec::new(),
            before_images: None,
            digest: 0,
            seed,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn get(&self, id: DirectoryId) -> Option<Directory> {
        self.find_id(id).map(|at| self.directory(self.cell(at)))
    }

    pub(super) fn lookup(&self, pid: PartitionId, name: &str) -> Option<Directory> {
        self.find_place(pid, name).map(|at| self.directory(self.cell(at)))
    }

    pub(super) fn hash(&self, pid: PartitionId, name: &str) -> u64 {
        place_hash(&self.seed, pid, name.as_bytes())
    }

    pub(super) fn prefetch_place(&self, hash: u64) {
        self.places.prefetch(hash);
    }

    /// The first address with the tag of the place: most probably its occupant. Does not read the cell yet, so that the
    /// probes of several walks overlap.
    pub(super) fn candidate(&self, hash: u64) -> Candidate {
        Candidate { hash, at: self.places.find(hash, |_| true) }
    }

    pub(super) fn lookup_candidate(&self, candidate: Candidate, pid: PartitionId, name: &str) -> Option<Directory> {
        let cell = self.cell(candidate.at?);
        if cell.is_at(pid, name) {
            return Some(self.directory(cell));
        }
        let at = self.places.find(candidate.hash, |at| self.cell(at).is_at(pid, name))?;
        Some(self.directory(self.cell(at)))
    }

    pub(super) fn prefetch_candidate(&self, candidate: Candidate) {
        if let Some(at) = candidate.at {
            self.cell(at).prefetch();
        }
    }

    /// Prefetches what changes of these records are going to read. Without this, each change would wait for memory several
    /// times.
    pub(super) fn prefetch_records<'r>(&self, records: impl Iterator<Item = &'r DirectoryRecord> + Clone) {
        let ids = records.clone().flat_map(|record| [record.id, directory_of(record.pid)]);
        let ids = ids.map(|id| id_hash(self.id_seed, id));
        ids.clone().for_each(|hash| self.ids.prefetch(hash));
        records.for_each(|record| self.places.prefetch(self.hash(record.pid, &record.name)));
        ids.filter_map(|hash| self.ids.find(hash, |_| true)).for_each(|at| self.cell(at).prefetch());
    }

    /// Stores a record in place of an older one of its id; the caller has compared the versions. The directory becomes the
    /// occupant of its place and displaces the previous one.
    pub(super) fn put(&mut self, record: &Record<'_>) {
        debug_assert!(record.name.len() <= NAME_BYTES_MAX);
        let permission = self.permissions.acquire(record.permission);
        if let Some(at) = self.find_id(record.id) {
            self.keep_before_image(record.id, Some(at));
            let cell = self.cell(at);
            if cell.is_at(record.pid, record.name) {
                let change = digest::record_hash(record).wrapping_sub(digest::record_hash(&self.record(at)));
                let (old, is_displaced) = (cell.permission(), cell.is_displaced());
                self.digest = self.digest.wrapping_add(change);
                if old != permission && !is_displaced {
                    self.modified.push(record.id);
                }
                self.permissions.release(old);
                let mut cell = self.cell_mut(at);
                cell.set_version(record.version);
                cell.set_permission(permission, is_displaced);
                if is_displaced {
                    self.displaced.remove(&(record.pid, record.name.into(), record.id));
                    self.attach(at);
                }
                return;
            }
            self.remove(record.id);
        }
        let at = self.insert_cell(record, permission);
        self.attach(at);
    }

    /// Stores a record as displaced: its place keeps its occupant. The id must not be in the table yet.
    pub(super) fn put_displaced(&mut self, record: &Record<'_>) {
        let permission = self.permissions.acquire(record.permission);
        let at = self.insert_cell(record, permission);
        self.mark_displaced(at, true);
        self.displaced.insert((record.pid, record.name.into(), record.id));
    }

    fn insert_cell(&mut self, record: &Record<'_>, permission: PermissionIndex) -> Address {
        self.keep_before_image(record.id, None);
        self.digest = self.digest.wrapping_add(digest::record_hash(record));
        let at = self.arena.allocate(cell_bytes(record.name));
        let children = self.absent_parents.remove(&record.id).unwrap_or(0);
        let mut cell = self.cell_mut(at);
        cell.write(record.id, record.pid, record.name);
        cell.set_version(record.version);
        cell.set_children(children);
        cell.set_permission(permission, false);
        let hasher = IdHasher { arena: &self.arena, seed: self.id_seed };
        self.ids.insert(id_hash(self.id_seed, record.id), at, &hasher);
        at
    }

    /// Removes a directory. It leaves its place only if it is the occupant.
    pub(super) fn remove(&mut self, id: DirectoryId) {
        let Some(at) = self.find_id(id) else { return };
        self.keep_before_image(id, Some(at));
        self.digest = self.digest.wrapping_sub(digest::record_hash(&self.record(at)));
        if !self.cell(at).is_displaced() {
            self.modified.push(id);
        }
        self.detach(at);
        let cell = self.cell(at);
        let (children, permission, bytes) = (cell.children(), cell.permission(), cell_bytes(cell.name()));
        if children > 0 {
            self.absent_parents.insert(id, children);
        }
        self.permissions.release(permission);
        let hasher = IdHasher { arena: &self.arena, seed: self.id_seed };
        self.ids.remove(id_hash(self.id_seed, id), at, &hasher);
        self.arena.release(at, bytes);
    }

    /// Takes the directories that left a place or changed their permission since the last call. Prefixes cached from them are
    /// invalid. A directory that took an empty place is not among them: it invalidates nothing.
    pub(super) fn take_modified(&mut self) -> Vec<DirectoryId> {
        std::mem::take(&mut self.modified)
    }

    /// All records in no particular order, each with whether it is displaced.
    pub(super) fn records(&self) -> impl Iterator<Item = (Record<'_>, bool)> {
        self.ids.iter().map(|at| (self.record(at), self.cell(at).is_displaced()))
    }

    /// Begins a scan that reads the table as it is now, shard by shard, while the table changes. It ends an earlier scan.
    pub(super) fn begin_scan(&mut self) -> Arc<TableScan> {
        let (before, scan) = BeforeImages::begin();
        self.before_images = Some(before);
        scan
    }

    pub(super) fn is_scanned_by(&self, scan: &Arc<TableScan>) -> bool {
        self.before_images.as_ref().is_some_and(|before| before.belong_to(scan))
    }

    /// The records of a shard of ids, each with whether it is displaced. With a scan: as they were when it began.
    pub(super) fn records_of_shard(
        &self,
        shard: usize,
        scan: Option<&Arc<TableScan>>,
    ) -> impl Iterator<Item = (Record<'_>, bool)> {
        let before = self.before_images.as_ref().filter(|_| scan.is_some_and(|scan| self.is_scanned_by(scan)));
        let is_unchanged = move |id| before.is_none_or(|before| !before.contains(shard, id));
        let here = self.ids.shard(shard).filter(move |at| is_unchanged(self.cell(*at).id()));
        let changed = before.into_iter().flat_map(move |before| before.in_shard(shard));
        here.map(|at| (self.record(at), self.cell(at).is_displaced()))
            .chain(changed.map(|(record, is_displaced)| (record.into(), *is_displaced)))
    }

    /// Keeps a before-image if the scan needs one. Call it before a directory at `at` changes, is added or is removed.
    fn keep_before_image(&mut self, id: DirectoryId, at: Option<Address>) {
        let Some(before) = &self.before_images else { return };
        if before.is_scan_over() {
            self.before_images = None;
            return;
        }
        let shard = shard_of(id_hash(self.id_seed, id));
        if before.must_keep(shard, id) {
            let image = at.map(|at| (self.record(at).to_message(), self.cell(at).is_displaced()));
            self.before_images.as_mut().expect("looked at above").insert(shard, id, image);
        }
    }

    pub(super) fn ids_of_shard(&self, shard: usize) -> impl Iterator<Item = DirectoryId> {
        self.ids.shard(shard).map(|at| self.cell(at).id())
    }

    pub(super) fn record_of(&self, id: DirectoryId) -> Option<Record<'_>> {
        self.find_id(id).map(|at| self.record(at))
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let displaced: usize = self.displaced.iter().map(|(_, name, _)| name.len() + 48).sum();
        self.arena.mapped_bytes()
            + self.places.heap_bytes()
            + self.ids.heap_bytes()
            + self.permissions.heap_bytes()
            + self.absent_parents.capacity() * 24
            + self.before_images.as_ref().map_or(0, BeforeImages::heap_bytes)
            + displaced
    }

    pub(super) fn mapped_bytes(&self) -> usize {
        self.arena.mapped_bytes()
    }

    fn cell(&self, at: Address) -> Cell<'_> {
        Cell(self.arena.bytes(at))
    }

    fn cell_mut(&mut self, at: Address) -> CellMut<'_> {
        CellMut(self.arena.bytes_mut(at))
    }

    fn directory(&self, cell: Cell<'_>) -> Directory {
        Directory {
            id: cell.id(),
            pid: cell.pid(),
            version: cell.version(),
            permission: self.permissions.get(cell.permission()),
            children: cell.children(),
        }
    }

    fn record(&self, at: Address) -> Record<'_> {
        let cell = self.cell(at);
        let permission = self.permissions.get(cell.permission());
        Record { pid: cell.pid(), name: cell.name(), id: cell.id(), version: cell.version(), permission }
    }

    fn find_id(&self, id: DirectoryId) -> Option<Address> {
        self.ids.find(id_hash(self.id_seed, id), |at| self.cell(at).id() == id)
    }

    fn find_place(&self, pid: PartitionId, name: &str) -> Option<Address> {
        self.places.find(self.hash(pid, name), |at| self.cell(at).is_at(pid, name))
    }

    /// Makes a directory the occupant of its place, and displaces the previous one.
    fn attach(&mut self, at: Address) {
        let cell = self.cell(at);
        let (pid, hash) = (cell.pid(), place_hash(&self.seed, cell.pid(), cell.name_bytes()));
        match self.find_place(pid, cell.name()) {
            Some(occupant) => {
                let key = (pid, Box::from(cell.name()), self.cell(occupant).id());
                self.places.replace(hash, occupant, at);
                self.modified.push(key.2);
                self.displaced.insert(key);
                self.mark_displaced(occupant, true);
            }
            None => {
                self.places.insert(hash, at, &PlaceHasher { arena: &self.arena, seed: &self.seed });
                self.count_child(pid, 1);
            }
        }
        self.mark_displaced(at, false);
    }

    /// Takes a directory from its place. The next claimant becomes the occupant.
    fn detach(&mut self, at: Address) {
        let cell = self.cell(at);
        let (pid, id, hash) = (cell.pid(), cell.id(), place_hash(&self.seed, cell.pid(), cell.name_bytes()));
        if cell.is_displaced() {
            self.displaced.remove(&(pid, cell.name().into(), id));
            return;
        }
        if let Some(claimant) = self.claimant(cell) {
            let next = self.find_id(claimant.2).expect("a displaced directory is known by id");
            self.displaced.remove(&claimant);
            self.places.replace(hash, at, next);
            self.mark_displaced(next, false);
            return;
        }
        self.places.remove(hash, at, &PlaceHasher { arena: &self.arena, seed: &self.seed });
        self.count_child(pid, -1);
    }

    fn claimant(&self, cell: Cell<'_>) -> Option<(PartitionId, Box<str>, DirectoryId)> {
        if self.displaced.is_empty() {
            return None;
        }
        let key = |id| (cell.pid(), Box::from(cell.name()), id);
        self.displaced.range(key(DirectoryId(0))..=key(DirectoryId(u64::MAX))).next_back().cloned()
    }

    fn mark_displaced(&mut self, at: Address, is_displaced: bool) {
        self.keep_before_image(self.cell(at).id(), Some(at));
        let permission = self.cell(at).permission();
        self.cell_mut(at).set_permission(permission, is_displaced);
    }

    fn count_child(&mut self, pid: PartitionId, change: i32) {
        let parent = directory_of(pid);
        if let Some(at) = self.find_id(parent) {
            let children = self.cell(at).children();
            self.cell_mut(at).set_children(adjusted(children, change));
            return;
        }
        let count = adjusted(self.absent_parents.get(&parent).copied().unwrap_or(0), change);
        if count == 0 {
            self.absent_parents.remove(&parent);
        } else {
            self.absent_parents.insert(parent, count);
        }
    }
}

fn adjusted(count: u32, change: i32) -> u32 {
    count.checked_add_signed(change).expect("a child is counted once when it comes and once when it goes")
}
