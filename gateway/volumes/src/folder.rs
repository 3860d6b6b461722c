//! The files of volumes in a folder: `volume-` and the volume's number.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{decimal::number, place::VolumeId};

const PREFIX: &str = "volume-";

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
}
