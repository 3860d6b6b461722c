//! TOML files that hold secrets: users' keys, keys of a bucket. They are refused if group or others may read them.

use std::path::Path;

use anyhow::Context;
use serde::de::DeserializeOwned;

/// Reads a TOML file that is unreadable to group and others.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = mantle_tls::secret_file::read(path)?;
    parse(&text).with_context(|| format!("{} is not a valid file of secrets", path.display()))
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
        for (mode, is_accepted) in [(0o600, true), (0o640, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read::<BTreeMap<String, String>>(&path).is_ok(), is_accepted, "{mode:o}");
        }
    }

    #[test]
    fn an_error_shows_no_secret() {
        let error = parse::<BTreeMap<String, String>>("key = s3cret").unwrap_err();
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}
