//! What a disk writes. (`/proc/PID/io` does not tell: it counts the whole page of the kernel's cache that a write touches, and on
//! recent kernels such a page may have a MiB.)

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::Result;
use rustix::fs::{major, minor};

/// Bytes of a sector, in the kernel's statistics of any disk.
const SECTOR_BYTES: f64 = 512.0;

/// Bytes that the disk below a folder has written since the system's start, for all processes; no number if the file system does
/// not say which disk that is.
pub fn written_below(folder: &Path) -> Result<f64> {
    let device = fs::metadata(folder)?.dev();
    let file = PathBuf::from(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device)));
    Ok(fs::read_to_string(file)
        .ok()
        .and_then(|text| sectors_written(&text))
        .map_or(f64::NAN, |count| count * SECTOR_BYTES))
}

fn sectors_written(stat: &str) -> Option<f64> {
    stat.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_sectors_are_the_seventh_number() {
        assert_eq!(sectors_written("  1 2 3 4\t5 6 7 8 9\n"), Some(7.0));
        assert_eq!(sectors_written("1 2 3"), None);
    }
}
