//! The parsers of S3 on requests that are made of pieces which mean something to them. PROPTEST_CASES makes it longer;
//! `make fuzz` looks for requests by what they reach in the code.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::parsers;

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
    fn requests_are_answered(method in method(), uri in uri(), headers in headers_of(), in_host: bool) {
        parsers::request(method, uri, headers, in_host);
    }

    #[test]
    fn documents_are_answered(text in text(), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        parsers::document(text.as_bytes());
        parsers::document(&bytes);
    }

    #[test]
    fn bodies_in_chunks_are_answered(length in 0..6u16, piece: u8, body in "([0-5]\r\n|a|0\r\n|x-amz-checksum-crc32:|[;:]){0,8}") {
        parsers::chunks(length, piece, body.as_bytes());
    }

    #[test]
    fn texts_are_answered(text in text()) {
        parsers::text(&text);
    }
}
