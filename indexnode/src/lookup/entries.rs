//! TopDirPathCache: a hash table from the prefix of a path to where it leads.
//!
//! Cut into shards, each under a lock of its own that is held for one probe. The key is the prefix's components, each
//! after its length, so that no component, however odd, makes two paths one.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use mantle_types::{
    DirectoryId, Permission,
    limits::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, PATH_DEPTH_MAX},
};
use parking_lot::RwLock;

const SHARDS: usize = 64;
/// A prefix longer than any key that is written down is not cached.
const KEY_MAX: usize = NAMESPACE_BYTES_MAX + KEY_BYTES_MAX + PATH_DEPTH_MAX + 1;

/// The prefix of a path, written into a buffer that is used again.
#[derive(Default)]
pub(super) struct Key {
    bytes: Vec<u8>,
    hash: u64,
}

impl Key {
    /// Writes another prefix. False when a component, or all of them together, is longer than what exists.
    pub(super) fn write(&mut self, entries: &Entries, namespace: &str, components: &[&str]) -> bool {
        self.bytes.clear();
        for component in std::iter::once(&namespace).chain(components) {
            let Ok(length) = u8::try_from(component.len()) else { return false };
            self.bytes.push(length);
            self.bytes.extend_from_slice(component.as_bytes());
        }
        self.hash = entries.seed.hash_one(&*self.bytes);
        self.bytes.len() <= KEY_MAX
    }
}

/// Where a prefix leads.
#[derive(Debug)]
pub(super) struct Entry {
    pub hash: u64,
    key: Box<[u8]>,
    /// The directories on the way, the namespace's root first, the prefix's own last.
    pub ids: Box<[DirectoryId]>,
    /// The distinct permissions on the way.
    pub permissions: Box<[Permission]>,
}

impl Entry {
    pub(super) fn new(key: &Key, ids: Vec<DirectoryId>, permissions: Vec<Permission>) -> Self {
        Self { hash: key.hash, key: key.bytes.as_slice().into(), ids: ids.into(), permissions: permissions.into() }
    }

    /// The prefix's directory.
    pub(super) fn id(&self) -> DirectoryId {
        self.ids[self.ids.len() - 1]
    }

    /// Bytes it takes in its shard, about.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() * 8 / 7 + 1 + self.key.len() + size_of_val(&*self.ids) + size_of_val(&*self.permissions)
    }
}

pub(super) struct Entries {
    seed: RandomState,
    shards: Box<[RwLock<HashTable<Entry>>]>,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self { seed: RandomState::new(), shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<Entry>> {
        // Bits that hashbrown does not use: it takes the low ones for the bucket and the highest seven for the tag.
        &self.shards[(hash >> 44) as usize % SHARDS]
    }

    /// What `read` makes of the entry of a key. The shard is locked meanwhile.
    pub(super) fn find<T>(&self, key: &Key, read: impl FnOnce(&Entry) -> T) -> Option<T> {
        let shard = self.shard(key.hash).read();
        shard.find(key.hash, |entry| *entry.key == *key.bytes).map(read)
    }

    /// Adds an entry in place of the one of its key.
    pub(super) fn insert(&self, entry: Entry) {
        let mut shard = self.shard(entry.hash).write();
        match shard.find_mut(entry.hash, |other| other.key == entry.key) {
            Some(other) => *other = entry,
            None => {
                shard.insert_unique(entry.hash, entry, |entry| entry.hash);
            }
        }
    }

    /// Removes the entry with this hash that leads to a directory; the bytes it took.
    pub(super) fn remove(&self, hash: u64, id: DirectoryId) -> usize {
        let mut shard = self.shard(hash).write();
        shard.find_entry(hash, |entry| entry.id() == id).map_or(0, |found| found.remove().0.bytes())
    }
}
