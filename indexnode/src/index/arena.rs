//! Storage of variable-sized cells in regions that never move.
//!
//! Growth touches one more page of a region, or maps the next region. Nothing is copied, so no insertion stalls. A freed cell
//! goes to the free list of its size. A cell of that size reuses it, or a smaller one splits it. Free cells are not joined:
//! directory names have few sizes. Memory returns to the system only with the last cell.
//!
//! The arena asks the kernel for huge pages. A lookup reads cells at random: with a million directories in pages of 4 KiB,
//! nearly every read also missed the TLB.
//!
//! Units: an address counts 4-byte units. 2^32 of them are 16 GiB, about 380 million directories in one group.

use memmap2::{Advice, MmapMut, MmapOptions};

const UNIT_BYTES: usize = 4;
const REGION_UNITS: usize = 1 << 22;
const REGION_BYTES: usize = REGION_UNITS * UNIT_BYTES;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4 << 10;
/// The first part of the first region uses small pages. So a huge page with few cells is at most a fifth of the memory.
const SMALL_PAGES_BYTES: usize = 8 << 20;
/// Smallest cell. A split that would leave less is not worth it.
const CELL_UNITS_MIN: usize = 8;
/// Largest cell. One `u128` is the set of non-empty free lists.
const CELL_UNITS_MAX: usize = 80;
pub(super) const CELL_BYTES_MAX: usize = CELL_UNITS_MAX * UNIT_BYTES;
/// End of a free list. No cell begins in a region's last unit, so no cell has this address.
const NONE: u32 = u32::MAX;

const _: () = assert!(CELL_UNITS_MIN > 1 && CELL_UNITS_MAX < 128);

/// Where a cell begins, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address(pub u32);

impl Address {
    fn new(region: usize, unit: usize) -> Self {
        let at = u32::try_from(region * REGION_UNITS + unit);
        Self(at.expect("a group's index holds at most 16 GiB of directories: split the group"))
    }

    fn region(self) -> usize {
        self.0 as usize / REGION_UNITS
    }

    fn byte(self) -> usize {
        self.0 as usize % REGION_UNITS * UNIT_BYTES
    }
}

/// A mapping whose pages take memory only once they are written.
struct Region {
    memory: MmapMut,
    /// The first aligned byte for a huge page. The bytes before it are unused.
    begin: usize,
}

impl Region {
    /// The first `small` bytes use small pages, so that few cells take little memory.
    fn map(small: usize) -> Self {
        let memory = MmapOptions::new().len(REGION_BYTES + HUGE_PAGE_BYTES).map_anon();
        let memory = memory.expect("the system gives no more address space");
        let begin = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // A kernel without huge pages uses small ones.
        let _ = memory.advise_range(Advice::HugePage, begin + small, REGION_BYTES - small);
        Self { memory, begin }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..][..REGION_BYTES]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..REGION_BYTES]
    }
}

pub(super) struct Arena {
    regions: Vec<Region>,
    /// Units in use at the front of the last region.
    tail: usize,
    /// First free cell of each size in units. A free cell begins with the address of the next one.
    free: [u32; CELL_UNITS_MAX + 1],
    /// Bit n is set if `free[n]` is not empty.
    sizes_free: u128,
    cells: usize,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self { regions: Vec::new(), tail: REGION_UNITS, free: [NONE; CELL_UNITS_MAX + 1], sizes_free: 0, cells: 0 }
    }

    /// Bytes from the beginning of a cell to the end of its region.
    pub(super) fn bytes(&self, at: Address) -> &[u8] {
        &self.regions[at.region()].bytes()[at.byte()..]
    }

    pub(super) fn bytes_mut(&mut self, at: Address) -> &mut [u8] {
        &mut self.regions[at.region()].bytes_mut()[at.byte()..]
    }

    /// Allocates a cell of at least this many bytes. Its content is arbitrary.
    pub(super) fn allocate(&mut self, bytes: usize) -> Address {
        assert!(bytes <= CELL_BYTES_MAX, "cell of {bytes} bytes");
        let units = Self::units(bytes);
        self.cells += 1;
        if let Some(at) = self.take_free(units) {
            return at;
        }
        if self.tail + units > REGION_UNITS {
            self.keep_rest_of_region();
            self.regions.push(Region::map(if self.regions.is_empty() { SMALL_PAGES_BYTES } else { 0 }));
            self.tail = 0;
        }
        let at = Address::new(self.regions.len() - 1, self.tail);
        self.tail += units;
        at
    }

    /// Frees a cell that was allocated with this many bytes.
    pub(super) fn release(&mut self, at: Address, bytes: usize) {
        self.cells -= 1;
        if self.cells == 0 {
            *self = Self::new();
        } else {
            self.push_free(at, Self::units(bytes));
        }
    }

    /// Bytes of the pages that were written, assuming that the kernel gives huge ones.
    pub(super) fn mapped_bytes(&self) -> usize {
        let Some(full) = self.regions.len().checked_sub(1) else { return 0 };
        let last = self.tail * UNIT_BYTES;
        let page = if full == 0 && last <= SMALL_PAGES_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES };
        full * REGION_BYTES + last.next_multiple_of(page)
    }

    fn units(bytes: usize) -> usize {
        bytes.div_ceil(UNIT_BYTES).max(CELL_UNITS_MIN)
    }

    fn push_free(&mut self, at: Address, units: usize) {
        let next = std::mem::replace(&mut self.free[units], at.0);
        self.bytes_mut(at)[..4].copy_from_slice(&next.to_le_bytes());
        self.sizes_free |= 1 << units;
    }

    fn pop_free(&mut self, units: usize) -> Address {
        let at = Address(self.free[units]);
        let next = u32::from_le_bytes(*self.bytes(at).first_chunk().expect("a cell has more than four bytes"));
        self.free[units] = next;
        if next == NONE {
            self.sizes_free &= !(1 << units);
        }
        at
    }

    /// Takes a free cell of this size, or the front of the smallest cell whose remainder is a cell too.
    fn take_free(&mut self, units: usize) -> Option<Address> {
        if self.sizes_free & (1 << units) != 0 {
            return Some(self.pop_free(units));
        }
        let larger = self.sizes_free >> (units + CELL_UNITS_MIN) << (units + CELL_UNITS_MIN);
        if larger == 0 {
            return None;
        }
        let size = larger.trailing_zeros() as usize;
        let at = self.pop_free(size);
        self.push_free(Address(at.0 + units as u32), size - units);
        Some(at)
    }

    fn keep_rest_of_region(&mut self) {
        let rest = REGION_UNITS - self.tail;
        if rest >= CELL_UNITS_MIN && !self.regions.is_empty() {
            debug_assert!(rest <= CELL_UNITS_MAX);
            let at = Address::new(self.regions.len() - 1, self.tail);
            self.push_free(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Cells never overlap, after any allocations and releases.
        #[test]
        fn cells_do_not_overlap(steps in proptest::collection::vec((any::<bool>(), 1usize..CELL_BYTES_MAX), 1..400)) {
            let mut arena = Arena::new();
            let mut live: Vec<(Address, usize, u8)> = Vec::new();
            for (i, (allocate, size)) in steps.into_iter().enumerate() {
                if allocate || live.is_empty() {
                    let at = arena.allocate(size);
                    let mark = i as u8;
                    arena.bytes_mut(at)[..size].fill(mark);
                    live.push((at, size, mark));
                } else {
                    let (at, size, mark) = live.swap_remove(size % live.len());
                    prop_assert!(arena.bytes(at)[..size].iter().all(|b| *b == mark));
                    arena.release(at, size);
                }
            }
            for (at, size, mark) in live {
                prop_assert!(arena.bytes(at)[..size].iter().all(|b| *b == mark));
            }
        }
    }

    #[test]
    fn released_cells_are_taken_again() {
        let mut arena = Arena::new();
        let cells: Vec<_> = (0..100_000).map(|i| (arena.allocate(40 + i % 40), 40 + i % 40)).collect();
        let bytes = arena.mapped_bytes();
        for (at, size) in &cells[1..] {
            arena.release(*at, *size);
        }
        for i in 1..100_000 {
            arena.allocate(40 + i % 40);
        }
        assert_eq!(arena.mapped_bytes(), bytes);
    }

    #[test]
    fn the_last_release_returns_the_memory() {
        let mut arena = Arena::new();
        let cells: Vec<_> = (0..10_000).map(|_| arena.allocate(100)).collect();
        assert!(arena.mapped_bytes() >= 1_000_000);
        for at in cells {
            arena.release(at, 100);
        }
        assert_eq!(arena.mapped_bytes(), 0);
    }
}
