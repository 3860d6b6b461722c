//! Reads files that hold secrets. They are refused if group or others may read them.

use std::{os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;

/// Reads a TOML file that is unreadable to group and others.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let shown = path.display();
    let mode = std::fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{shown} holds secrets and must have mode 0600, not {:04o}", mode & 0o7777);
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    parse(&text).with_context(|| format!("{shown} is not a valid file of secrets"))
}

/// The parser's error quotes the line, which may hold a secret. Only its position is reported.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|e| match e.span() {
        Some(span) => anyhow::anyhow!("{} (at byte {})", e.message(), span.start),
        None => anyhow::anyhow!("{}", e.message()),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.toml");
        fs::write(&path, "key = \"s3cret\"").unwrap();
        for (mode, is_accepted) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read::<BTreeMap<String, String>>(&path).is_ok(), is_accepted, "{mode:o}");
        }
        assert!(read::<BTreeMap<String, String>>(&folder.path().join("absent")).is_err());
    }

    #[test]
    fn an_error_shows_no_secret() {
        let error = parse::<BTreeMap<String, String>>("key = s3cret").unwrap_err();
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}
