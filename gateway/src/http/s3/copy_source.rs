//! The source that a header names: `/bucket/key`, encoded.

use http::HeaderMap;
use mantle_types::{Error, ErrorCode, Result};

use super::operation::ONLY_VERSION;
use crate::http::percent;

const VERSION: &str = "?versionId=";

/// Bucket and key in a header. They are decoded once, as the path of a request is.
pub(super) fn read(headers: &HeaderMap, name: &'static str) -> Result<(String, String)> {
    let invalid = |why: &str| Error::new(ErrorCode::InvalidArgument, format!("{name} {why}"));
    let text = headers.get(name).ok_or_else(|| invalid("is missing"))?.to_str();
    let text = text.map_err(|_| invalid("is not text"))?;
    let (path, version) = text.split_once(VERSION).unwrap_or((text, ONLY_VERSION));
    if version != ONLY_VERSION {
        return Err(Error::new(ErrorCode::InvalidArgument, "Invalid version id specified"));
    }
    let decoded = percent::decode(path)?;
    let path = decoded.strip_prefix('/').unwrap_or(&decoded);
    match path.split_once('/') {
        Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => Ok((bucket.to_owned(), key.to_owned())),
        _ => Err(invalid("must have the form /bucket/key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_decoded_once() {
        let read = |text: &str| {
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static("x-source"), text.parse().unwrap())]);
            read(&headers, "x-source").map_err(|e| e.code())
        };
        let place = |bucket: &str, key: &str| Ok((bucket.to_owned(), key.to_owned()));
        assert_eq!(read("/b/a%20b/c%2F"), place("b", "a b/c/"));
        assert_eq!(read("b/a+b%2520"), place("b", "a+b%20"));
        assert_eq!(read("b/k?versionId=null"), place("b", "k"));
        for bad in ["/b/", "/b", "", "//k", "b/k?versionId=3"] {
            assert_eq!(read(bad), Err(ErrorCode::InvalidArgument), "{bad}");
        }
    }
}
