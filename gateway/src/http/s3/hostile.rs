//! Every parser of S3 that reads a client's bytes, on bytes that no client should send: it answers, or refuses. What it
//! accepts keeps what the modules behind it rely on. PROPTEST_CASES makes it longer.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use mantle_types::name::is_xml;
use proptest::prelude::*;

use super::{
    authentication, checksums, conditions::Conditions, copy, copy_source, document, headers, multipart, operation,
    presigned, tagging,
};
use crate::{
    http::{hosts::Hosts, percent},
    listing::{After, decode_token, encode_token},
};

/// Pieces that mean something to one of the parsers, and any text.
fn piece() -> impl Strategy<Value = String> {
    let known = [
        "bytes=",
        "0-",
        "-1",
        "18446744073709551616",
        "W/",
        "\"",
        "*",
        ",",
        "%2F",
        "%",
        "%zz",
        "%00",
        "%c3%28",
        "?versionId=",
        "null",
        "/",
        "//",
        "..",
        "&",
        "=",
        "uploadId",
        "uploads",
        "partNumber",
        "list-type",
        "2",
        "AWS4-HMAC-SHA256",
        "Credential=",
        "SignedHeaders=host",
        "Signature=",
        "20260101",
        "us-east-1",
        "s3",
        "aws4_request",
        ";",
        "X-Amz-Expires=604801",
        "<Delete>",
        "</Delete>",
        "<Object><Key>",
        "</Key></Object>",
        "<![CDATA[",
        "]]>",
        "&#0;",
        "&#x1F642;",
        "&lt;",
        "<!DOCTYPE x>",
        "<?x?>",
        "<CompleteMultipartUpload>",
        "<Part><PartNumber>1</PartNumber><ETag>a</ETag></Part>",
        "</CompleteMultipartUpload>",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "a=b",
        "+",
        "aws:",
        "\u{0}",
        "\u{1}",
        "é",
        "\u{10ffff}",
        "[::1]",
        ":80",
        "s3.example",
    ];
    prop_oneof![4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,8}"]
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..8).prop_map(|pieces| pieces.concat())
}

/// Any text that HTTP can carry in a header.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static("x"))
}

const HEADERS: &[&str] = &[
    "authorization",
    "content-md5",
    "content-range",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
    "x-amz-acl",
    "x-amz-checksum-crc32",
    "x-amz-checksum-sha256",
    "x-amz-checksum-type",
    "x-amz-content-sha256",
    "x-amz-copy-source",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-range",
    "x-amz-date",
    "x-amz-expected-bucket-owner",
    "x-amz-meta-a",
    "x-amz-mp-object-size",
    "x-amz-new",
    "x-amz-rename-source",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-trailer",
];

fn headers_of() -> impl Strategy<Value = HeaderMap> {
    prop::collection::vec((prop::sample::select(HEADERS.to_vec()), text()), 0..6).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), header_value(&value));
        }
        headers
    })
}

fn uri() -> impl Strategy<Value = Uri> {
    (text(), text()).prop_map(|(path, query)| {
        let keep = |c: char| c.is_ascii_graphic() && !"#?".contains(c);
        let (path, query) = (path.replace(|c| !keep(c), ""), query.replace(|c| !keep(c), ""));
        format!("/{path}?{query}").parse().unwrap_or(Uri::from_static("/"))
    })
}

fn method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE, Method::PATCH])
}

proptest! {
    #[test]
    fn requests_are_answered(method in method(), uri in uri(), mut headers in headers_of(), in_host: bool) {
        headers::join_repeated(&mut headers);
        let _ = operation::level(uri.path(), in_host);
        let (bucket, _) = operation::target(&uri, None);
        prop_assert!(!bucket.contains('/'));
        let _ = operation::check(&method, &uri, &headers, in_host);
        let _ = checksums::announced(&headers, None);
        let _ = checksums::of_object(&headers);
        let _ = copy_source::read(&headers, headers::COPY_SOURCE);
        let _ = multipart::source_range(&headers);
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

    #[test]
    fn documents_are_answered(text in text(), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        for allowed in [document::DELETE, document::COMPLETE, document::TAGGING, document::ACL, document::CREATE_BUCKET] {
            let _ = document::plain(&bytes, allowed);
            if let Ok(plain) = document::plain(text.as_bytes(), allowed) {
                prop_assert!(plain.chars().all(is_xml), "{plain:?}");
                prop_assert_eq!(document::plain(plain.as_bytes(), allowed).ok(), Some(plain.clone()), "read again, it says the same");
            }
        }
        if let Ok(elements) = document::elements(text.as_bytes(), document::COMPLETE) {
            let _ = multipart::parts(&elements);
        }
    }

    #[test]
    fn tags_are_kept_in_one_form(text in text()) {
        if let Ok(Some(kept)) = tagging::of_header(Some(&text)) {
            prop_assert_eq!(tagging::of_header(Some(&kept)).ok().flatten(), Some(kept));
        }
    }

    #[test]
    fn names_hosts_and_tokens_are_answered(text in text()) {
        let _ = percent::decode(&text);
        prop_assert_eq!(percent::decode(&percent::encode(&text)).ok(), Some(text.clone()));
        let _ = decode_token(&text);
        let position = After::Key(format!("k{text}"));
        // No key has NUL, so no page ends in one.
        let wanted = Some(position.clone()).filter(|_| !text.contains('\0'));
        prop_assert_eq!(decode_token(&encode_token(&position)).ok(), wanted);
        let hosts = Hosts::new(&["s3.example".to_owned()], &[]).unwrap();
        let _ = hosts.style(&text);
    }
}
