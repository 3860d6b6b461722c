//! The name rules of `mantle_types::name` for SQL, so that gateway and database refuse the same names (P16).

use mantle_types::{
    ErrorCode,
    name::{check_name, check_namespace_name},
};
use pgrx::prelude::*;

use crate::fault::{Fault, sqlstate};

/// A name without the slash that a directory's has at its end.
pub fn stem(name: &str) -> &str {
    name.strip_suffix('/').unwrap_or(name)
}

/// A text above every name: names have at most 255 bytes, and this is the highest character 64 times, 4 bytes each.
pub fn above_all_names() -> String {
    "\u{10ffff}".repeat(64)
}

/// MT001 or MT002 for a bad name of an object.
#[pg_extern(immutable, parallel_safe)]
fn object_name_fault(name: Option<&str>) -> Fault {
    let Some(name) = name else { return Some(sqlstate(ErrorCode::InvalidName)) };
    check_name(name).err().map(|e| sqlstate(e.code()))
}

/// MT001 or MT002 for a bad name of a directory, which must end in a slash.
#[pg_extern(immutable, parallel_safe)]
fn directory_name_fault(name: Option<&str>) -> Fault {
    let Some(name) = name.and_then(|n| n.strip_suffix('/')) else { return Some(sqlstate(ErrorCode::InvalidName)) };
    check_name(name).err().map(|e| sqlstate(e.code()))
}

/// MT001 or MT002 for a bad name of an entry; with a slash at its end it is a directory's.
#[pg_extern(immutable, parallel_safe)]
fn entry_name_fault(name: Option<&str>) -> Fault {
    match name {
        Some(name) if name.ends_with('/') => directory_name_fault(Some(name)),
        _ => object_name_fault(name),
    }
}

/// MT005 for a bad name of a namespace.
#[pg_extern(immutable, parallel_safe)]
fn namespace_name_fault(name: Option<&str>) -> Fault {
    let Some(name) = name else { return Some(sqlstate(ErrorCode::InvalidNamespaceName)) };
    check_namespace_name(name).err().map(|e| sqlstate(e.code()))
}

/// The smallest string above all strings with this prefix, in byte order (COLLATE "C"; for UTF-8 that is code point
/// order). NULL if there is none.
#[pg_extern(immutable, parallel_safe, strict)]
pub fn prefix_end(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // D800..DFFF are not characters; 10FFFF is the last code point.
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            c => char::from_u32(c as u32 + 1),
        };
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::prefix_end;

    #[test]
    fn prefix_ends() {
        assert_eq!(prefix_end("ab").as_deref(), Some("ac"));
        assert_eq!(prefix_end("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(prefix_end(""), None);
        assert_eq!(prefix_end("\u{10ffff}"), None);
    }
}
