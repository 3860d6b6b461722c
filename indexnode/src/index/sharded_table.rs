//! A hash table of cell addresses, cut into shards by bits of the hash.
//!
//! Each shard grows by itself, so the longest stall of an insertion is the rehash of one shard (1/1024 of the table),
//! and growing never holds two copies of the whole. Measured at a million directories (`memory` in the tests): 25 µs for a
//! shard, whose keys are loaded ahead (0.2 ms when each was waited for in turn); all at once it would be a thousand times as
//! long. Hashes are computed by the caller, who is asked for equality and, when a shard is resized, for hashes ([`KeyHasher`]).

use super::{arena::Address, bucket_table::BucketTable, hashing::KeyHasher};

pub(super) const SHARDS: usize = 1024;

pub(super) struct ShardedTable {
    shards: Box<[BucketTable]>,
    len: usize,
}

/// Bits that a shard does not use.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 44) as usize % SHARDS
}

impl ShardedTable {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| BucketTable::default()).collect(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(Address) -> bool) -> Option<Address> {
        self.shards[shard_of(hash)].find(hash, is_it)
    }

    /// Begins to load what a search begins with.
    pub(super) fn prefetch(&self, hash: u64) {
        self.shards[shard_of(hash)].prefetch(hash);
    }

    /// The addresses of one shard.
    pub(super) fn shard(&self, shard: usize) -> impl Iterator<Item = Address> {
        self.shards[shard].iter()
    }

    /// Adds an address whose key is not in the table yet.
    pub(super) fn insert(&mut self, hash: u64, at: Address, hasher: &impl KeyHasher) {
        self.shards[shard_of(hash)].insert(hash, at, hasher);
        self.len += 1;
    }

    /// Puts another address under the same key.
    pub(super) fn replace(&mut self, hash: u64, old: Address, new: Address) {
        self.shards[shard_of(hash)].replace(hash, old, new);
    }

    pub(super) fn remove(&mut self, hash: u64, at: Address, hasher: &impl KeyHasher) {
        self.shards[shard_of(hash)].remove(hash, at, hasher);
        self.len -= 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Address> {
        self.shards.iter().flat_map(BucketTable::iter)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.shards) + self.shards.iter().map(BucketTable::heap_bytes).sum::<usize>()
    }
}
