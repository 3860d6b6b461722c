//! Percent-encoding. A path is decoded once, here, from the raw request target. No library may normalise `//`, `.` and
//! `..` away or replace invalid UTF-8 before names are validated; the crate's decoder also accepts malformed escapes.

use mantle_types::{Error, ErrorCode, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything except RFC 3986's unreserved characters and the slash.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// Decodes a part of a path. Refuses malformed escapes and invalid UTF-8; NUL is refused later, as a bad name.
pub fn decode(raw: &str) -> Result<String> {
    let bad = |why| Error::new(ErrorCode::InvalidName, format!("the path {why}"));
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad("has a malformed percent-escape")) };
        bytes.push((high << 4 | low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))
}

/// Encodes a key for a listing with `encoding-type=url`.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in ".*") {
            prop_assert_eq!(decode(&encode(&text)).unwrap(), text);
        }
    }

    #[test]
    fn only_unreserved_characters_and_the_slash_stay() {
        for byte in 0..=0x7f_u8 {
            let kept = byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
            let expected = if kept { char::from(byte).to_string() } else { format!("%{byte:02X}") };
            assert_eq!(encode(&char::from(byte).to_string()), expected);
        }
        assert_eq!(encode("é"), "%C3%A9");
    }

    #[test]
    fn nothing_is_normalised_and_bad_escapes_are_refused() {
        assert_eq!(decode("a//b/../%2e/%2F+").unwrap(), "a//b/.././/+");
        for bad in ["%", "%4", "%zz", "%ff", "%c3%28", "%+1"] {
            assert_eq!(decode(bad).unwrap_err().code(), ErrorCode::InvalidName, "{bad}");
        }
    }
}
