//! CRC-32C of 4 KiB of data, seeded with what identifies the data: generation, volume, the extent's first block, and the number
//! of the unit. A unit of another write, another extent or another place has another seed, so it does not match even if its own
//! checksum is beside it.
//!
//! The seed is the state of CRC-32C after these 28 bytes. Two seeds always differ if the inputs differ only within 32 consecutive
//! bits, such as two ids below 2^32 of one timeline. Otherwise they are equal by chance once in 2^32.

use crc_fast::{CrcAlgorithm, Digest, checksum};

#[cfg(test)]
use crate::tests::mutation::{self, Mutation};
use crate::{generation::Generation, place::VolumeId};

/// Bytes of data that have one checksum.
pub const UNIT_BYTES: usize = 4 << 10;
/// Bytes of a checksum.
pub(crate) const SUM_BYTES: usize = 4;

const CRC32C: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// CRC32C without a seed, of headers and superblocks.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CRC32C, bytes) as u32
}

/// Where an extent begins, and whose it is.
#[derive(Clone, Copy)]
pub(crate) struct Seed(Digest);

impl Seed {
    /// `block` is the extent's first block, within the volume.
    pub(crate) fn new(generation: Generation, volume: VolumeId, block: u64) -> Self {
        let mut bytes = [0; 24];
        bytes[..12].copy_from_slice(&seeded(generation).encode());
        bytes[12..16].copy_from_slice(&volume.0.to_le_bytes());
        bytes[16..].copy_from_slice(&block.to_le_bytes());
        let mut digest = Digest::new(CRC32C);
        digest.update(&bytes);
        Self(digest)
    }

    fn unit(&self, number: u32) -> Digest {
        let mut digest = self.0;
        digest.update(&number.to_le_bytes());
        digest
    }

    /// The checksum of one whole unit; the last may be shorter.
    pub(crate) fn sum(&self, number: u32, data: &[u8]) -> u32 {
        let mut digest = self.unit(number);
        digest.update(data);
        digest.finalize() as u32
    }
}

/// The generation, unless a test leaves it out.
fn seeded(generation: Generation) -> Generation {
    #[cfg(test)]
    if mutation::is(Mutation::SeedWithoutGeneration) || mutation::is(Mutation::IgnoreGeneration) {
        return Generation { timeline: 0, id: 0 };
    }
    generation
}

/// Computes the checksums of an extent whose data arrives in pieces.
pub(crate) struct Sums {
    seed: Seed,
    /// Of the unit that is not whole yet.
    current: Digest,
    filled: usize,
    table: Vec<u8>,
}

impl Sums {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { current: seed.unit(0), seed, filled: 0, table: Vec::new() }
    }

    pub(crate) fn update(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let (now, rest) = data.split_at(data.len().min(UNIT_BYTES - self.filled));
            self.current.update(now);
            self.filled += now.len();
            data = rest;
            if self.filled == UNIT_BYTES {
                self.close_unit();
            }
        }
    }

    fn close_unit(&mut self) {
        self.table.extend_from_slice(&(self.current.finalize() as u32).to_le_bytes());
        self.current = self.seed.unit((self.table.len() / SUM_BYTES) as u32);
        self.filled = 0;
    }

    /// The table: each unit's checksum, little endian.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.filled > 0 {
            self.close_unit();
        }
        self.table
    }
}
