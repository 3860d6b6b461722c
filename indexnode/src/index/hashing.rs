//! Hashes of the two keys of a directory: its id and its place. A hash table that grows reads them from the cells.

use std::hash::BuildHasher;

use mantle_types::{DirectoryId, PartitionId};

use super::{
    arena::{Address, Arena},
    cell::Cell,
    digest,
    seed::Seed,
};
use crate::prefetch::prefetch;

/// Hashes the key at an address: the hash tables hold addresses only.
pub(super) trait KeyHasher {
    /// Prefetches the memory that [`hash`](Self::hash) reads.
    fn prefetch(&self, at: Address);
    fn hash(&self, at: Address) -> u64;
}

pub(super) fn place_hash(seed: &Seed, pid: PartitionId, name: &[u8]) -> u64 {
    seed.hash_one((pid.0, name))
}

/// A cheap mix suffices: the system allocates ids, users cannot choose them.
pub(super) fn id_hash(id_seed: u64, id: DirectoryId) -> u64 {
    digest::mix(id.0 ^ id_seed)
}

pub(super) struct PlaceHasher<'a> {
    pub arena: &'a Arena,
    pub seed: &'a Seed,
}

impl KeyHasher for PlaceHasher<'_> {
    fn prefetch(&self, at: Address) {
        Cell(self.arena.bytes(at)).prefetch();
    }

    fn hash(&self, at: Address) -> u64 {
        let cell = Cell(self.arena.bytes(at));
        place_hash(self.seed, cell.pid(), cell.name_bytes())
    }
}

pub(super) struct IdHasher<'a> {
    pub arena: &'a Arena,
    pub seed: u64,
}

impl KeyHasher for IdHasher<'_> {
    fn prefetch(&self, at: Address) {
        prefetch(&self.arena.bytes(at)[0]);
    }

    fn hash(&self, at: Address) -> u64 {
        id_hash(self.seed, Cell(self.arena.bytes(at)).id())
    }
}
