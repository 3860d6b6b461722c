//! The files of volumes in a folder: `volume-` and the volume's number. And the folder's lock: a file can be locked only once it is
//! there, so two processes that find an empty folder would each make a volume in it.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{decimal::number, place::VolumeId};

const PREFIX: &str = "volume-";
/// Name of the file whose lock is the folder's.
const LOCK: &str = "lock";

/// The lock of a folder. It ends when this is dropped, and with the process. A process that is stopped keeps it.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "it holds the lock")] File);

impl FolderLock {
    /// Locks a folder; `None` if another process has locked it, or this one has.
    ///
    /// # Errors
    /// As the file system says, also if there is no such folder.
    pub fn take(folder: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(LOCK))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(cause) => Err(cause.into()),
        }
    }
}

/// The file of a volume.
pub fn file_of(folder: &Path, volume: VolumeId) -> PathBuf {
    folder.join(format!("{PREFIX}{volume}"))
}

/// The volumes in a folder, in order. Other files are left out.
///
/// # Errors
/// As the file system says, also if there is no such folder.
pub fn volumes_in(folder: &Path) -> io::Result<Vec<VolumeId>> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let name = file?.file_name();
        let text = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        found.extend(text.and_then(|text| number(text).ok()).map(VolumeId));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["volume-12", "volume-3", "volume-03", "volume-", "volume-x", "other-4", "volume-4294967296"] {
            std::fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(volumes_in(folder.path()).unwrap(), [VolumeId(3), VolumeId(12)]);
        assert!(file_of(folder.path(), VolumeId(12)).exists());
        assert!(volumes_in(&folder.path().join("none")).is_err());
    }

    #[test]
    fn a_folder_is_locked_once() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap().unwrap();
        assert!(FolderLock::take(folder.path()).unwrap().is_none());
        assert_eq!(volumes_in(folder.path()).unwrap(), []);
        drop(lock);
        assert!(FolderLock::take(folder.path()).unwrap().is_some());
        assert!(FolderLock::take(&folder.path().join("none")).is_err());
    }
}
