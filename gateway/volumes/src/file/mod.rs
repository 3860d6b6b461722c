//! What the store needs of a file or block device, and nothing else. A test puts a faulty one under it.

#[cfg(test)]
pub(crate) mod faulty;
mod real;

use std::{
    io::{self, IoSlice},
    ops::Range,
};

pub use real::RealFile;

/// A file at fixed places of which bytes are read and written. Reads see what was written before; what a crash leaves is known
/// only of bytes that a flush was for. Calls may come from several threads.
pub trait VolumeFile: Send + Sync + 'static {
    /// Fills the buffer from this place on. May wait for the disk.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;

    /// Reads the beginning of what is asked for, as far as that needs no disk; returns how many bytes.
    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> usize;

    /// Lets the next read of this range come from the disk. Nothing is lost by it, and it may do nothing.
    fn forget_cached(&self, _range: Range<u64>) {}

    /// Begins to read this range from the disk, for calls that come soon. It is advice, and may do nothing.
    fn will_read(&self, _range: Range<u64>) {}

    /// Writes these pieces one after the other. May wait for the disk. If it fails, any part may be written.
    ///
    /// # Errors
    /// As the file system says.
    fn write_all_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()>;

    /// Waits until everything that was written is on the disk. If it fails, what the disk holds is unknown, and a later flush may
    /// succeed without having written it.
    ///
    /// # Errors
    /// As the file system says.
    fn flush(&self) -> io::Result<()>;

    /// Makes the file so long at least, with its space reserved. A device is as long as it is. The new size is on the disk after the
    /// next flush.
    ///
    /// # Errors
    /// `StorageFull` if there is no such space. After an error the file is as long as before.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// How long it is, in bytes.
    ///
    /// # Errors
    /// As the file system says.
    fn bytes(&self) -> io::Result<u64>;
}
