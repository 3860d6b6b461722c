//! Reads the checksum from an object's metadata, for listings. A listing has a thousand objects, so this skips the rest
//! of the document instead of parsing it.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{Algorithm, ChecksumKind, KEPT_AS};

/// The algorithm of the checksum that is kept in a document, and what it is the checksum of. As
/// [`Checksum::kept_in`](super::Checksum::kept_in) finds it.
pub fn described_in(document: &str) -> Option<(Algorithm, ChecksumKind)> {
    serde_json::from_str::<Described>(document).ok()?.0
}

struct Described(Option<(Algorithm, ChecksumKind)>);

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Described {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Self(None))
    }
}

impl<'de> Visitor<'de> for Described {
    type Value = Self;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut document: A) -> Result<Self, A::Error> {
        while let Some(Text(name)) = document.next_key()? {
            match name.strip_prefix(KEPT_AS).and_then(Algorithm::named) {
                Some(algorithm) => {
                    let Text(value) = document.next_value()?;
                    self.0 = self.0.or(Some((algorithm, ChecksumKind::of(&value))));
                }
                None => drop(document.next_value::<IgnoredAny>()?),
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::Checksum;

    #[test]
    fn it_is_what_the_whole_document_says() {
        for document in [
            json!({}),
            json!({"colour": "blue", ":own-checksum": true, ":checksum-crc32": "AAAAAA=="}),
            json!({":checksum-sha256": "AAAA-12", ":tagging": "a=b"}),
            json!({":checksum-other": "AAAA"}),
            json!({":checksum-crc32\u{0}": "\"\u{e9}"}),
            json!([":checksum-crc32"]),
            json!(null),
        ] {
            let kept = Checksum::kept_in(Some(&document));
            let expected = kept.map(|kept| (kept.algorithm, ChecksumKind::of(&kept.value)));
            assert_eq!(described_in(&document.to_string()), expected, "{document}");
        }
        assert_eq!(described_in("{"), None);
        let escaped = "{\":checksum-\\u0063rc32\": \"AAAAAA==\"}";
        assert_eq!(described_in(escaped), Some((Algorithm::Crc32, ChecksumKind::FullObject)));
    }
}
