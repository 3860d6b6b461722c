//! One shard of a [`ShardedTable`](super::sharded_table::ShardedTable): a hash table of cell addresses. A bucket is one line
//! of the processor's cache.
//!
//! hashbrown's table does not fit, for two reasons. It doubles when it grows, so the memory of a directory varies by a sixth;
//! this one grows by half, and an address takes 6.4 to 9.7 bytes. And it cannot prefetch a bucket, which batches of lookups
//! and changes depend on ([`BucketTable::prefetch`]).
//!
//! A bucket holds twelve addresses. An address whose home bucket is full goes to the next bucket with room. Each full bucket
//! that it skips counts it, so a search stops at a bucket with overflow count 0 (as in Meta's F14).
//!
//! The caller computes hashes and compares keys; a resize asks [`KeyHasher`] for the hashes. The low 32 bits of a hash choose
//! the bucket, and the high 8 are the tag. The shard comes from bits between them.

use super::{arena::Address, hashing::KeyHasher};
use crate::prefetch::prefetch;

const CAPACITY: usize = 12;
/// Average number of addresses a bucket at which the table grows. (By then one in fifteen is outside its home bucket.)
const LOAD_MAX: usize = 10;
/// A table with this many buckets or fewer does not shrink.
const SHRINK_BUCKETS_MIN: usize = 4;
/// Buckets whose keys a resize prefetches together: about eighty keys, several times what a processor loads in parallel.
const BUCKETS_AT_ONCE: usize = 8;
/// The byte 1 in the place of each tag.
const EACH: u64 = 0x0101_0101_0101_0101;

#[repr(C, align(64))]
#[derive(Clone)]
struct Bucket {
    /// Tags of the first eight addresses, the first in the lowest byte. 0: empty.
    tags: u64,
    /// Tags of the last four addresses.
    tags_last: u32,
    /// How many addresses skipped this bucket because it was full. Their home is this bucket or an earlier one.
    overflowed: u32,
    addresses: [u32; CAPACITY],
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    const EMPTY: Self = Self { tags: 0, tags_last: 0, overflowed: 0, addresses: [0; CAPACITY] };

    fn matches(&self, tag: u8) -> Matches {
        let all = u128::from(self.tags) | u128::from(self.tags_last) << 64;
        let other = all ^ (u128::from(EACH * u64::from(tag)) | u128::from((EACH as u32) * u32::from(tag)) << 64);
        // Sets the high bit of each byte that is 0 in `other`. Exact: no byte's sum carries into the next.
        let low_bits = u128::from(!(EACH << 7)) | u128::from(!(EACH << 7) as u32) << 64;
        let high_bits = u128::from(EACH << 7) | u128::from((EACH << 7) as u32) << 64;
        Matches(!(((other & low_bits) + low_bits) | other) & high_bits)
    }

    fn addresses(&self) -> impl Iterator<Item = Address> + Clone {
        let empty = self.matches(0).fold(0_u32, |all, position| all | 1 << position);
        (0..CAPACITY)
            .filter(move |position| empty & 1 << position == 0)
            .map(|position| Address(self.addresses[position]))
    }

    fn set(&mut self, position: usize, tag: u8, at: u32) {
        match position.checked_sub(8) {
            None => self.tags = self.tags & !(0xff << (8 * position)) | u64::from(tag) << (8 * position),
            Some(position) => {
                self.tags_last = self.tags_last & !(0xff << (8 * position)) | u32::from(tag) << (8 * position)
            }
        }
        self.addresses[position] = at;
    }
}

/// Positions in a bucket, lowest first.
struct Matches(u128);

impl Iterator for Matches {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let position = (self.0 != 0).then(|| self.0.trailing_zeros() as usize / 8)?;
        self.0 &= self.0 - 1;
        Some(position)
    }
}

#[derive(Default)]
pub(super) struct BucketTable {
    buckets: Box<[Bucket]>,
    len: usize,
}

fn tag(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(1)
}

impl BucketTable {
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(Address) -> bool) -> Option<Address> {
        self.locate(hash, is_it).map(|(bucket, position)| Address(self.buckets[bucket].addresses[position]))
    }

    /// Prefetches the bucket in which a search begins.
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(bucket) = self.buckets.get(self.home(hash)) {
            prefetch(bucket);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Address> {
        self.buckets.iter().flat_map(Bucket::addresses)
    }

    /// Adds an address. Its key must not be in the table yet.
    pub(super) fn insert(&mut self, hash: u64, at: Address, hasher: &impl KeyHasher) {
        if self.len == self.buckets.len() * LOAD_MAX {
            self.resize(self.buckets.len() + self.buckets.len() / 2 + 1, hasher);
        }
        self.put(hash, at);
    }

    /// Replaces an address by another one with the same key.
    pub(super) fn replace(&mut self, hash: u64, old: Address, new: Address) {
        let (bucket, position) = self.locate(hash, |at| at == old).expect("the address to replace is in the table");
        self.buckets[bucket].addresses[position] = new.0;
    }

    pub(super) fn remove(&mut self, hash: u64, at: Address, hasher: &impl KeyHasher) {
        let (bucket, position) = self.locate(hash, |other| other == at).expect("the address to remove is in the table");
        self.buckets[bucket].set(position, 0, 0);
        let mut overflowed = self.home(hash);
        while overflowed != bucket {
            self.buckets[overflowed].overflowed -= 1;
            overflowed = self.next(overflowed);
        }
        self.len -= 1;
        if self.buckets.len() > SHRINK_BUCKETS_MIN && self.len < self.buckets.len() * LOAD_MAX / 4 {
            self.resize(self.buckets.len() / 2, hasher);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// The bucket in which a search begins; 0 when there is none.
    fn home(&self, hash: u64) -> usize {
        ((u64::from(hash as u32) * self.buckets.len() as u64) >> 32) as usize
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// The bucket of an address, and its position there.
    fn locate(&self, hash: u64, mut is_it: impl FnMut(Address) -> bool) -> Option<(usize, usize)> {
        let (mut at, tag) = (self.home(hash), tag(hash));
        // At most one round: every bucket may have overflowed.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            if let Some(position) = bucket.matches(tag).find(|position| is_it(Address(bucket.addresses[*position]))) {
                return Some((at, position));
            }
            if bucket.overflowed == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Adds an address to a table that has room.
    fn put(&mut self, hash: u64, at: Address) {
        let mut to = self.home(hash);
        self.len += 1;
        loop {
            let bucket = &mut self.buckets[to];
            if let Some(position) = bucket.matches(0).next() {
                bucket.set(position, tag(hash), at.0);
                return;
            }
            bucket.overflowed += 1;
            to = self.next(to);
        }
    }

    /// Prefetches the keys of several buckets at a time, because keys are scattered in memory.
    fn resize(&mut self, buckets: usize, hasher: &impl KeyHasher) {
        let resized = Self { buckets: vec![Bucket::EMPTY; buckets].into_boxed_slice(), len: 0 };
        let old = std::mem::replace(self, resized);
        for some in old.buckets.chunks(BUCKETS_AT_ONCE) {
            let addresses = some.iter().flat_map(Bucket::addresses);
            addresses.clone().for_each(|at| hasher.prefetch(at));
            addresses.for_each(|at| self.put(hasher.hash(at), at));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Few home buckets and few tags, so that buckets overflow, searches wrap around and tags collide.
    fn hash_of(at: Address) -> u64 {
        let homes = [0, u32::MAX, 1 << 30, u32::MAX - 1];
        u64::from(at.0 % 3) << 56 | u64::from(homes[at.0 as usize / 3 % homes.len()])
    }

    /// Hashes the address itself.
    struct AddressHasher(fn(Address) -> u64);

    impl KeyHasher for AddressHasher {
        fn prefetch(&self, _: Address) {}

        fn hash(&self, at: Address) -> u64 {
            (self.0)(at)
        }
    }

    fn check(table: &BucketTable, model: &BTreeMap<u32, ()>) -> Result<(), TestCaseError> {
        prop_assert_eq!(table.len, model.len());
        let mut all: Vec<u32> = table.iter().map(|at| at.0).collect();
        all.sort_unstable();
        prop_assert_eq!(all, model.keys().copied().collect::<Vec<_>>());
        for at in 0..300 {
            let found = table.find(hash_of(Address(at)), |other| other.0 == at).map(|at| at.0);
            prop_assert_eq!(found, model.get(&at).map(|()| at));
        }
        Ok(())
    }

    proptest! {
        /// The table finds exactly what it holds, after any additions, replacements and removals.
        #[test]
        fn a_table_agrees_with_a_map(steps in proptest::collection::vec((0u8..8, 0u32..300), 1..600)) {
            let (mut table, mut model) = (BucketTable::default(), BTreeMap::new());
            for (what, at) in steps {
                let hash = hash_of(Address(at));
                // Another address with the same home bucket and tag.
                let other = at + 12;
                match what {
                    0 if model.contains_key(&at) && !model.contains_key(&other) => {
                        table.replace(hash, Address(at), Address(other));
                        model.remove(&at);
                        model.insert(other, ());
                    }
                    0..=2 if model.remove(&at).is_some() => table.remove(hash, Address(at), &AddressHasher(hash_of)),
                    3.. if model.insert(at, ()).is_none() => table.insert(hash, Address(at), &AddressHasher(hash_of)),
                    _ => {}
                }
            }
            check(&table, &model)?;
            // An empty table has no overflow counts left.
            for at in std::mem::take(&mut model).into_keys() {
                table.remove(hash_of(Address(at)), Address(at), &AddressHasher(hash_of));
            }
            check(&table, &model)?;
            prop_assert!(table.buckets.iter().all(|bucket| bucket.overflowed == 0));
        }
    }

    #[test]
    fn memory_follows_the_number_of_addresses() {
        let hash: fn(Address) -> u64 = |at| crate::index::digest::mix(u64::from(at.0));
        let mut table = BucketTable::default();
        for at in 0..100_000 {
            table.insert(hash(Address(at)), Address(at), &AddressHasher(hash));
            let bytes = table.heap_bytes() as f64 / f64::from(at + 1);
            assert!(at < 1_000 || (6.4..9.8).contains(&bytes), "{bytes} bytes an address at {at}");
        }
        let displaced: usize = table.buckets.iter().map(|bucket| bucket.overflowed as usize).sum();
        assert!(displaced < 100_000 / 8, "{displaced} of 100,000 overflowed a bucket");
        for at in 100..100_000 {
            table.remove(hash(Address(at)), Address(at), &AddressHasher(hash));
        }
        assert!(table.heap_bytes() <= 64 * 100 * 4 / LOAD_MAX + 64 * SHRINK_BUCKETS_MIN, "{}", table.heap_bytes());
    }
}
