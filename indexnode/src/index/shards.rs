//! A hash table of cell addresses, cut into shards by bits of the hash.
//!
//! Each shard grows by itself, so the longest stall of an insertion is the rehash of one shard (1/1024 of the table),
//! and growing never holds two copies of the whole. Measured at a million directories (`memory` in the tests), on two
//! busy cores: 0.2 ms for a shard; all at once it would be 0.2 s. Hashes are computed by the caller; equality is asked
//! of the caller.

use hashbrown::HashTable;

use super::arena::Address;

pub(super) const SHARDS: usize = 1024;
/// Shards below this many addresses are not shrunk.
const SHRINK_MIN: usize = 32;

pub(super) struct Shards {
    shards: Box<[HashTable<u32>]>,
    len: usize,
}

/// Bits that hashbrown does not use: it takes the low ones for the bucket and the highest seven for the tag.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 44) as usize % SHARDS
}

impl Shards {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Address) -> bool) -> Option<Address> {
        self.shards[shard_of(hash)].find(hash, |at| is_it(Address(*at))).map(|at| Address(*at))
    }

    /// The addresses of one shard.
    pub(super) fn shard(&self, shard: usize) -> impl Iterator<Item = Address> {
        self.shards[shard].iter().map(|at| Address(*at))
    }

    /// Adds an address whose key is not in the table yet.
    pub(super) fn insert(&mut self, hash: u64, at: Address, hash_of: impl Fn(Address) -> u64) {
        self.shards[shard_of(hash)].insert_unique(hash, at.0, |at| hash_of(Address(*at)));
        self.len += 1;
    }

    /// Puts another address under the same key.
    pub(super) fn replace(&mut self, hash: u64, old: Address, new: Address) {
        let slot = self.shards[shard_of(hash)].find_mut(hash, |at| *at == old.0);
        *slot.expect("the address to replace is in the table") = new.0;
    }

    pub(super) fn remove(&mut self, hash: u64, at: Address, hash_of: impl Fn(Address) -> u64) {
        let shard = &mut self.shards[shard_of(hash)];
        let entry = shard.find_entry(hash, |other| *other == at.0);
        entry.expect("the address to remove is in the table").remove();
        if shard.capacity() > SHRINK_MIN && shard.len() < shard.capacity() / 4 {
            shard.shrink_to(shard.len() * 2, |at| hash_of(Address(*at)));
        }
        self.len -= 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Address> {
        self.shards.iter().flatten().map(|at| Address(*at))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        SHARDS * size_of::<HashTable<u32>>() + self.shards.iter().map(HashTable::allocation_size).sum::<usize>()
    }
}
