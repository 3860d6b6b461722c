//! Block devices for volumes. A device has no name that says what is on it, and a wrong path in the settings must not cost a file
//! system. So a volume is made only on a device that somebody has marked for that. While it is used nobody else may mount it.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

use crate::{
    checksum::crc32c,
    error::MountError,
    file::VolumeFile,
    place::HEAD_BYTES,
    superblock::{SUPERBLOCK_BYTES, Superblock},
    volume::read_superblock,
};

const MAGIC: [u8; 8] = *b"MANTLDEV";
const VERSION: u32 = 1;
/// Behind the version: the checksum.
const CONTENT_BYTES: usize = 12;

/// What is on a device, as far as this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDevice {
    /// A volume.
    Volume(Superblock),
    /// A mark: a volume may be made there.
    Marked,
    /// Something else, or nothing.
    Other,
}

/// The right to use a device. Nobody can mount it, or have another claim, until this is dropped or the process ends.
#[derive(Debug)]
pub struct DeviceClaim(#[expect(dead_code, reason = "it holds the claim")] File);

impl DeviceClaim {
    /// Claims a block device.
    ///
    /// # Errors
    /// `InUse` if it is mounted, or another process has a claim; `Invalid` if it is no block device; `Io`.
    pub fn take(path: &Path) -> Result<Self, MountError> {
        if !std::fs::metadata(path)?.file_type().is_block_device() {
            return Err(MountError::Invalid("it is no block device"));
        }
        // Of a block device this flag means more than of a file: the kernel grants it once.
        let exclusive = OFlags::EXCL.bits().cast_signed();
        match OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path) {
            Ok(file) => Ok(Self(file)),
            Err(busy) if busy.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Err(MountError::InUse),
            Err(cause) => Err(cause.into()),
        }
    }
}

/// Reads what is on a device.
///
/// # Errors
/// `Version` of a volume; `Io`.
pub fn on_device(file: &dyn VolumeFile) -> Result<OnDevice, MountError> {
    if file.bytes()? < HEAD_BYTES {
        return Ok(OnDevice::Other);
    }
    match read_superblock(file) {
        Ok(found) => return Ok(OnDevice::Volume(found)),
        Err(MountError::NoSuperblock) => {}
        Err(cause) => return Err(cause),
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(if bytes == mark() { OnDevice::Marked } else { OnDevice::Other })
}

/// Marks a device: a volume may be made there. What it held is lost.
///
/// # Errors
/// `Io`, also if it has no room for a volume's head.
pub fn mark_device(file: &dyn VolumeFile) -> io::Result<()> {
    file.write_all_at(&mut [IoSlice::new(&[0; HEAD_BYTES as usize])], 0)?;
    file.flush()?;
    file.write_all_at(&mut [IoSlice::new(&mark())], 0)?;
    file.flush()
}

fn mark() -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..CONTENT_BYTES].copy_from_slice(&VERSION.to_le_bytes());
    let sum = crc32c(&bytes[..CONTENT_BYTES]);
    bytes[CONTENT_BYTES..CONTENT_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        file::RealFile,
        place::{Geometry, VolumeId},
        volume::{NewVolume, Volume},
    };

    #[test]
    fn the_mark_stays_as_it_is() {
        let hex: String = mark()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex[..24], "4d414e544c44455601000000");
        assert!(mark()[16..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_device_is_marked_and_then_has_a_volume() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealFile::create(&folder.path().join("device")).unwrap();
        assert_eq!(on_device(&file).unwrap(), OnDevice::Other, "it is too small");
        file.reserve(4 << 20).unwrap();
        file.write_all_at(&mut [IoSlice::new(b"something else")], 1024).unwrap();
        assert_eq!(on_device(&file).unwrap(), OnDevice::Other);
        mark_device(&file).unwrap();
        assert_eq!(on_device(&file).unwrap(), OnDevice::Marked);
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        let new = NewVolume { cluster: Uuid::nil(), volume: VolumeId(3), geometry, segments: 2 };
        Volume::create(&file, new).unwrap();
        assert!(matches!(on_device(&file).unwrap(), OnDevice::Volume(found) if found.volume == VolumeId(3)));
        mark_device(&file).unwrap();
        assert_eq!(on_device(&file).unwrap(), OnDevice::Marked, "the volume is gone");
    }

    #[test]
    fn only_a_block_device_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(matches!(DeviceClaim::take(&path), Err(MountError::Io(_))));
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(DeviceClaim::take(&path), Err(MountError::Invalid(_))));
    }
}
