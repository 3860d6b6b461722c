//! What can go wrong. By the variant a caller knows whether a put may be tried elsewhere, whether bytes are lost, or whether
//! they were deleted meanwhile.

use std::{io, sync::Arc};

use crate::{
    generation::Generation,
    place::{Extent, SegmentId, VolumeId},
};

/// What the store answers instead of bytes.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes on the disk are not those that were written. Or they were freed, and a later write has begun inside the
    /// extent. If no metadata name the extent any more, the second is the case, and nothing is damaged.
    #[error("the bytes of {extent} do not match their checksums: {what}")]
    Corrupt {
        /// The extent whose bytes they are.
        extent: Extent,
        /// What does not match.
        what: Damage,
    },
    /// Another write's bytes begin at this place: the extent was freed and its blocks used again.
    #[error("at {extent} are the bytes of generation {found}, not of {expected}")]
    Foreign {
        /// The extent that was asked for.
        extent: Extent,
        /// The generation that was asked for.
        expected: Generation,
        /// The generation that is there.
        found: Generation,
    },
    /// No volume has this much room in its leased segments.
    #[error("no room for {bytes} bytes")]
    Full {
        /// Bytes that were wanted.
        bytes: u64,
    },
    /// A flush of this volume failed. What the disk holds is unknown, so nothing is written until the volume is mounted again.
    #[error("volume {0} is read-only since a flush failed")]
    ReadOnly(VolumeId),
    /// This volume is not mounted here.
    #[error("volume {0} is not mounted here")]
    NotMounted(VolumeId),
    /// The segment is not leased to this store, or not any more.
    #[error("segment {0} is not leased")]
    NotLeased(SegmentId),
    /// A place outside of the volume, a range outside of the object, or an extent that cannot be.
    #[error("{0}")]
    Invalid(&'static str),
    /// A stream of bytes is longer or shorter than was announced.
    #[error("{announced} bytes were announced, and not that many came")]
    Size {
        /// Bytes that were announced.
        announced: u64,
    },
    /// Blocks were to be freed that are free, or freed already. Nothing was changed.
    #[error("{0} is not in use")]
    NotUsed(Extent),
    /// Rows name the same blocks for different extents.
    #[error("two extents overlap in segment {segment} at block {block}")]
    Overlap {
        /// The segment.
        segment: SegmentId,
        /// First block of the second extent.
        block: u32,
    },
    /// A read or write failed.
    #[error("input or output failed: {0}")]
    Io(Arc<io::Error>),
}

/// What of an extent does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The header is none, or its checksum is wrong.
    #[error("the header")]
    Header,
    /// The header says another length.
    #[error("the header's length")]
    Length,
    /// The checksum of 4 KiB of data.
    #[error("unit {0}")]
    Unit(u32),
}

/// Why a volume cannot be created, mounted or grown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// Another process has it.
    #[error("another process has the volume open")]
    InUse,
    /// Neither copy of the superblock is whole.
    #[error("there is no whole superblock")]
    NoSuperblock,
    /// The superblock is of a release that this one does not know.
    #[error("format version {0} of the volume is not known")]
    Version(u32),
    /// It belongs to another cluster.
    #[error("the volume belongs to cluster {0}")]
    OtherCluster(uuid::Uuid),
    /// It is another volume of this cluster.
    #[error("it is volume {0}")]
    OtherVolume(VolumeId),
    /// An old copy: the volume was mounted since it was made.
    #[error("an old copy of the volume: its mount epoch is {found}, the database knows {known}")]
    OldCopy {
        /// The copy's mount epoch.
        found: u64,
        /// What the database knows.
        known: u64,
    },
    /// The file is shorter than its superblock says.
    #[error("the file has {found} bytes of {wanted}")]
    Truncated {
        /// Bytes that are there.
        found: u64,
        /// Bytes that the superblock says.
        wanted: u64,
    },
    /// Sizes that cannot be.
    #[error("{0}")]
    Invalid(&'static str),
    /// A volume is there already.
    #[error("there is a volume already")]
    Exists,
    /// Reading, writing or reserving failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<io::Error> for Error {
    fn from(cause: io::Error) -> Self {
        Self::Io(Arc::new(cause))
    }
}

/// What the store's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
