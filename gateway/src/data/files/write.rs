//! Writes the file of an object that comes in one piece. The file's name is new and no metadata refer to it yet, so it
//! is written under its final name. If a crash leaves an incomplete file, the sweeper removes it, as any bytes that no
//! metadata names. A temporary name and a rename would need one more commit of the file system's journal.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use super::super::folder::{create_folder, sync_folder};

/// Writes a new file, and flushes it and its name. On an error no file remains.
///
/// # Errors
/// `AlreadyExists` if there is such a file, which stays as it is.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = match File::create_new(path) {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {
            create_folder(folder)?;
            File::create_new(path)?
        }
        created => created?,
    };
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| sync_folder(folder));
    if written.is_err() {
        // If that fails too, the sweeper removes it.
        let _ = fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_with_the_folders_above_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["objects/00/a", "objects/00/b", "objects/01/a"] {
            let path = folder.path().join(name);
            write_new(&path, name.as_bytes()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), name.as_bytes());
        }
    }

    #[test]
    fn many_writers_create_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let path = folder.path().join(format!("objects/00/{number}"));
                scope.spawn(move || write_new(&path, b"x").unwrap());
            }
        });
        assert_eq!(fs::read_dir(folder.path().join("objects/00")).unwrap().count(), 8);
    }

    #[test]
    fn bytes_are_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_new(&path, b"first").unwrap();
        assert_eq!(write_new(&path, b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        // A folder that cannot be created is an error, too.
        assert!(write_new(&path.join("below"), b"x").is_err());
    }
}
