//! Names of entries and paths inside a namespace: which are refused, and how a key is split into components.

use crate::{
    error::{Error, ErrorCode, Result},
    limits::{KEY_BYTES_MAX, NAME_BYTES_MAX, NAMESPACE_BYTES_MAX, NAMESPACE_BYTES_MIN, PATH_DEPTH_MAX},
};

/// A character that an XML document can hold (XML 1.0, section 2.2): names and messages travel in documents.
pub fn is_xml(character: char) -> bool {
    !matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// Checks one component: not empty, `.` or `..`, no `/`, no character that XML cannot hold, at most [`NAME_BYTES_MAX`]
/// bytes. One such character would make every listing of the directory unreadable for S3 clients.
pub fn check_name(name: &str) -> Result<()> {
    let why = match name {
        "" => "a path component is empty (a doubled or leading slash)",
        "." => "`.` is not a name",
        ".." => "`..` is not a name",
        _ if name.contains('\0') => "a name contains NUL",
        _ if name.contains('/') => "a name contains a slash",
        _ if !name.chars().all(is_xml) => "a name contains a control character, U+FFFE or U+FFFF",
        _ => return check_length("a name", name.len(), "bytes", NAME_BYTES_MAX, ErrorCode::NameTooLong),
    };
    Err(Error::new(ErrorCode::InvalidName, why))
}

fn check_length(of: &str, length: usize, unit: &str, max: usize, code: ErrorCode) -> Result<()> {
    if length <= max {
        return Ok(());
    }
    Err(Error::new(code, format!("{of} has {length} {unit}, at most {max} are allowed")))
}

/// A valid path inside a namespace, by components. The root has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path<'a> {
    components: Vec<&'a str>,
    is_directory: bool,
}

impl<'a> Path<'a> {
    /// Parses a key. A trailing slash names a directory; the empty key is the root. Refuses a leading slash, an empty
    /// component, `.`, `..`, characters that XML cannot hold, and keys, names and depths over their limits.
    pub fn parse(key: &'a str) -> Result<Self> {
        check_length("the key", key.len(), "bytes", KEY_BYTES_MAX, ErrorCode::KeyTooLong)?;
        if key.is_empty() {
            return Ok(Self { components: Vec::new(), is_directory: true });
        }
        let (body, is_directory) = key.strip_suffix('/').map_or((key, false), |body| (body, true));
        let components: Vec<&str> = body.split('/').collect();
        check_length("the path", components.len(), "components", PATH_DEPTH_MAX, ErrorCode::PathTooDeep)?;
        components.iter().try_for_each(|name| check_name(name))?;
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
