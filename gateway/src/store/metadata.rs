//! The JSON document that is kept with an entry: the user's metadata, headers, tags, checksums. It is parsed only when
//! somebody needs it, because a page has a thousand entries, and shows little of each.

use std::{error::Error, sync::OnceLock};

use serde_json::Value;
use tokio_postgres::types::{FromSql, Type};

/// The version of the binary form of `jsonb`.
const JSONB_VERSION: u8 = 1;

#[derive(Clone, Debug)]
pub struct Metadata {
    text: Box<str>,
    /// The document, once it was read; `None` if it cannot be.
    document: OnceLock<Option<Value>>,
}

impl Metadata {
    /// The document as it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn document(&self) -> Option<&Value> {
        self.document.get_or_init(|| read(&self.text)).as_ref()
    }

    pub fn into_document(self) -> Option<Value> {
        self.document.into_inner().unwrap_or_else(|| read(&self.text))
    }
}

fn read(text: &str) -> Option<Value> {
    let document = serde_json::from_str(text);
    document.inspect_err(|cause| tracing::error!(%cause, "an entry's metadata cannot be read")).ok()
}

impl<'a> FromSql<'a> for Metadata {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let text = raw.strip_prefix(&[JSONB_VERSION]).ok_or("jsonb of another version")?;
        Ok(Self { text: std::str::from_utf8(text)?.into(), document: OnceLock::new() })
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::JSONB
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_read_once_it_is_asked_for() {
        let metadata = Metadata::from_sql(&Type::JSONB, b"\x01{\"a\": 1}").unwrap();
        assert_eq!(metadata.text(), "{\"a\": 1}");
        assert_eq!(metadata.clone().into_document(), Some(json!({"a": 1})));
        assert_eq!(metadata.document(), Some(&json!({"a": 1})));
        assert_eq!(metadata.into_document(), Some(json!({"a": 1})));
    }

    #[test]
    fn what_is_no_document_of_this_version_is_refused() {
        for raw in [&b""[..], b"\x02{}", b"\x01\xff"] {
            assert!(Metadata::from_sql(&Type::JSONB, raw).is_err(), "{raw:?}");
        }
        assert_eq!(Metadata::from_sql(&Type::JSONB, b"\x01{").unwrap().document(), None);
    }
}
