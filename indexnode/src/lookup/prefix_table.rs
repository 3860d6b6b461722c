//! TopDirPathCache: a hash table from the prefix of a path to its directory.
//!
//! It is divided into shards with a lock each, so that a shard that grows blocks few lookups, and briefly.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use mantle_types::{
    DirectoryId,
    limits::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX},
};
use parking_lot::{RwLock, RwLockReadGuard};

use super::cached_prefix::{CachedPrefix, Key};
use crate::{
    index::{Path, Seed, fresh_seed},
    prefetch::prefetch,
};

const SHARDS: usize = 64;

fn shard_of(hash: u64) -> usize {
    // hashbrown does not use these bits: it takes the low ones for the bucket and the highest seven for the tag.
    (hash >> 44) as usize % SHARDS
}

struct ShardGuards<'a>([Option<RwLockReadGuard<'a, HashTable<CachedPrefix>>>; SHARDS]);

impl ShardGuards<'_> {
    fn of(&self, hash: u64) -> &HashTable<CachedPrefix> {
        self.0[shard_of(hash)].as_ref().expect("the shards of all keys are locked")
    }
}

pub(super) struct PrefixTable {
    seed: Seed,
    shards: Box<[RwLock<HashTable<CachedPrefix>>]>,
}

impl PrefixTable {
    pub(super) fn new() -> Self {
        Self { seed: fresh_seed(), shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    /// The key of a path's prefix. `None` if it is longer than any existing one.
    pub(super) fn key<'a>(&self, namespace: &'a str, (prefix, below): (Path<'a>, Path<'a>)) -> Option<Key<'a>> {
        let is_usual = namespace.len() <= NAMESPACE_BYTES_MAX && prefix.0.len() <= KEY_BYTES_MAX;
        is_usual.then(|| Key { hash: self.seed.hash_one((namespace, prefix.0)), namespace, prefix, below })
    }

    /// Calls `read` with the entry of each key, and returns the results in order; `None` without an entry or a key. Does each
    /// step for all keys before the next, as [`descend_all`](crate::index::Index::descend_all) does. Holds read locks on the
    /// shards of all keys.
    pub(super) fn find_all<'k, T>(
        &self,
        keys: &[Option<Key<'k>>],
        mut read: impl FnMut(usize, &Key<'k>, &CachedPrefix) -> T,
    ) -> Vec<Option<T>> {
        let shards = self.lock(keys.iter().flatten());
        // The first entry with the same tag, nearly always the right one.
        let candidate =
            |key: &Option<Key<'_>>| key.as_ref().and_then(|key| shards.of(key.hash).find(key.hash, |_| true));
        let candidates: Vec<Option<&CachedPrefix>> = keys.iter().map(candidate).collect();
        candidates.iter().flatten().for_each(|entry| prefetch(*entry));
        for (candidate, key) in candidates.iter().zip(keys) {
            if let (Some(entry), Some(key)) = (candidate, key) {
                entry.prefetch(key);
            }
        }
        let mut found = Vec::with_capacity(keys.len());
        for (at, (key, candidate)) in keys.iter().zip(candidates).enumerate() {
            found.push(key.as_ref().and_then(|key| {
                let matching = candidate.filter(|entry| entry.has_key(key));
                let entry = matching.or_else(|| shards.of(key.hash).find(key.hash, |entry| entry.has_key(key)))?;
                Some(read(at, key, entry))
            }));
        }
        found
    }

    /// Locks the shards of the keys for reading. No deadlock: a reader waits for a shard while it holds lower ones only, and a
    /// writer holds one.
    fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key<'k>>) -> ShardGuards<'_> {
        let mut wanted = [false; SHARDS];
        keys.for_each(|key| wanted[shard_of(key.hash)] = true);
        let mut locked = ShardGuards([const { None }; SHARDS]);
        for (at, shard) in self.shards.iter().enumerate().filter(|(at, _)| wanted[*at]) {
            locked.0[at] = Some(shard.read());
        }
        locked
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<CachedPrefix>> {
        &self.shards[shard_of(hash)]
    }

    pub(super) fn insert(&self, entry: CachedPrefix) {
        let hash = entry.hash();
        let mut shard = self.shard(hash).write();
        match shard.find_mut(hash, |other| other.has_same_key(&entry)) {
            Some(other) => *other = entry,
            None => {
                shard.insert_unique(hash, entry, CachedPrefix::hash);
            }
        }
    }

    /// Removes the entry with this hash for this directory. Returns its size in bytes.
    pub(super) fn remove(&self, hash: u64, id: DirectoryId) -> usize {
        let mut shard = self.shard(hash).write();
        shard.find_entry(hash, |entry| entry.id() == id).map_or(0, |found| found.remove().0.bytes())
    }
}
