//! The request headers that may change what an S3 request means, and the values that are offered. Others, such as those of
//! proxies, browsers and tracing, are no part of S3 and pass.

use http::{HeaderMap, HeaderValue};
use s3s::S3Error;

use super::errors::{bad_request, not_offered};
use crate::data::{Algorithm, Expected};

/// Its presence makes a PutObject a CopyObject.
pub(super) const COPY_SOURCE: &str = "x-amz-copy-source";

/// Digests of a body, and how it is framed, with every operation that takes one.
const BODY: &[&str] = &[
    "content-md5",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-md5",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-checksum-sha512",
    "x-amz-checksum-xxhash128",
    "x-amz-checksum-xxhash3",
    "x-amz-checksum-xxhash64",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
];
pub(super) const GET_OBJECT: &[&str] =
    &["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"];
pub(super) const CREATE_BUCKET: &[&str] = &["x-amz-acl", "x-amz-bucket-object-lock-enabled", "x-amz-object-ownership"];
pub(super) const LIST: &[&str] = &["x-amz-optional-object-attributes"];
/// A name that ends in a star stands for all that begin so.
pub(super) const PUT_OBJECT: &[&str] =
    &["if-match", "if-none-match", "x-amz-acl", "x-amz-meta-*", "x-amz-storage-class", "x-amz-tagging"];

pub(super) const GET_ATTRIBUTES: &[&str] = &["x-amz-max-parts", "x-amz-object-attributes", "x-amz-part-number-marker"];
pub(super) const COPY_OBJECT: &[&str] = &[
    "if-match",
    "if-none-match",
    "x-amz-acl",
    "x-amz-checksum-algorithm",
    COPY_SOURCE,
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-meta-*",
    "x-amz-metadata-directive",
    "x-amz-source-expected-bucket-owner",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-tagging-directive",
];
pub(super) const CREATE_UPLOAD: &[&str] = &[
    "x-amz-acl",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-type",
    "x-amz-meta-*",
    "x-amz-storage-class",
    "x-amz-tagging",
];
pub(super) const UPLOAD_PART_COPY: &[&str] = &[
    COPY_SOURCE,
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-copy-source-range",
    "x-amz-source-expected-bucket-owner",
];
pub(super) const COMPLETE_UPLOAD: &[&str] =
    &["if-match", "if-none-match", "x-amz-checksum-type", "x-amz-mp-object-size"];
pub(super) const IF_MATCH_SIZE: &str = "x-amz-if-match-size";
pub(super) const IF_MATCH_MODIFIED: &str = "x-amz-if-match-last-modified-time";
/// No object is locked, so there is nothing to bypass.
pub(super) const DELETE_OBJECTS: &[&str] = &["x-amz-bypass-governance-retention"];
pub(super) const DELETE_OBJECT: &[&str] =
    &["if-match", "x-amz-bypass-governance-retention", IF_MATCH_MODIFIED, IF_MATCH_SIZE];
pub(super) const PUT_ACL: &[&str] = &["content-md5", "x-amz-acl"];
pub(super) const RENAME_OBJECT: &[&str] = &["if-none-match", "x-amz-client-token", "x-amz-rename-source"];

/// Headers of signatures and of client libraries, with any operation. The owner that is expected is compared later.
const ANYWHERE: &[&str] = &[
    "x-amz-api-version",
    "x-amz-cf-id",
    "x-amz-checksum-mode",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-expected-bucket-owner",
    "x-amz-request-payer",
    "x-amz-sdk-checksum-algorithm",
    // Of the Java SDK: a digest after the body would be welcome.
    "x-amz-te",
    "x-amz-user-agent",
];

/// Headers besides `x-amz-*` and conditions that change what a request means.
const MEANINGFUL: &[&str] = &["content-md5", "content-range"];

/// Headers of which only some values are offered.
const VALUES: &[(&str, &[&str])] = &[
    ("x-amz-acl", &["private", "bucket-owner-full-control"]),
    ("x-amz-bucket-object-lock-enabled", &["false"]),
    ("x-amz-checksum-mode", &["enabled"]),
    ("x-amz-object-ownership", &["bucketownerenforced"]),
    ("x-amz-optional-object-attributes", &["restorestatus"]),
    ("x-amz-request-payer", &["requester"]),
    ("x-amz-storage-class", &["standard"]),
];

/// What headers that are not offered belong to, by the beginning of their names.
const NOT_OFFERED: &[(&str, &str)] = &[
    ("x-amz-bypass-governance", "object lock is"),
    ("x-amz-grant-", "access control lists are"),
    ("x-amz-mfa", "deletion by MFA is"),
    ("x-amz-object-lock", "object lock is"),
    ("x-amz-rename-source", "RenameObject is"),
    ("x-amz-server-side-encryption", "server-side encryption is"),
    ("x-amz-website-redirect", "redirects are"),
    ("x-amz-write-offset", "appending is"),
];

/// Makes one header of each user-metadata header that is there several times, as S3 does and as its signature is computed.
pub(super) fn join_repeated(headers: &mut HeaderMap) {
    let of_user = headers.keys().filter(|name| name.as_str().starts_with("x-amz-meta-"));
    let repeated: Vec<_> = of_user.filter(|name| headers.get_all(*name).iter().nth(1).is_some()).cloned().collect();
    for name in repeated {
        let values: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&values.join(&b","[..])) {
            headers.insert(name, joined);
        }
    }
}

/// What an operation takes.
pub(super) struct Taken {
    /// The operation, as S3 names it.
    pub(super) by: &'static str,
    pub(super) headers: &'static [&'static str],
    /// The operation takes a body, and so the headers of bodies.
    pub(super) body: bool,
}

/// An error that names the first header that the operation does not know, or whose value is not offered.
pub(super) fn check(taken: &Taken, headers: &HeaderMap) -> Result<(), S3Error> {
    for (name, value) in headers {
        let name = name.as_str();
        if !(name.starts_with("x-amz-") || name.starts_with("if-") || MEANINGFUL.contains(&name)) {
            continue;
        }
        let is_of_body = if taken.body { BODY.contains(&name) } else { is_of_nothing(name, value) };
        if !is_of_body && !knows(taken.headers, name) && !ANYWHERE.contains(&name) {
            return Err(unknown(taken.by, name));
        }
        check_value(taken.by, name, value)?;
    }
    Ok(())
}

/// Whether a header is the checksum of no bytes, which the Java SDK sends with reads.
fn is_of_nothing(name: &str, value: &HeaderValue) -> bool {
    let algorithm = name.strip_prefix("x-amz-checksum-").and_then(Algorithm::named);
    let (Some(algorithm), Ok(value)) = (algorithm, value.to_str()) else { return false };
    let announced = Expected { header: Some((algorithm, value.trim().to_owned())), ..Expected::default() };
    announced.check(announced.hashers()).is_ok()
}

fn knows(known: &[&str], name: &str) -> bool {
    known.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *known == name,
    })
}

fn unknown(operation: &str, name: &str) -> S3Error {
    let what = NOT_OFFERED.iter().find(|(start, _)| name.starts_with(start)).map(|(_, what)| *what);
    let why = match (what, name) {
        (Some(what), _) => format!("{what} not offered"),
        (None, "content-range") => "a part of an object cannot be replaced".to_owned(),
        (None, _) if name.starts_with("if-") => format!("this condition is not offered with {operation}"),
        (None, _) => format!("it is not offered with {operation}"),
    };
    not_offered(format!("A header you provided implies functionality that is not implemented: `{name}` ({why})"))
}

fn check_value(operation: &str, name: &str, value: &HeaderValue) -> Result<(), S3Error> {
    let Some((_, offered)) = VALUES.iter().find(|(known, _)| *known == name) else { return Ok(()) };
    let Ok(given) = value.to_str() else {
        return Err(bad_request("InvalidArgument", format!("the header `{name}` is not text")));
    };
    if offered.contains(&given.trim().to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(match name {
        "x-amz-storage-class" => {
            bad_request("InvalidStorageClass", format!("The storage class you specified is not valid: `{given}`"))
        }
        "x-amz-acl" if operation == "CreateBucket" => bad_request(
            "InvalidBucketAclWithObjectOwnership",
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        ),
        "x-amz-acl" => bad_request("AccessControlListNotSupported", "The bucket does not allow ACLs"),
        _ => not_offered(format!("the value `{given}` of the header `{name}` is not offered")),
    })
}
