//! TopDirPathCache: a hash table from the prefix of a path to where it leads.
//!
//! Cut into shards, each under a lock of its own that is held for one probe.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use mantle_types::{
    DirectoryId, Permission,
    limits::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX},
};
use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::index::Path;

const SHARDS: usize = 64;

/// The distinct permissions on a way: one or two, mostly.
pub(super) type Permissions = SmallVec<[Permission; 2]>;

/// A namespace's name and the prefix of a path in it.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    hash: u64,
    namespace: &'a str,
    pub prefix: Path<'a>,
}

/// Where a prefix leads.
#[derive(Debug)]
pub(super) struct Entry {
    pub hash: u64,
    /// The namespace's name, and behind it the prefix.
    key: Box<str>,
    namespace_bytes: u32,
    /// The directories on the way, the namespace's root first, the prefix's own last.
    pub ids: Box<[DirectoryId]>,
    pub permissions: Permissions,
}

impl Entry {
    pub(super) fn new(key: &Key<'_>, ids: Vec<DirectoryId>, permissions: Permissions) -> Self {
        Self {
            hash: key.hash,
            key: [key.namespace, key.prefix.0].concat().into(),
            namespace_bytes: key.namespace.len() as u32,
            ids: ids.into(),
            permissions,
        }
    }

    /// Two keys are the same by their lengths and bytes: no name, however odd, makes two paths one.
    fn is_of(&self, key: &Key<'_>) -> bool {
        self.hash == key.hash
            && self.namespace_bytes as usize == key.namespace.len()
            && self.key.len() == key.namespace.len() + key.prefix.0.len()
            && self.key.starts_with(key.namespace)
            && self.key.ends_with(key.prefix.0)
    }

    /// The prefix's directory.
    pub(super) fn id(&self) -> DirectoryId {
        self.ids[self.ids.len() - 1]
    }

    /// Bytes it takes in its shard, about.
    pub(super) fn bytes(&self) -> usize {
        let permissions = if self.permissions.spilled() { size_of_val(&*self.permissions) } else { 0 };
        size_of::<Self>() * 8 / 7 + 1 + self.key.len() + size_of_val(&*self.ids) + permissions
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

    /// The key of a prefix; `None` when it is longer than what exists.
    pub(super) fn key<'a>(&self, namespace: &'a str, prefix: Path<'a>) -> Option<Key<'a>> {
        let is_usual = namespace.len() <= NAMESPACE_BYTES_MAX && prefix.0.len() <= KEY_BYTES_MAX;
        is_usual.then(|| Key { hash: self.seed.hash_one((namespace, prefix.0)), namespace, prefix })
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<Entry>> {
        // Bits that hashbrown does not use: it takes the low ones for the bucket and the highest seven for the tag.
        &self.shards[(hash >> 44) as usize % SHARDS]
    }

    /// What `read` makes of the entry of a key. The shard is locked meanwhile.
    pub(super) fn find<T>(&self, key: &Key<'_>, read: impl FnOnce(&Entry) -> T) -> Option<T> {
        let shard = self.shard(key.hash).read();
        shard.find(key.hash, |entry| entry.is_of(key)).map(read)
    }

    /// Adds an entry in place of the one of its key.
    pub(super) fn insert(&self, entry: Entry) {
        let mut shard = self.shard(entry.hash).write();
        let is_same = |other: &Entry| other.key == entry.key && other.namespace_bytes == entry.namespace_bytes;
        match shard.find_mut(entry.hash, is_same) {
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
