//! Objects' bytes in volumes: the part that one host does by itself. It knows no database and no protocol. What it needs from the
//! database comes in as plain values: which segments are leased, which extents rows name, new generations, and which extents a
//! durable delete has freed. It exists because a new file for each object changes the file system's metadata, which the flush of
//! the object then has to write too.
//!
//! A volume is a file or a block device. It has segments, and each is leased to one store as a whole. A segment has blocks. An
//! object's bytes are one extent or a few: a header, a checksum for each 4 KiB, the data. Writes have no order among each other, no
//! file is made for an object, and free blocks are used again at once. A write is done when its bytes are flushed. Checksums are
//! seeded with the write's generation, so a read finds what a crash left incomplete. (After Cheetah, EuroSys '25, sections 3 to 5.)
//!
//! A layer imports only itself and the layers below it:
//!
//! - `scrub`: reads everything again, slowly
//! - `store`: puts, gets and frees over all volumes
//! - `lane`: the queue of a volume's writes, which share flushes
//! - `allocator`: the blocks of a volume's segments
//! - `space`: how full a volume is
//! - `segment`: the bitmap of one segment
//! - `device`: block devices for volumes
//! - `volume`: a mounted volume
//! - `file`: the calls of a file or device that a volume needs
//! - `folder`: the files of volumes in a folder, and its lock
//! - `locator`: the text that metadata keep
//! - `superblock`: the format of a volume's head
//! - `extent`: the format of an extent
//! - `error`: what can go wrong
//! - `checksum`: seeded checksums
//! - `place`: volumes, segments, blocks
//! - `generation`: the name of one write
//! - `decimal`: strict numbers in text

mod allocator;
mod checksum;
mod decimal;
mod device;
mod error;
mod extent;
mod file;
mod folder;
mod generation;
mod lane;
mod locator;
mod place;
mod scrub;
mod segment;
mod space;
mod store;
mod superblock;
#[cfg(test)]
mod tests;
mod volume;

pub use checksum::UNIT_BYTES;
pub use decimal::Malformed;
pub use device::{DeviceClaim, OnDevice, mark_device, on_device};
pub use error::{Damage, Error, MountError, Result};
pub use extent::{EXTENT_BYTES_MAX, HEADER_BYTES, Header, blocks_for, verify};
pub use file::{RealFile, VolumeFile};
pub use folder::{FolderLock, file_of, volumes_in};
pub use generation::Generation;
pub use locator::{LOCATOR_EXTENTS_MIN, Locator, PREFIX, Piece, ranges};
pub use place::{
    BLOCK_BYTES_DEFAULT, Extent, Geometry, HEAD_BYTES, Lease, Run, SEGMENT_BYTES_DEFAULT, SegmentId, VolumeId,
};
pub use scrub::{Finding, Scrub, ScrubCursor};
pub use space::{Space, Usage};
pub use store::{NewBytes, Options, Reader, Store, Stored, Writer};
pub use superblock::{NoSuperblock, Superblock};
pub use volume::{Expected, NewVolume, Volume};
