//! Files that hold secrets: passwords, keys of users. A file that its group or others may read is refused, so that a
//! wrong mode is noticed when the service starts.

use std::{fs::File, io::Read, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result, ensure};

/// The text of a file.
///
/// # Errors
/// It cannot be read, is no UTF-8, or its mode gives group or others anything.
pub fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let unreadable = || format!("cannot read {shown}");
    let mut file = File::open(path).with_context(unreadable)?;
    let mode = file.metadata().with_context(unreadable)?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{shown} holds secrets and must have mode 0600, not {:04o}", mode & 0o7777);
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(unreadable)?;
    Ok(text)
}

/// The password that is a file's only line.
///
/// # Errors
/// As [`read`]; also if it is empty.
pub fn password(path: &Path) -> Result<String> {
    let text = read(path)?;
    let password = text.trim_end_matches(['\r', '\n']);
    ensure!(!password.is_empty(), "{} is empty", path.display());
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let write = |text: &str| fs::write(&path, text).unwrap();
        let chmod = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        write("s3cret\r\n");
        for (mode, is_accepted) in [(0o640, false), (0o604, false), (0o620, false), (0o400, true), (0o600, true)] {
            chmod(mode);
            for read in [read, password] {
                let answer = read(&path);
                assert_eq!(answer.is_ok(), is_accepted, "{mode:o}");
                assert!(answer.err().is_none_or(|refusal| !format!("{refusal:?}").contains("s3cret")));
            }
        }
        assert_eq!((read(&path).unwrap().as_str(), password(&path).unwrap().as_str()), ("s3cret\r\n", "s3cret"));
        assert!(read(&folder.path().join("absent")).is_err());
        write("\n");
        assert!(password(&path).is_err(), "an empty password");
    }
}
