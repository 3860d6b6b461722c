//! Strict decimal numbers in text: each number has one spelling, so equal texts are equal values and PostgreSQL can compare
//! them.

use std::str::FromStr;

/// A text that is not of the form that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed locator")]
pub struct Malformed;

/// A number without sign and leading zeros.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, Malformed> {
    let is_canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    if is_canonical { text.parse().map_err(|_| Malformed) } else { Err(Malformed) }
}

pub(crate) fn split(text: &str, separator: char) -> Result<(&str, &str), Malformed> {
    text.split_once(separator).ok_or(Malformed)
}
