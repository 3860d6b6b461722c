//! The superblock, which describes a volume. It fits in one sector of 512 bytes, and there are two copies. A write replaces the
//! older copy, so a write that is cut short leaves the other one whole.

use uuid::Uuid;

use crate::{
    checksum::crc32c,
    extent::array,
    place::{Geometry, VolumeId},
};

/// Bytes of one copy.
pub(crate) const SUPERBLOCK_BYTES: usize = 512;
/// Where the copies begin, in bytes from the beginning of the file. A write goes to copy *sequence mod 2*.
pub(crate) const COPIES: [u64; 2] = [0, 32 << 10];

const MAGIC: [u8; 8] = *b"MANTLVOL";
const VERSION: u32 = 1;
/// Behind the last field: the checksum.
const CONTENT_BYTES: usize = 64;

/// What a volume says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// One more with each write of the superblock.
    pub sequence: u64,
    /// The cluster whose database names the extents.
    pub cluster: Uuid,
    /// The volume's number within the cluster.
    pub volume: VolumeId,
    /// Sizes of blocks and segments.
    pub geometry: Geometry,
    /// How many segments the volume has; it only grows.
    pub segments: u32,
    /// One more with each mount.
    pub mount_epoch: u64,
}

/// Why bytes are no superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSuperblock {
    /// Of a format version that this release does not know.
    Version(u32),
    /// Cut, damaged, or something else.
    Damaged,
}

impl Superblock {
    /// As on disk.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.volume.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(self.cluster.as_bytes());
        bytes[40..48].copy_from_slice(&self.mount_epoch.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.geometry.block_bytes().to_le_bytes());
        bytes[52..56].copy_from_slice(&self.geometry.segment_blocks().to_le_bytes());
        bytes[56..60].copy_from_slice(&self.segments.to_le_bytes());
        let sum = crc32c(&bytes[..CONTENT_BYTES]);
        bytes[CONTENT_BYTES..CONTENT_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// If it is none of a version that this release knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoSuperblock> {
        Self::read(bytes).unwrap_or(Err(NoSuperblock::Damaged))
    }

    fn read(bytes: &[u8]) -> Option<Result<Self, NoSuperblock>> {
        let content = bytes.get(..CONTENT_BYTES)?;
        let sum = array(bytes, CONTENT_BYTES)?;
        // A fuzzer would not find a checksum.
        let is_whole = content.starts_with(&MAGIC) && (cfg!(fuzzing) || sum == crc32c(content).to_le_bytes());
        is_whole.then_some(())?;
        let number = |at| array(content, at).map(u32::from_le_bytes);
        let long = |at| array(content, at).map(u64::from_le_bytes);
        let version = number(8)?;
        if version != VERSION {
            return Some(Err(NoSuperblock::Version(version)));
        }
        let (block_bytes, segment_blocks) = (number(48)?, number(52)?);
        let geometry = Geometry::new(block_bytes, u64::from(block_bytes) * u64::from(segment_blocks))?;
        let segments = number(56)?;
        geometry.volume_bytes(segments)?;
        Some(Ok(Self {
            sequence: long(16)?,
            cluster: Uuid::from_bytes(array(content, 24)?),
            volume: VolumeId(number(12)?),
            geometry,
            segments,
            mount_epoch: long(40)?,
        }))
    }

    /// Where this one is written.
    pub(crate) fn offset(&self) -> u64 {
        COPIES[(self.sequence % 2) as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            sequence: 9,
            cluster: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            volume: VolumeId(2),
            geometry: Geometry::new(4096, 256 << 20).unwrap(),
            segments: 4,
            mount_epoch: 3,
        }
    }

    #[test]
    fn bytes_stay_as_they_are() {
        let bytes = superblock().encode();
        let hex: String = bytes[..CONTENT_BYTES + 4].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4d414e544c564f4c01000000020000000900000000000000\
             0102030405060708090a0b0c0d0e0f100300000000000000\
             00100000000001000400000000000000025a499f"
        );
        assert!(bytes[CONTENT_BYTES + 4..].iter().all(|byte| *byte == 0));
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut bytes = superblock().encode();
        bytes[8] = 2;
        assert_eq!(Superblock::decode(&bytes), Err(NoSuperblock::Damaged));
        let sum = crc32c(&bytes[..CONTENT_BYTES]);
        bytes[CONTENT_BYTES..CONTENT_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes), Err(NoSuperblock::Version(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(Superblock::decode(&bytes), Err(NoSuperblock::Damaged));
        }

        #[test]
        fn every_flipped_bit_of_the_content_is_found(at in 0..CONTENT_BYTES + 4, bit in 0u8..8) {
            let mut bytes = superblock().encode();
            bytes[at] ^= 1u8 << bit;
            prop_assert_eq!(Superblock::decode(&bytes), Err(NoSuperblock::Damaged));
        }
    }
}
