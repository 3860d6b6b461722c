//! Where bytes are: volume, segment, block; and the sizes of these.

use std::fmt;

/// Bytes before the first segment: both copies of the superblock, and room for what may come.
pub const HEAD_BYTES: u64 = 64 << 10;
/// Block sizes that a volume may have, in bytes.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=64 << 10;
/// The block size of a volume if its maker does not say (docs/formats.md has the measurement).
pub const BLOCK_BYTES_DEFAULT: u32 = 4 << 10;
/// The size of a segment if its maker does not say. It is small, because a put that finds no room searches the whole bitmap.
pub const SEGMENT_BYTES_DEFAULT: u64 = 256 << 20;
/// Most blocks of a segment: their numbers fit in PostgreSQL's signed integers of four bytes.
const SEGMENT_BLOCKS_MAX: u64 = 1 << 31;

/// A volume's number within the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u32);

/// A run of blocks of a volume, which one store leases as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// The volume.
    pub volume: VolumeId,
    /// The segment's number within the volume, from 0.
    pub number: u32,
}

/// The right to allocate from a segment. When another store takes the segment over, it gets a higher epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// The segment.
    pub segment: SegmentId,
    /// The epoch under which the database has leased it.
    pub epoch: u64,
}

/// Consecutive blocks of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first block, within the segment.
    pub first: u32,
    /// How many; at least 1.
    pub blocks: u32,
}

/// Where a piece of an object is. `length` bytes of data begin behind a header in the first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The segment in which all its blocks are.
    pub segment: SegmentId,
    /// Its first block, within the segment.
    pub block: u32,
    /// Bytes of data; from 1 to 64 MiB ([`EXTENT_BYTES_MAX`](crate::EXTENT_BYTES_MAX)).
    pub length: u32,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}+{}", self.segment, self.block, self.length)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.volume, self.number)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.segment, self.epoch)
    }
}

impl Run {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.blocks as usize
    }
}

/// The sizes of a volume's blocks and segments; fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    block_bytes: u32,
    segment_blocks: u32,
}

impl Geometry {
    /// `None` if the block size is no power of two from 512 to 65,536, or the segment has no whole number of blocks, none, or
    /// over 2^31.
    pub fn new(block_bytes: u32, segment_bytes: u64) -> Option<Self> {
        let blocks = segment_bytes / u64::from(block_bytes.max(1));
        let is_valid = BLOCK_BYTES.contains(&block_bytes)
            && block_bytes.is_power_of_two()
            && segment_bytes.is_multiple_of(block_bytes.into())
            && (1..=SEGMENT_BLOCKS_MAX).contains(&blocks);
        is_valid.then_some(Self { block_bytes, segment_blocks: blocks as u32 })
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u32 {
        self.block_bytes
    }

    /// Blocks of a segment.
    pub fn segment_blocks(self) -> u32 {
        self.segment_blocks
    }

    /// Bytes of a segment.
    pub fn segment_bytes(self) -> u64 {
        u64::from(self.segment_blocks) * u64::from(self.block_bytes)
    }

    /// The block's number within the volume.
    pub(crate) fn block_in_volume(self, segment: u32, block: u32) -> u64 {
        u64::from(segment) * u64::from(self.segment_blocks) + u64::from(block)
    }

    /// The byte of the file at which a block begins.
    pub(crate) fn offset(self, segment: u32, block: u32) -> u64 {
        HEAD_BYTES + self.block_in_volume(segment, block) * u64::from(self.block_bytes)
    }

    /// Size of a volume of this many segments, in bytes; `None` if no file can be so large.
    pub fn volume_bytes(self, segments: u32) -> Option<u64> {
        let bytes = u64::from(segments).checked_mul(self.segment_bytes())?.checked_add(HEAD_BYTES)?;
        (bytes <= i64::MAX as u64).then_some(bytes)
    }
}
