//! Percent-encoding. Paths are decoded by hand, once, from the raw request target: nothing between the socket and the
//! validation of names may normalise `//`, `.` and `..` away or replace invalid UTF-8.

use mantle_types::{Error, ErrorCode, Result};

/// Decodes a part of a path. Refuses malformed escapes and what is not UTF-8; NUL is refused later, as a bad name.
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

/// Encodes a key for a listing with `encoding-type=url`: everything but RFC 3986's unreserved characters and the slash.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
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
    fn nothing_is_normalised_and_bad_escapes_are_refused() {
        assert_eq!(decode("a//b/../%2e/%2F+").unwrap(), "a//b/.././/+");
        for bad in ["%", "%4", "%zz", "%ff", "%c3%28", "%+1"] {
            assert_eq!(decode(bad).unwrap_err().code(), ErrorCode::InvalidName, "{bad}");
        }
    }
}
