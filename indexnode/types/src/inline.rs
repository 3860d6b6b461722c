//! The locator of bytes that are inside PostgreSQL, beside their object's row (P62): `inline:<number>`. The number is an id that the
//! write got and that nothing else has.

use crate::EntryId;

/// The beginning of each locator of bytes inside PostgreSQL.
pub const INLINE_LOCATOR_PREFIX: &str = "inline:";

/// Whether a locator is of bytes inside PostgreSQL.
pub fn is_inline(locator: &str) -> bool {
    locator.starts_with(INLINE_LOCATOR_PREFIX)
}

/// The number in a locator, decimal without leading zeros. `None` for any other text.
pub fn inline_number(locator: &str) -> Option<i64> {
    let number = locator.strip_prefix(INLINE_LOCATOR_PREFIX)?;
    let is_canonical = !number.starts_with('0') && number.bytes().all(|byte| byte.is_ascii_digit());
    if is_canonical { number.parse().ok() } else { None }
}

/// The locator of bytes that a write with this id keeps inside PostgreSQL.
pub fn inline_locator(id: EntryId) -> String {
    format!("{INLINE_LOCATOR_PREFIX}{}", id.as_i64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locator_names_its_number() {
        for number in [1, 1_048_577, i64::MAX] {
            assert_eq!(inline_number(&inline_locator(number.into())), Some(number));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "inline:",
            "inline:0",
            "inline:07",
            "inline:-7",
            "inline:+7",
            "inline:7 ",
            "inline:9223372036854775808",
            "v1:7",
        ] {
            assert_eq!(inline_number(text), None, "{text}");
        }
        assert!(is_inline("inline:x") && !is_inline("v1:1.2.3/4"));
    }
}
