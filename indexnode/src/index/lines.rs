//! One shard: a hash table of cell addresses whose buckets are lines of the processor's cache.
//!
//! Not the library's table, for two reasons. That one grows to the double, so that what a directory takes swings by a sixth;
//! this one grows by half, and an address takes 6.4 to 9.7 bytes. And that one has no way to begin to load a bucket, which
//! is what lookups and changes of many directories at once live on ([`Lines::prefetch`]): here it is one line.
//!
//! A line has twelve slots; what finds its own line full goes to the next one, and each line counts those that passed it, so
//! that a search ends at a line that none passed (as in Meta's F14). Hashes are computed by the caller; of the caller are asked
//! equality and, when the table is resized, hashes ([`Keys`]). Of a hash the low 32 bits choose the line, the high 8 are the
//! tag; among those between, the shard is chosen.

use super::{arena::Address, keys::Keys};
use crate::prefetch::prefetch;

const SLOTS: usize = 12;
/// Addresses a line, on average, before the table grows. (In a table that is about to, one in fifteen has passed its line.)
const LOAD_MAX: usize = 10;
/// Tables of so few lines are not shrunk.
const SHRINK_LINES_MIN: usize = 4;
/// Lines of a table that is resized whose keys are loaded at once: some eighty, several times what a processor waits for together.
const LINES_AT_ONCE: usize = 8;
/// One byte in each tag's place.
const EACH: u64 = 0x0101_0101_0101_0101;

#[repr(C, align(64))]
#[derive(Clone)]
struct Line {
    /// Of the first eight slots, the first in the lowest byte; 0: empty.
    tags: u64,
    /// Of the last four.
    tags_last: u32,
    /// Addresses for which this line was full, in it or before it, and which went further.
    passed: u32,
    at: [u32; SLOTS],
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const EMPTY: Self = Self { tags: 0, tags_last: 0, passed: 0, at: [0; SLOTS] };

    /// The slots with this tag.
    fn slots(&self, tag: u8) -> Slots {
        let all = u128::from(self.tags) | u128::from(self.tags_last) << 64;
        let other = all ^ (u128::from(EACH * u64::from(tag)) | u128::from((EACH as u32) * u32::from(tag)) << 64);
        // The high bit of each byte that is 0 in `other`: exact, since no byte's sum carries into the next.
        let low_bits = u128::from(!(EACH << 7)) | u128::from(!(EACH << 7) as u32) << 64;
        let high_bits = u128::from(EACH << 7) | u128::from((EACH << 7) as u32) << 64;
        Slots(!(((other & low_bits) + low_bits) | other) & high_bits)
    }

    fn addresses(&self) -> impl Iterator<Item = Address> + Clone {
        let empty = self.slots(0).fold(0_u32, |all, slot| all | 1 << slot);
        (0..SLOTS).filter(move |slot| empty & 1 << slot == 0).map(|slot| Address(self.at[slot]))
    }

    fn set(&mut self, slot: usize, tag: u8, at: u32) {
        match slot.checked_sub(8) {
            None => self.tags = self.tags & !(0xff << (8 * slot)) | u64::from(tag) << (8 * slot),
            Some(slot) => self.tags_last = self.tags_last & !(0xff << (8 * slot)) | u32::from(tag) << (8 * slot),
        }
        self.at[slot] = at;
    }
}

/// Slots of a line, lowest first.
struct Slots(u128);

impl Iterator for Slots {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let slot = (self.0 != 0).then(|| self.0.trailing_zeros() as usize / 8)?;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

/// The hash table.
#[derive(Default)]
pub(super) struct Lines {
    lines: Box<[Line]>,
    len: usize,
}

fn tag(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(1)
}

impl Lines {
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(Address) -> bool) -> Option<Address> {
        self.place(hash, is_it).map(|(line, slot)| Address(self.lines[line].at[slot]))
    }

    /// Begins to load the line that a search begins at.
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.home(hash)) {
            prefetch(line);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Address> {
        self.lines.iter().flat_map(Line::addresses)
    }

    /// Adds an address whose key is not in the table yet.
    pub(super) fn insert(&mut self, hash: u64, at: Address, keys: &impl Keys) {
        if self.len == self.lines.len() * LOAD_MAX {
            self.resize(self.lines.len() + self.lines.len() / 2 + 1, keys);
        }
        self.put(hash, at);
    }

    /// Puts another address under the same key.
    pub(super) fn replace(&mut self, hash: u64, old: Address, new: Address) {
        let (line, slot) = self.place(hash, |at| at == old).expect("the address to replace is in the table");
        self.lines[line].at[slot] = new.0;
    }

    pub(super) fn remove(&mut self, hash: u64, at: Address, keys: &impl Keys) {
        let (line, slot) = self.place(hash, |other| other == at).expect("the address to remove is in the table");
        self.lines[line].set(slot, 0, 0);
        let mut passed = self.home(hash);
        while passed != line {
            self.lines[passed].passed -= 1;
            passed = self.next(passed);
        }
        self.len -= 1;
        if self.lines.len() > SHRINK_LINES_MIN && self.len < self.lines.len() * LOAD_MAX / 4 {
            self.resize(self.lines.len() / 2, keys);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Without lines: 0.
    fn home(&self, hash: u64) -> usize {
        ((u64::from(hash as u32) * self.lines.len() as u64) >> 32) as usize
    }

    fn next(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    /// The line and the slot of an address.
    fn place(&self, hash: u64, mut is_it: impl FnMut(Address) -> bool) -> Option<(usize, usize)> {
        let (mut at, tag) = (self.home(hash), tag(hash));
        // Each line once: all may have been passed.
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            if let Some(slot) = line.slots(tag).find(|slot| is_it(Address(line.at[*slot]))) {
                return Some((at, slot));
            }
            if line.passed == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Adds to a table that has room.
    fn put(&mut self, hash: u64, at: Address) {
        let mut to = self.home(hash);
        self.len += 1;
        loop {
            let line = &mut self.lines[to];
            if let Some(slot) = line.slots(0).next() {
                line.set(slot, tag(hash), at.0);
                return;
            }
            line.passed += 1;
            to = self.next(to);
        }
    }

    /// The keys are all over memory: those of some lines are loaded at once.
    fn resize(&mut self, lines: usize, keys: &impl Keys) {
        let resized = Self { lines: vec![Line::EMPTY; lines].into_boxed_slice(), len: 0 };
        let old = std::mem::replace(self, resized);
        for some in old.lines.chunks(LINES_AT_ONCE) {
            let addresses = some.iter().flat_map(Line::addresses);
            addresses.clone().for_each(|at| keys.prefetch(at));
            addresses.for_each(|at| self.put(keys.hash(at), at));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Few homes and few tags, so that lines overflow, wrap around, and tags collide.
    fn hash_of(at: Address) -> u64 {
        let homes = [0, u32::MAX, 1 << 30, u32::MAX - 1];
        u64::from(at.0 % 3) << 56 | u64::from(homes[at.0 as usize / 3 % homes.len()])
    }

    /// Addresses that are their own keys.
    struct Own(fn(Address) -> u64);

    impl Keys for Own {
        fn prefetch(&self, _: Address) {}

        fn hash(&self, at: Address) -> u64 {
            (self.0)(at)
        }
    }

    fn check(table: &Lines, model: &BTreeMap<u32, ()>) -> Result<(), TestCaseError> {
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
        /// Whatever is added, replaced and removed in between: what is in the table is found, and nothing else.
        #[test]
        fn a_table_holds_what_a_map_would(steps in proptest::collection::vec((0u8..8, 0u32..300), 1..600)) {
            let (mut table, mut model) = (Lines::default(), BTreeMap::new());
            for (what, at) in steps {
                let hash = hash_of(Address(at));
                // Another of the same home and tag.
                let other = at + 12;
                match what {
                    0 if model.contains_key(&at) && !model.contains_key(&other) => {
                        table.replace(hash, Address(at), Address(other));
                        model.remove(&at);
                        model.insert(other, ());
                    }
                    0..=2 if model.remove(&at).is_some() => table.remove(hash, Address(at), &Own(hash_of)),
                    3.. if model.insert(at, ()).is_none() => table.insert(hash, Address(at), &Own(hash_of)),
                    _ => {}
                }
            }
            check(&table, &model)?;
            // Emptied, nothing is left of those that passed.
            for at in std::mem::take(&mut model).into_keys() {
                table.remove(hash_of(Address(at)), Address(at), &Own(hash_of));
            }
            check(&table, &model)?;
            prop_assert!(table.lines.iter().all(|line| line.passed == 0));
        }
    }

    #[test]
    fn memory_follows_what_is_held() {
        let hash: fn(Address) -> u64 = |at| crate::index::digest::mix(u64::from(at.0));
        let mut table = Lines::default();
        for at in 0..100_000 {
            table.insert(hash(Address(at)), Address(at), &Own(hash));
            let bytes = table.heap_bytes() as f64 / f64::from(at + 1);
            assert!(at < 1_000 || (6.4..9.8).contains(&bytes), "{bytes} bytes an address at {at}");
        }
        let displaced: usize = table.lines.iter().map(|line| line.passed as usize).sum();
        assert!(displaced < 100_000 / 8, "{displaced} of 100,000 passed a line");
        for at in 100..100_000 {
            table.remove(hash(Address(at)), Address(at), &Own(hash));
        }
        assert!(table.heap_bytes() <= 64 * 100 * 4 / LOAD_MAX + 64 * SHRINK_LINES_MIN, "{}", table.heap_bytes());
    }
}
