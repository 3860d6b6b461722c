//! The keys of the table's directories, id and place: their hashes, and what a hash table that grows asks of a cell.

use std::hash::BuildHasher;

use mantle_types::{DirectoryId, PartitionId};

use super::{
    arena::{Address, Arena},
    cell::Cell,
    digest,
    seed::Seed,
};
use crate::prefetch::prefetch;

/// The keys of the addresses in a hash table, which keeps none of them itself.
pub(super) trait KeyHasher {
    /// Begins to load what the hash is computed of.
    fn prefetch(&self, at: Address);
    /// Hash of the key.
    fn hash(&self, at: Address) -> u64;
}

pub(super) fn place_hash(seed: &Seed, pid: PartitionId, name: &[u8]) -> u64 {
    seed.hash_one((pid.0, name))
}

/// Ids are allocated by the system, not chosen by users: a cheap mix will do.
pub(super) fn id_hash(id_seed: u64, id: DirectoryId) -> u64 {
    digest::mix(id.0 ^ id_seed)
}

/// Directories by their place.
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

/// Directories by their id.
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
