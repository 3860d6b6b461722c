//! TopDirPathCache: a hash table from the prefix of a path to where it leads.
//!
//! Cut into shards, each under a lock of its own: a table that grows keeps few waiting, and not for long.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use mantle_types::{
    DirectoryId, NamespaceId, Permission,
    limits::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX},
};
use parking_lot::{RwLock, RwLockReadGuard};
use smallvec::SmallVec;

use crate::prefetch::prefetch;
use crate::index::{Path, Seed, fresh_seed};

const SHARDS: usize = 64;

/// The distinct permissions on a way: one or two, mostly.
pub(super) type Permissions = SmallVec<[Permission; 2]>;

/// A namespace's name and the prefix of a path in it.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    hash: u64,
    namespace: &'a str,
    pub prefix: Path<'a>,
    /// What the prefix leaves of the path; no part of the key.
    pub below: Path<'a>,
}

/// Where a prefix leads, in one piece of memory, what every lookup reads first:
///
/// | byte | holds |
/// |---|---|
/// | 0 | hash of the key |
/// | 8 | length of the namespace's name, of the prefix behind it, number of directories, number of permissions (2 bytes each) |
/// | 16 | the namespace's id |
/// | 24 | the prefix's directory |
/// | 32 | the distinct permissions on the way |
/// | | the namespace's name, and behind it the prefix |
/// | | the directories on the way, the namespace's root first, the prefix's own last |
pub(super) struct Entry(Box<[u8]>);

const LENGTHS: usize = 8;
const NS: usize = 16;
const ID: usize = 24;
const PERMISSIONS: usize = 32;
const PERMISSION_BYTES: usize = 10;
const ID_BYTES: usize = 8;

impl Entry {
    pub(super) fn new(key: &Key<'_>, ids: &[DirectoryId], permissions: &[Permission]) -> Self {
        let lengths = [key.namespace.len(), key.prefix.0.len(), ids.len(), permissions.len()];
        let bytes = PERMISSIONS + permissions.len() * PERMISSION_BYTES + lengths[0] + lengths[1] + ids.len() * ID_BYTES;
        let mut all = Vec::with_capacity(bytes);
        all.extend(key.hash.to_le_bytes());
        all.extend(lengths.iter().flat_map(|length| (*length as u16).to_le_bytes()));
        all.extend(ids[0].0.to_le_bytes());
        all.extend(ids[ids.len() - 1].0.to_le_bytes());
        for permission in permissions {
            all.extend(permission.owner.to_le_bytes());
            all.extend(permission.group.to_le_bytes());
            all.extend(permission.mode.to_le_bytes());
        }
        all.extend([key.namespace, key.prefix.0].iter().flat_map(|part| part.bytes()));
        all.extend(ids.iter().flat_map(|id| id.0.to_le_bytes()));
        Self(all.into())
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn length(&self, which: usize) -> usize {
        let at = LENGTHS + 2 * which;
        usize::from(u16::from_le_bytes(self.0[at..at + 2].try_into().expect("two bytes")))
    }

    pub(super) fn hash(&self) -> u64 {
        self.u64_at(0)
    }

    pub(super) fn ns(&self) -> NamespaceId {
        NamespaceId(self.u64_at(NS))
    }

    /// The prefix's directory.
    pub(super) fn id(&self) -> DirectoryId {
        DirectoryId(self.u64_at(ID))
    }

    fn key_at(&self) -> usize {
        PERMISSIONS + self.length(3) * PERMISSION_BYTES
    }

    fn key(&self) -> &[u8] {
        &self.0[self.key_at()..][..self.length(0) + self.length(1)]
    }

    pub(super) fn permissions(&self) -> impl Iterator<Item = Permission> {
        self.0[PERMISSIONS..self.key_at()].chunks_exact(PERMISSION_BYTES).map(|bytes| Permission {
            owner: u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")),
            group: u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")),
            mode: u16::from_le_bytes(bytes[8..].try_into().expect("two bytes")),
        })
    }

    /// Components of the prefix.
    pub(super) fn depth(&self) -> usize {
        self.length(2) - 1
    }

    /// The directories on the way, the namespace's root first, the prefix's own last.
    pub(super) fn ids(&self) -> impl Iterator<Item = DirectoryId> + Clone {
        let at = self.0.len() - self.length(2) * ID_BYTES;
        self.0[at..].chunks_exact(ID_BYTES).map(|bytes| DirectoryId(u64::from_le_bytes(bytes.try_into().expect("eight bytes"))))
    }

    /// Two keys are the same by their lengths and bytes: no name, however odd, makes two paths one.
    fn is_of(&self, key: &Key<'_>) -> bool {
        self.hash() == key.hash
            && self.length(0) == key.namespace.len()
            && self.length(1) == key.prefix.0.len()
            && self.key().starts_with(key.namespace.as_bytes())
            && self.key().ends_with(key.prefix.0.as_bytes())
    }

    /// Begins to load what a lookup reads of it.
    fn prefetch(&self, key_bytes: usize) {
        for at in (0..PERMISSIONS + PERMISSION_BYTES + key_bytes + 64).step_by(64) {
            if let Some(byte) = self.0.get(at) {
                prefetch(byte);
            }
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.length(0) == other.length(0) && self.key() == other.key()
    }

    /// Bytes it takes in its shard, about.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() * 8 / 7 + 1 + self.0.len()
    }
}

fn shard_of(hash: u64) -> usize {
    // Bits that hashbrown does not use: it takes the low ones for the bucket and the highest seven for the tag.
    (hash >> 44) as usize % SHARDS
}

/// Shards that are locked for reading.
struct Locked<'a>([Option<RwLockReadGuard<'a, HashTable<Entry>>>; SHARDS]);

impl Locked<'_> {
    fn of(&self, hash: u64) -> &HashTable<Entry> {
        self.0[shard_of(hash)].as_ref().expect("the shards of all keys are locked")
    }
}

pub(super) struct Entries {
    seed: Seed,
    shards: Box<[RwLock<HashTable<Entry>>]>,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self { seed: fresh_seed(), shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    /// The key of a path's prefix; `None` when that is longer than what exists.
    pub(super) fn key<'a>(&self, namespace: &'a str, (prefix, below): (Path<'a>, Path<'a>)) -> Option<Key<'a>> {
        let is_usual = namespace.len() <= NAMESPACE_BYTES_MAX && prefix.0.len() <= KEY_BYTES_MAX;
        is_usual.then(|| Key { hash: self.seed.hash_one((namespace, prefix.0)), namespace, prefix, below })
    }

    /// What `read` makes of the entry of each key, in their order; `None` where there is none, or no key. In steps, one for
    /// all after the other, for the reason that [`descend_all`](crate::index::Index::descend_all) has. The shards that the
    /// keys are of are locked meanwhile.
    pub(super) fn find_all<'k, T>(
        &self,
        keys: &[Option<Key<'k>>],
        mut read: impl FnMut(usize, &Key<'k>, &Entry) -> T,
    ) -> Vec<Option<T>> {
        let shards = self.lock(keys.iter().flatten());
        // The first entry with the same tag: nearly always the one.
        let guess = |key: &Option<Key<'_>>| key.as_ref().and_then(|key| shards.of(key.hash).find(key.hash, |_| true));
        let guesses: Vec<Option<&Entry>> = keys.iter().map(guess).collect();
        guesses.iter().flatten().for_each(|entry| prefetch(*entry));
        for (guess, key) in guesses.iter().zip(keys) {
            if let (Some(entry), Some(key)) = (guess, key) {
                entry.prefetch(key.namespace.len() + key.prefix.0.len());
            }
        }
        let mut found = Vec::with_capacity(keys.len());
        for (at, (key, guess)) in keys.iter().zip(guesses).enumerate() {
            found.push(key.as_ref().and_then(|key| {
                let guessed = guess.filter(|entry| entry.is_of(key));
                let entry = guessed.or_else(|| shards.of(key.hash).find(key.hash, |entry| entry.is_of(key)))?;
                Some(read(at, key, entry))
            }));
        }
        found
    }

    /// Locks the shards of keys, to be read. In the order of the shards: who waits for one holds lower ones only, and who
    /// writes holds one, so that nobody waits in a circle.
    fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key<'k>>) -> Locked<'_> {
        let mut wanted = [false; SHARDS];
        keys.for_each(|key| wanted[shard_of(key.hash)] = true);
        let mut locked = Locked([const { None }; SHARDS]);
        for (at, shard) in self.shards.iter().enumerate().filter(|(at, _)| wanted[*at]) {
            locked.0[at] = Some(shard.read());
        }
        locked
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<Entry>> {
        &self.shards[shard_of(hash)]
    }

    /// Adds an entry in place of the one of its key.
    pub(super) fn insert(&self, entry: Entry) {
        let hash = entry.hash();
        let mut shard = self.shard(hash).write();
        match shard.find_mut(hash, |other| other.is_as(&entry)) {
            Some(other) => *other = entry,
            None => {
                shard.insert_unique(hash, entry, Entry::hash);
            }
        }
    }

    /// Removes the entry with this hash that leads to a directory; the bytes it took.
    pub(super) fn remove(&self, hash: u64, id: DirectoryId) -> usize {
        let mut shard = self.shard(hash).write();
        shard.find_entry(hash, |entry| entry.id() == id).map_or(0, |found| found.remove().0.bytes())
    }
}
