//! Every parser of S3 that reads a client's bytes. Each answers or refuses, whatever the bytes are, and what it accepts keeps
//! what the modules behind it rely on. Called by the property tests in [`super::hostile`], and by the fuzz targets in
//! `gateway/fuzz`, each with bytes of its own kind.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use mantle_types::name::is_xml;

use super::{
    authentication, checksums, chunked, conditions::Conditions, copy, copy_source, document, headers, multipart,
    operation, presigned, tagging,
};
use crate::{
    http::{hosts::Hosts, percent},
    listing::{After, decode_token, encode_token},
};

/// The head of a request, in words and lines: `METHOD target`, then `name: value`.
#[cfg_attr(test, expect(dead_code, reason = "only the fuzz target reads text"))]
pub fn head(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let (method, target) = first.split_once(' ').unwrap_or_default();
    let (Ok(method), Ok(uri)) = (method.parse::<Method>(), target.parse::<Uri>()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::try_from(parts.next().unwrap_or_default());
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let in_host = headers.len().is_multiple_of(2);
    request(method, uri, headers, in_host);
}

/// `in_host`: the bucket is in the host's name.
pub(super) fn request(method: Method, uri: Uri, mut headers: HeaderMap, in_host: bool) {
    headers::join_repeated(&mut headers);
    let _ = operation::level(uri.path(), in_host);
    let (bucket, _) = operation::target(&uri, None);
    assert!(!bucket.contains('/'));
    let _ = operation::check(&method, &uri, &headers, in_host);
    let _ = checksums::announced(&headers, None);
    let _ = checksums::of_object(&headers);
    let _ = copy_source::read(&headers, headers::COPY_SOURCE);
    let _ = multipart::source_range(&headers);
    let _ = authentication::HeaderSignature::of(&headers);
    if let Ok(conditions) = Conditions::read(&headers, Some("1")) {
        let _ = conditions.of_put();
        let _ = conditions.check(Some("e"), Some(0));
    }
    if let Ok(conditions) = Conditions::read(&headers, None) {
        let _ = conditions.choose(10, Some("e"), Some(0), None);
    }
    let _ = copy::take_conditions(&mut headers.clone());
    let mut request = Request::new(());
    (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
    let (mut parts, ()) = request.into_parts();
    let _ = authentication::check(&parts, "us-east-1");
    let _ = presigned::add_headers(&mut parts);
}

/// An XML document.
pub fn document(bytes: &[u8]) {
    for allowed in [document::DELETE, document::COMPLETE, document::TAGGING, document::ACL, document::CREATE_BUCKET] {
        let Ok(plain) = document::plain(bytes, allowed) else { continue };
        assert!(plain.chars().all(is_xml), "{plain:?}");
        assert_eq!(document::plain(plain.as_bytes(), allowed).ok(), Some(plain), "read again, it says the same");
    }
    if let Ok(elements) = document::elements(bytes, document::COMPLETE) {
        let _ = multipart::parts(&elements);
    }
}

/// Names, hosts, tokens and tags.
pub fn text(text: &str) {
    let _ = percent::decode(text);
    assert_eq!(percent::decode(&percent::encode(text)).ok().as_deref(), Some(text));
    let _ = decode_token(text);
    let position = After::Key(format!("k{text}"));
    // No key has NUL, so no page ends in one.
    let wanted = Some(position.clone()).filter(|_| !text.contains('\0'));
    assert_eq!(decode_token(&encode_token(&position)).ok(), wanted);
    if let Ok(hosts) = Hosts::new(&["s3.example".to_owned()], &[]) {
        let _ = hosts.style(text);
    }
    if let Ok(Some(kept)) = tagging::of_header(Some(text)) {
        assert_eq!(tagging::of_header(Some(&kept)).ok().flatten(), Some(kept), "tags are kept in one form");
    }
}

/// A body in chunks, of `length` bytes without them, which arrives in pieces of `piece` bytes.
pub fn chunks(length: u16, piece: u8, body: &[u8]) {
    let whole = chunked::decode_pieces(length, body, usize::MAX).ok();
    assert_eq!(chunked::decode_pieces(length, body, piece.into()).ok(), whole);
    assert!(whole.is_none_or(|decoded| decoded.len() == usize::from(length)));
}
