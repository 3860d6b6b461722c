//! The format of an extent: a header, a checksum for each 4 KiB of data, the data, zeros to the end of the block. So a small
//! object is one contiguous write and one read. `docs/formats.md` has the bytes.
//!
//! The header has a checksum of its own, and each checksum of the table is checked with its data. So a read of a range needs only
//! the header, the table's part and the units of that range.

use std::ops::Range;

#[cfg(test)]
use crate::tests::mutation::{self, Mutation};
use crate::{
    checksum::{SUM_BYTES, Seed, UNIT_BYTES, crc32c},
    error::{Damage, Error, Result},
    generation::{GENERATION_BYTES, Generation},
    place::{Extent, Geometry, Run},
};

/// Most bytes of data in one extent. The table of such an extent has 64 KiB, which a read keeps in memory.
pub const EXTENT_BYTES_MAX: u32 = 64 << 20;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;

const MAGIC: [u8; 4] = *b"MVX1";

impl Extent {
    /// The blocks that it takes.
    ///
    /// # Errors
    /// `Invalid` if it has no bytes, too many, or does not fit in its segment.
    pub fn run(&self, geometry: Geometry) -> Result<Run> {
        if !(1..=EXTENT_BYTES_MAX).contains(&self.length) {
            return Err(Error::Invalid("an extent has from 1 byte to 64 MiB"));
        }
        let blocks = blocks_for(geometry, self.length);
        match self.block.checked_add(blocks) {
            Some(end) if end <= geometry.segment_blocks() => Ok(Run { first: self.block, blocks }),
            _ => Err(Error::Invalid("an extent ends behind its segment")),
        }
    }

    pub(crate) fn seed(&self, geometry: Geometry, generation: Generation) -> Seed {
        Seed::new(generation, self.segment.volume, geometry.block_in_volume(self.segment.number, self.block))
    }

    /// The byte of the file at which it begins.
    pub(crate) fn offset(&self, geometry: Geometry) -> u64 {
        geometry.offset(self.segment.number, self.block)
    }
}

/// How many checksums this many bytes have.
pub(crate) fn units_for(length: u32) -> u32 {
    length.div_ceil(UNIT_BYTES as u32)
}

/// Bytes before the data.
pub(crate) fn head_bytes(length: u32) -> usize {
    HEADER_BYTES + SUM_BYTES * units_for(length) as usize
}

/// How many blocks an extent of this many bytes takes, at most [`EXTENT_BYTES_MAX`].
pub fn blocks_for(geometry: Geometry, length: u32) -> u32 {
    (head_bytes(length) as u32 + length).div_ceil(geometry.block_bytes())
}

/// The most bytes of data that this many blocks hold.
pub(crate) fn capacity(geometry: Geometry, blocks: u32) -> u32 {
    let bytes = u64::from(blocks) * u64::from(geometry.block_bytes());
    let bytes = bytes.saturating_sub(HEADER_BYTES as u64);
    let (unit, sum) = (UNIT_BYTES as u64, SUM_BYTES as u64);
    let whole = bytes / (unit + sum);
    let rest = (bytes % (unit + sum)).saturating_sub(sum);
    (whole * unit + rest).min(EXTENT_BYTES_MAX.into()) as u32
}

/// The beginning of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose bytes follow.
    pub generation: Generation,
    /// The object or upload for which they were written, as the caller says it; for whoever repairs a volume without a database.
    pub object: u64,
    /// The first byte's position within that object.
    pub position: u64,
    /// Bytes of data.
    pub length: u32,
}

impl Header {
    /// As on disk.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..8 + GENERATION_BYTES].copy_from_slice(&self.generation.encode());
        bytes[20..28].copy_from_slice(&self.object.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.position.to_le_bytes());
        let sum = crc32c(&bytes[..36]);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if these bytes do not begin with a whole header.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let (content, sum) = bytes.split_at(36);
        // A fuzzer would not find a checksum.
        let is_whole = content.starts_with(&MAGIC) && (cfg!(fuzzing) || sum == crc32c(content).to_le_bytes());
        is_whole.then_some(())?;
        Some(Self {
            length: u32::from_le_bytes(array(content, 4)?),
            generation: Generation {
                timeline: u32::from_le_bytes(array(content, 8)?),
                id: u64::from_le_bytes(array(content, 12)?),
            },
            object: u64::from_le_bytes(array(content, 20)?),
            position: u64::from_le_bytes(array(content, 28)?),
        })
    }
}

/// `N` bytes from there on.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Checks the bytes of one extent against what the metadata says of it.
pub(crate) struct Verifier {
    extent: Extent,
    generation: Generation,
    seed: Seed,
}

impl Verifier {
    pub(crate) fn new(extent: Extent, geometry: Geometry, generation: Generation) -> Self {
        Self { extent, generation, seed: extent.seed(geometry, generation) }
    }

    fn corrupt(&self, what: Damage) -> Error {
        Error::Corrupt { extent: self.extent, what }
    }

    /// Checks the header, with which these bytes begin.
    pub(crate) fn header(&self, bytes: &[u8]) -> Result<Header> {
        let header = Header::decode(bytes).ok_or_else(|| self.corrupt(Damage::Header))?;
        if header.generation != self.generation && !ignores_generation() {
            let (extent, expected, found) = (self.extent, self.generation, header.generation);
            return Err(Error::Foreign { extent, expected, found });
        }
        if header.length != self.extent.length {
            return Err(self.corrupt(Damage::Length));
        }
        Ok(header)
    }

    /// Checks consecutive units of data, of which all but the extent's last are whole, against their part of the table.
    pub(crate) fn units(&self, first: u32, table: &[u8], data: &[u8]) -> Result<()> {
        if data.chunks(UNIT_BYTES).len() * SUM_BYTES != table.len() {
            return Err(self.corrupt(Damage::Length));
        }
        for ((number, unit), sum) in (first..).zip(data.chunks(UNIT_BYTES)).zip(table.chunks(SUM_BYTES)) {
            if self.seed.sum(number, unit).to_le_bytes() != *sum && !ignores_sums() {
                return Err(self.corrupt(Damage::Unit(number)));
            }
        }
        Ok(())
    }
}

/// Checks an extent's bytes as they are on disk, from its header on; returns where among them its data is. Bytes behind the
/// data do not matter.
///
/// # Errors
/// `Corrupt` and `Foreign` as of a read; `Invalid` for an extent that cannot be.
pub fn verify(extent: Extent, geometry: Geometry, generation: Generation, bytes: &[u8]) -> Result<Range<usize>> {
    extent.run(geometry)?;
    let verifier = Verifier::new(extent, geometry, generation);
    verifier.header(bytes)?;
    let begin = head_bytes(extent.length);
    let data = begin..begin + extent.length as usize;
    let table = bytes.get(HEADER_BYTES..begin).ok_or_else(|| verifier.corrupt(Damage::Length))?;
    verifier.units(0, table, bytes.get(data.clone()).ok_or_else(|| verifier.corrupt(Damage::Length))?)?;
    Ok(data)
}

/// Whether a test leaves this protection out.
fn ignores_generation() -> bool {
    #[cfg(test)]
    return mutation::is(Mutation::IgnoreGeneration);
    #[cfg(not(test))]
    false
}

fn ignores_sums() -> bool {
    #[cfg(test)]
    return mutation::is(Mutation::IgnoreSums);
    #[cfg(not(test))]
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        checksum::Sums,
        place::{SegmentId, VolumeId},
    };

    const GENERATION: Generation = Generation { timeline: 3, id: 1030 };

    fn geometry() -> Geometry {
        Geometry::new(1024, 256 << 20).unwrap()
    }

    fn extent(length: u32) -> Extent {
        Extent { segment: SegmentId { volume: VolumeId(2), number: 1 }, block: 7, length }
    }

    fn encoded(extent: Extent, generation: Generation, data: &[u8]) -> Vec<u8> {
        let header = Header { generation, object: 5, position: 0, length: extent.length };
        let mut sums = Sums::new(extent.seed(geometry(), generation));
        sums.update(data);
        [&header.encode()[..], &sums.finish(), data].concat()
    }

    #[test]
    fn bytes_stay_as_they_are() {
        let bytes = encoded(extent(3), GENERATION, b"abc");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4d5658310300000003000000060400000000000005000000000000000000000000000000922f915c\
             41c35231616263"
        );
        assert_eq!(verify(extent(3), geometry(), GENERATION, &bytes).unwrap(), 44..47);
    }

    #[test]
    fn what_an_object_takes() {
        for (block_bytes, length, taken) in
            [(1024, 1024, 2048), (1024, 4096, 5120), (4096, 1024, 4096), (4096, 4096, 8192), (4096, 8192, 12_288)]
        {
            let geometry = Geometry::new(block_bytes, 256 << 20).unwrap();
            assert_eq!(blocks_for(geometry, length) * block_bytes, taken, "{block_bytes} {length}");
        }
    }

    proptest! {
        #[test]
        fn a_capacity_is_the_most_that_fits(blocks in 1u32..70_000) {
            let held = capacity(geometry(), blocks);
            prop_assert!(blocks_for(geometry(), held) <= blocks);
            prop_assert!(held == EXTENT_BYTES_MAX || blocks_for(geometry(), held + 1) > blocks);
        }

        #[test]
        fn any_bytes_are_refused_or_right(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in any::<u32>()) {
            prop_assert!(verify(extent(length), geometry(), GENERATION, &bytes).is_err());
        }

        #[test]
        fn every_flipped_bit_is_found(
            data in proptest::collection::vec(any::<u8>(), 1..10_000), at in any::<prop::sample::Index>(), bit in 0u8..8
        ) {
            let extent = extent(data.len() as u32);
            let mut bytes = encoded(extent, GENERATION, &data);
            let range = verify(extent, geometry(), GENERATION, &bytes).unwrap();
            prop_assert_eq!(&bytes[range], &data[..]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(verify(extent, geometry(), GENERATION, &bytes).is_err());
        }

        #[test]
        fn cut_bytes_are_found(data in proptest::collection::vec(any::<u8>(), 1..10_000), cut in any::<prop::sample::Index>()) {
            let extent = extent(data.len() as u32);
            let bytes = encoded(extent, GENERATION, &data);
            prop_assert!(verify(extent, geometry(), GENERATION, &bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn checksums_are_of_one_write_at_one_place(timeline in 0u32..4, id in 1025u64..1035, block in 0u32..10) {
            // Another write's table and data below this write's header: a torn write leaves such bytes.
            let other = Generation { timeline, id };
            let moved = Extent { block, ..extent(9000) };
            let mut bytes = encoded(moved, other, &[7; 9000]);
            let header = Header { generation: GENERATION, object: 5, position: 0, length: 9000 };
            bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
            let is_same = other == GENERATION && moved == extent(9000);
            prop_assert_eq!(verify(extent(9000), geometry(), GENERATION, &bytes).is_ok(), is_same);
        }

        #[test]
        fn sums_do_not_depend_on_the_pieces(data in proptest::collection::vec(any::<u8>(), 1..20_000), cut in any::<prop::sample::Index>()) {
            let seed = extent(1).seed(geometry(), GENERATION);
            let (mut whole, mut pieces) = (Sums::new(seed), Sums::new(seed));
            let (first, second) = data.split_at(cut.index(data.len()));
            whole.update(&data);
            pieces.update(first);
            pieces.update(second);
            prop_assert_eq!(whole.finish(), pieces.finish());
        }
    }
}
