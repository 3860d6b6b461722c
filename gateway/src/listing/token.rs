//! Continuation tokens: a position, opaque to clients. They carry no authority, because each page checks permissions
//! again.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use mantle_types::{Error, ErrorCode, Result};

use super::After;

const VERSION: u8 = 1;
const KEY: u8 = b'k';
const PREFIX: u8 = b'p';

pub fn encode_token(position: &After) -> String {
    let (kind, text) = match position {
        After::Start => (KEY, ""),
        After::Key(key) => (KEY, key.as_str()),
        After::Prefix(common) => (PREFIX, common.as_str()),
    };
    URL_SAFE_NO_PAD.encode([&[VERSION, kind], text.as_bytes()].concat())
}

pub fn decode_token(token: &str) -> Result<After> {
    let position = || {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (head, text) = bytes.split_first_chunk::<2>()?;
        // No key has NUL, and PostgreSQL cannot take it.
        let text = std::str::from_utf8(text).ok().filter(|text| !text.contains('\0'))?.to_owned();
        match *head {
            [VERSION, KEY] if text.is_empty() => Some(After::Start),
            [VERSION, KEY] => Some(After::Key(text)),
            [VERSION, PREFIX] => Some(After::Prefix(text)),
            _ => None,
        }
    };
    position().ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "the continuation token is not one of ours"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_round_trip(text in "[^\0]*", prefix: bool) {
            let position = match (prefix, text.is_empty()) {
                (true, _) => After::Prefix(text),
                (false, true) => After::Start,
                (false, false) => After::Key(text),
            };
            prop_assert_eq!(decode_token(&encode_token(&position)).unwrap(), position);
        }

        #[test]
        fn garbage_is_refused(token in "[^A-Za-z0-9_-]{1,20}") {
            prop_assert_eq!(decode_token(&token).unwrap_err().code(), ErrorCode::InvalidArgument);
        }
    }

    #[test]
    fn other_versions_and_kinds_are_refused() {
        for bytes in
            [&[][..], &[1], &[2, b'k', b'a'], &[1, b'x', b'a'], &[1, b'k', 0xff], &[1, b'k', b'a', 0], &[1, b'p', 0]]
        {
            assert!(decode_token(&URL_SAFE_NO_PAD.encode(bytes)).is_err(), "{bytes:?}");
        }
    }

    /// docs/formats.md: clients keep tokens over an upgrade.
    #[test]
    fn tokens_stay_as_they_are() {
        let positions = [After::Start, After::Key("a/b".to_owned()), After::Prefix("a/".to_owned())];
        for (position, token) in positions.iter().zip(["AWs", "AWthL2I", "AXBhLw"]) {
            assert_eq!(encode_token(position), token, "another format needs another VERSION");
            assert_eq!(&decode_token(token).unwrap(), position);
        }
    }
}
