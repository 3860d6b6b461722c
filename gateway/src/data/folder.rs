//! Folders whose names are on the disk before anything in them counts: a file that is flushed is lost if the name of its folder
//! is not.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// Creates a folder and those above it, and flushes their names.
///
/// # Errors
/// As the file system says.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    let Some(above) = above(folder) else { return Ok(()) };
    let was_there = match fs::create_dir(folder) {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {
            create_folder(above)?;
            is_there(fs::create_dir(folder))?
        }
        created => is_there(created)?,
    };
    match sync_folder(above) {
        // This account has made nothing there that it could not read afterwards, so somebody else has made the folder.
        Err(denied) if was_there && denied.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        // Also if another has created it: that it is there does not say that its name is flushed.
        flushed => flushed,
    }
}

/// The folder that has this one's name; `None` for the root.
fn above(folder: &Path) -> Option<&Path> {
    let above = folder.parent()?;
    Some(if above.as_os_str().is_empty() { Path::new(".") } else { above })
}

/// Whether there was a folder or file of this name before.
fn is_there(created: io::Result<()>) -> io::Result<bool> {
    match created {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
        Err(error) => Err(error),
    }
}

/// Flushes the names in a folder.
///
/// # Errors
/// As the file system says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()?;
    #[cfg(test)]
    FLUSHED.with_borrow_mut(|flushed| flushed.push(folder.to_owned()));
    Ok(())
}

#[cfg(test)]
thread_local! {
    /// Folders that this thread has flushed.
    pub static FLUSHED: std::cell::RefCell<Vec<std::path::PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_each_folder_is_flushed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        create_folder(&path).unwrap();
        assert!(path.is_dir());
        assert!(FLUSHED.take().ends_with(&[folder.path().to_owned(), folder.path().join("a")]));
        create_folder(&path).unwrap();
        assert_eq!(FLUSHED.take(), [folder.path().join("a")], "another may have created it");
        fs::write(path.join("file"), b"x").unwrap();
        assert!(create_folder(&path.join("file/below")).is_err());
        assert_eq!((above(Path::new("a")), above(Path::new("/"))), (Some(Path::new(".")), None));
    }
}
