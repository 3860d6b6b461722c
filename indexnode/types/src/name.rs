//! Names of entries and paths inside a namespace: which are refused, and how a key is split into components.

use crate::{
    error::{Error, ErrorCode, Result},
    limits::{KEY_BYTES_MAX, NAME_BYTES_MAX, NAMESPACE_BYTES_MAX, NAMESPACE_BYTES_MIN, PATH_DEPTH_MAX},
};

/// Checks one component: not empty, `.` or `..`, no `/` or NUL, at most [`NAME_BYTES_MAX`] bytes.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(ErrorCode::InvalidName, "a path component is empty (a doubled or leading slash)"));
    }
    if name == "." || name == ".." {
        return Err(Error::new(ErrorCode::InvalidName, format!("`{name}` is not a name")));
    }
    if name.contains('\0') {
        return Err(Error::new(ErrorCode::InvalidName, "a name contains NUL"));
    }
    if name.contains('/') {
        return Err(Error::new(ErrorCode::InvalidName, "a name contains a slash"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::NameTooLong,
            format!("a name has {} bytes, at most {NAME_BYTES_MAX} are allowed", name.len()),
        ));
    }
    Ok(())
}

/// A valid path inside a namespace, by components. The root has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path<'a> {
    components: Vec<&'a str>,
    is_directory: bool,
}

impl<'a> Path<'a> {
    /// Parses a key. A trailing slash names a directory; the empty key is the root. Refuses a leading slash, an empty
    /// component, `.`, `..`, NUL, and keys, names and depths over their limits.
    pub fn parse(key: &'a str) -> Result<Self> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::new(
                ErrorCode::KeyTooLong,
                format!("the key has {} bytes, at most {KEY_BYTES_MAX} are allowed", key.len()),
            ));
        }
        if key.is_empty() {
            return Ok(Self { components: Vec::new(), is_directory: true });
        }
        let (body, is_directory) = match key.strip_suffix('/') {
            Some(body) => (body, true),
            None => (key, false),
        };
        let components: Vec<&str> = body.split('/').collect();
        if components.len() > PATH_DEPTH_MAX {
            return Err(Error::new(
                ErrorCode::PathTooDeep,
                format!("the path has {} components, at most {PATH_DEPTH_MAX} are allowed", components.len()),
            ));
        }
        for name in &components {
            check_name(name)?;
        }
        Ok(Self { components, is_directory })
    }

    /// The names on the path, from the root's child down.
    pub fn components(&self) -> &[&'a str] {
        &self.components
    }

    /// True if the key ended in a slash, or was empty (the root).
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// True for the namespace's root.
    pub fn is_root(&self) -> bool {
        self.components.is_empty()
    }

    /// The last component and those before it; `None` for the root.
    pub fn split_last(&self) -> Option<(&'a str, &[&'a str])> {
        self.components.split_last().map(|(last, parents)| (*last, parents))
    }
}

/// Checks a namespace (bucket) name by S3's rules: 3–63 of `a-z 0-9 - .`, a letter or digit at both ends, no `..`, not
/// the form of an IPv4 address.
pub fn check_namespace_name(name: &str) -> Result<()> {
    let refuse = |why: &str| Err(Error::new(ErrorCode::InvalidNamespaceName, format!("namespace name: {why}")));
    if !(NAMESPACE_BYTES_MIN..=NAMESPACE_BYTES_MAX).contains(&name.len()) {
        return refuse("3 to 63 characters are allowed");
    }
    if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.') {
        return refuse("only a-z, 0-9, hyphen and dot are allowed");
    }
    let alphanumeric = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    if !alphanumeric(name.bytes().next()) || !alphanumeric(name.bytes().last()) {
        return refuse("it must begin and end with a letter or a digit");
    }
    if name.contains("..") || name.parse::<std::net::Ipv4Addr>().is_ok() {
        return refuse("adjacent dots and IPv4 addresses are not allowed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(key: &str) -> ErrorCode {
        Path::parse(key).unwrap_err().code()
    }

    #[test]
    fn keys_split_into_components() {
        let p = Path::parse("usr/share/doc/").unwrap();
        assert_eq!(p.components(), ["usr", "share", "doc"]);
        assert!(p.is_directory());
        let p = Path::parse("a").unwrap();
        assert_eq!(p.split_last(), Some(("a", &[][..])));
        assert!(!p.is_directory());
        assert!(Path::parse("").unwrap().is_root());
    }

    #[test]
    fn bad_keys_are_refused() {
        for key in ["/", "/a", "a//b", "a//", ".", "..", "a/./b", "a/../b", "a/..", "a\0b"] {
            assert_eq!(code(key), ErrorCode::InvalidName, "{key:?}");
        }
        assert_eq!(code(&"n".repeat(256)), ErrorCode::NameTooLong);
        assert_eq!(code(&"n/".repeat(129)), ErrorCode::PathTooDeep);
        assert_eq!(code(&"n".repeat(1025)), ErrorCode::KeyTooLong);
        assert!(Path::parse(&"n".repeat(255)).is_ok());
    }

    #[test]
    fn namespace_names() {
        for name in ["abc", "debian", "a.b-c", "0a0"] {
            assert!(check_namespace_name(name).is_ok(), "{name}");
        }
        for name in ["ab", "Abc", "a_b", "-ab", "ab-", "a..b", "127.0.0.1", &"a".repeat(64), "a/b", "äbc"] {
            assert!(check_namespace_name(name).is_err(), "{name}");
        }
    }
}
