//! Files of uploads that were interrupted. `object_store` first writes a file under its name with `#` and a number, and
//! renames it at the end. Its listings leave such files out, so the sweeper does not find them there.

use std::{ffi::OsStr, fs, io, path::Path, time::SystemTime};

fn is_staged(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Removes them from the subdirectories of a folder if they were last written before then; returns how many.
pub(super) fn remove(folder: &Path, before: SystemTime) -> io::Result<u64> {
    let subdirectories = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    let mut removed = 0;
    for subdirectory in subdirectories {
        let subdirectory = subdirectory?;
        if !subdirectory.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(subdirectory.path())? {
            let file = file?;
            if is_staged(&file.file_name()) && remove_if_old(&file, before)? {
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// The upload may have ended, or another gateway may have removed the file, since the folder was read.
fn remove_if_old(file: &fs::DirEntry, before: SystemTime) -> io::Result<bool> {
    let removed =
        file.metadata().and_then(|metadata| metadata.modified()).and_then(|modified| match modified < before {
            true => fs::remove_file(file.path()).map(|()| true),
            false => Ok(false),
        });
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn old_staged_files_are_removed_and_no_others() {
        let folder = tempfile::TempDir::new().unwrap();
        assert_eq!(remove(&folder.path().join("absent"), SystemTime::now()).unwrap(), 0);
        let subdirectory = folder.path().join("00");
        fs::create_dir(&subdirectory).unwrap();
        let old = SystemTime::now() - Duration::from_secs(100);
        for (name, modified) in [("a", old), ("a#1", old), ("b#12", old), ("c#", old), ("d#1", SystemTime::now())] {
            fs::File::create(subdirectory.join(name)).unwrap().set_modified(modified).unwrap();
        }
        assert_eq!(remove(folder.path(), SystemTime::now() - Duration::from_secs(50)).unwrap(), 2);
        let left = fs::read_dir(&subdirectory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["a", "c#", "d#1"]);
    }
}
