//! What differs between histories beside their steps: sizes, and how often calls fail.

use rand::{Rng, rngs::StdRng};

use crate::{
    Geometry,
    file::faulty::{DISK_SECTOR, Faults, MEMORY_SECTOR},
};

/// Sizes of a history.
#[derive(Clone)]
pub(super) struct Profile {
    pub geometry: Geometry,
    pub segments: u32,
    pub volumes: u32,
    pub keys: u32,
    pub steps: u32,
    pub sector: usize,
    pub bytes: std::ops::RangeInclusive<usize>,
    pub faults: Faults,
}

impl Profile {
    pub(super) fn of(random: &mut StdRng) -> Self {
        let block_bytes = [512, 1024, 4096][random.random_range(0..3)];
        let faults = match random.random_range(0..3) {
            0 => Faults { read: 5, write: 10, no_space: 10, flush: 20 },
            1 => Faults { flush: 60, ..Faults::default() },
            _ => Faults::default(),
        };
        // With one size, nothing but generation and content tells a write from the next one at its place.
        let (sector, bytes) = match random.random_range(0..6) {
            0 => (MEMORY_SECTOR, 4097..=8192),
            1 => (MEMORY_SECTOR, 5_000..=5_000),
            2 => (DISK_SECTOR, 5_000..=5_000),
            3 => (DISK_SECTOR, 1..=6_000),
            4 => (DISK_SECTOR, 1..=20_000),
            _ => (DISK_SECTOR, 1..=60_000),
        };
        Self {
            geometry: Geometry::new(block_bytes, 64 << 10).unwrap(),
            segments: random.random_range(1..=3),
            volumes: random.random_range(1..=2),
            keys: 12,
            steps: 250,
            sector,
            bytes,
            faults,
        }
    }
}
