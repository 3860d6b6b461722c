//! Small files that are replaced atomically: a reader finds the last value that was written completely, or none.
//!
//! Layout: CRC-32 (4 bytes, little endian) of the rest, then the value in postcard. A value is written to a temporary file,
//! which is flushed and renamed, and the directory is flushed: after a crash at any point the old or the new file is there.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

const CRC_BYTES: usize = 4;

/// The content of a file with this value.
pub fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; CRC_BYTES];
    bytes.extend(postcard::to_stdvec(value).map_err(io::Error::other)?);
    let crc = crc32fast::hash(&bytes[CRC_BYTES..]);
    bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

pub fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let bytes = encode(value)?;
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// `None` if there is no file.
pub fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => bytes.map(Some),
    }
}

/// Reads the value; `None` if there is no file, an error if it is damaged.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let Some(bytes) = read_bytes(path)? else { return Ok(None) };
    let damaged =
        |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged: {why}", path.display()));
    let (crc, body) = bytes.split_first_chunk::<CRC_BYTES>().ok_or_else(|| damaged("it is too short"))?;
    if u32::from_le_bytes(*crc) != crc32fast::hash(body) {
        return Err(damaged("its checksum differs"));
    }
    postcard::from_bytes(body).map(Some).map_err(|e| damaged(&e.to_string()))
}

/// Creates a directory and its missing parents; their names are durable when this returns. Also if they existed: the process
/// that created them may have crashed before it flushed them.
pub fn create_dir(path: &Path) -> io::Result<()> {
    if !path.exists() {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists()) {
            create_dir(parent)?;
        }
        fs::create_dir(path)?;
    }
    sync_parent(path)
}

/// Makes a rename, creation or removal in the file's directory durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().ok_or_else(|| io::Error::other("a file without a directory"))?;
    // A relative path of one name is in the working directory.
    File::open(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_complete_value_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        assert_eq!(read::<u64>(&path).unwrap(), None);
        write(&path, &7u64).unwrap();
        write(&path, &8u64).unwrap();
        // A crash while the next value was being written.
        fs::write(path.with_extension("tmp"), b"par").unwrap();
        assert_eq!(read::<u64>(&path).unwrap(), Some(8));
    }

    #[test]
    fn damage_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        write(&path, &"value".to_owned()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(read::<String>(&path).is_err());
        fs::write(&path, b"x").unwrap();
        assert!(read::<String>(&path).is_err());
    }
}
