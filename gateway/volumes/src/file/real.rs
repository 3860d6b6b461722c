//! A regular file or a block device, locked as long as it is open. The lock ends with the process, so a process that is stopped
//! keeps it: nobody takes its segments over while it may still write.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, IoSliceMut, Seek, SeekFrom},
    num::NonZeroU64,
    ops::Range,
    os::unix::fs::{FileExt, FileTypeExt},
    path::Path,
};

use rustix::{
    fs::{Advice, FallocateFlags, FlockOperation, fadvise, fallocate, flock, fstatvfs},
    io::{ReadWriteFlags, preadv2, pwritev, retry_on_intr},
};

use super::VolumeFile;
use crate::error::MountError;

/// Most pieces of one system call (`IOV_MAX` of Linux).
const PIECES_MAX: usize = 1024;

/// The file or device of a volume.
#[derive(Debug)]
pub struct RealFile {
    file: File,
    is_device: bool,
}

impl RealFile {
    /// Creates a file, and flushes its name.
    ///
    /// # Errors
    /// `Exists`; `Io`.
    pub fn create(path: &Path) -> Result<Self, MountError> {
        let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = created.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => MountError::Exists,
            _ => cause.into(),
        })?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
        Self::locked(file)
    }

    /// Opens a file or a block device.
    ///
    /// # Errors
    /// `InUse` if another process has it open so, or this one has; `Io`.
    pub fn open(path: &Path) -> Result<Self, MountError> {
        Self::locked(OpenOptions::new().read(true).write(true).open(path)?)
    }

    /// Opens it to read only, without its lock: another process may have it mounted and write to it.
    ///
    /// # Errors
    /// `Io`.
    pub fn open_to_read(path: &Path) -> Result<Self, MountError> {
        let file = File::open(path)?;
        let is_device = file.metadata()?.file_type().is_block_device();
        Ok(Self { file, is_device })
    }

    fn locked(file: File) -> Result<Self, MountError> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|cause| match cause {
            rustix::io::Errno::WOULDBLOCK => MountError::InUse,
            other => io::Error::from(other).into(),
        })?;
        let is_device = file.metadata()?.file_type().is_block_device();
        Ok(Self { file, is_device })
    }

    /// Reserves space by a call like fallocate.
    fn reserve_by(&self, bytes: u64, mut call: impl FnMut(&File, u64) -> rustix::io::Result<()>) -> io::Result<()> {
        let before = self.bytes()?;
        // The call would take what is there, until it finds that there is no more. Others need it too, PostgreSQL for one.
        let system = fstatvfs(&self.file)?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let is_known = system.f_blocks > 0;
        if is_known && free < bytes.saturating_sub(before) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let reserved = retry_on_intr(|| call(&self.file, bytes));
        if reserved.is_err() {
            // Others may have been quicker. Some file systems keep what they found before they failed.
            self.file.set_len(before)?;
        }
        Ok(reserved?)
    }
}

impl VolumeFile for RealFile {
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> usize {
        // A file system that does not know this flag refuses the call: then nothing is cached.
        preadv2(&self.file, &mut [IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    fn forget_cached(&self, range: Range<u64>) {
        // It is advice: if the file system does not take it, the read is from the cache.
        let _ = fadvise(&self.file, range.start, NonZeroU64::new(range.end - range.start), Advice::DontNeed);
    }

    fn will_read(&self, range: Range<u64>) {
        let _ = fadvise(&self.file, range.start, NonZeroU64::new(range.end - range.start), Advice::WillNeed);
    }

    fn write_all_at(&self, mut pieces: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
        // Empty pieces at the front would look like a file that takes no more bytes.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let count = pieces.len().min(PIECES_MAX);
            match pwritev(&self.file, &pieces[..count], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut pieces, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        if self.is_device {
            return if self.bytes()? < bytes { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
        }
        self.reserve_by(bytes, |file, bytes| fallocate(file, FallocateFlags::empty(), 0, bytes))
    }

    fn bytes(&self) -> io::Result<u64> {
        // A device has no length in its metadata.
        (&self.file).seek(SeekFrom::End(0))
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_file_is_locked_while_it_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        let file = RealFile::create(&path).unwrap();
        assert!(matches!(RealFile::create(&path), Err(MountError::Exists)));
        assert!(matches!(RealFile::open(&path), Err(MountError::InUse)));
        assert!(RealFile::open_to_read(&path).is_ok());
        drop(file);
        RealFile::open(&path).unwrap();
    }

    #[test]
    fn pieces_are_written_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealFile::create(&folder.path().join("volume")).unwrap();
        file.reserve(1 << 20).unwrap();
        assert_eq!(file.bytes().unwrap(), 1 << 20);
        // More than one system call takes, an empty one at the front.
        let pieces: Vec<Vec<u8>> = (0..3 * PIECES_MAX).map(|number| vec![number as u8; number % 3]).collect();
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        file.write_all_at(&mut slices, 1000).unwrap();
        file.flush().unwrap();
        let mut read = vec![0; 3 * PIECES_MAX];
        file.read_exact_at(&mut read, 1000).unwrap();
        assert_eq!(read, pieces.concat());
        let mut cached = vec![0; 3 * PIECES_MAX];
        let count = file.read_cached_at(&mut cached, 1000);
        assert_eq!(cached[..count], read[..count]);
        assert_eq!(file.read_exact_at(&mut read, 1 << 20).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(file.bytes().unwrap(), 1 << 20);
    }

    #[test]
    fn a_reservation_that_a_signal_interrupts_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealFile::create(&folder.path().join("volume")).unwrap();
        let mut calls = 0;
        let reserved = file.reserve_by(1 << 20, |file, bytes| {
            calls += 1;
            if calls < 3 { Err(Errno::INTR) } else { fallocate(file, FallocateFlags::empty(), 0, bytes) }
        });
        reserved.unwrap();
        assert_eq!((calls, file.bytes().unwrap()), (3, 1 << 20));
    }

    #[test]
    fn a_reservation_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealFile::create(&folder.path().join("volume")).unwrap();
        file.reserve(1 << 20).unwrap();
        let full = file.reserve_by(2 << 20, |file, bytes| {
            fallocate(file, FallocateFlags::empty(), 0, bytes - 1000)?;
            Err(Errno::NOSPC)
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.bytes().unwrap(), 1 << 20);
        // More than any file system of a test has: it is not even tried.
        let full = file.reserve_by(1 << 60, |_, _| panic!("it takes what others need"));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.bytes().unwrap(), 1 << 20);
    }
}
