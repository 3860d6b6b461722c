//! The S3 operation that a request asks for, and what the request may say besides. `s3s` ignores parameters and headers
//! that it does not know: `PUT key?renameObject` would become an empty PutObject and destroy the object, and a conditional
//! delete would delete. So every parameter and every header that may change what a request means is in these tables, or
//! the request is refused by its name.

use std::borrow::Cow;

use http::{HeaderMap, Method, Uri};
use s3s::{S3Error, s3_error};

use super::{
    document,
    errors::{bad_request, not_offered},
    headers::{self, Taken},
};
use crate::http::hosts::Style;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Service,
    Bucket,
    Object,
}

/// An operation that is offered.
pub(super) struct Operation {
    /// As S3 names it.
    pub(super) name: &'static str,
    method: &'static str,
    level: Level,
    /// The parameter that tells this operation from others; empty if it is the one without.
    selector: &'static str,
    parameters: &'static [&'static str],
    headers: &'static [&'static str],
}

const GET_OBJECT: &[&str] = &[
    "partNumber",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "versionId",
];
/// The version of an object that has no others.
const VERSION: &[&str] = &["versionId"];
pub(super) const ONLY_VERSION: &str = "null";
pub(super) const UPLOAD_ID: &str = "uploadId";
const PART_NUMBER: &[&str] = &["partNumber"];

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "ListBuckets",
        method: "GET",
        level: Level::Service,
        selector: "",
        parameters: &["bucket-region", "continuation-token", "max-buckets", "prefix"],
        headers: &[],
    },
    on_bucket("CreateBucket", "PUT", "", &[], headers::CREATE_BUCKET),
    on_bucket("HeadBucket", "HEAD", "", &[], &[]),
    on_bucket("DeleteBucket", "DELETE", "", &[], &[]),
    on_bucket("GetBucketLocation", "GET", "location", &[], &[]),
    on_bucket("GetBucketVersioning", "GET", "versioning", &[], &[]),
    on_bucket("DeleteObjects", "POST", "delete", &[], headers::DELETE_OBJECTS),
    on_bucket(
        "ListObjectsV2",
        "GET",
        "list-type",
        &["prefix", "delimiter", "max-keys", "encoding-type", "continuation-token", "start-after", "fetch-owner"],
        headers::LIST,
    ),
    on_bucket("ListObjects", "GET", "", &["prefix", "delimiter", "max-keys", "encoding-type", "marker"], headers::LIST),
    on_bucket(
        "ListObjectVersions",
        "GET",
        "versions",
        &["prefix", "delimiter", "max-keys", "encoding-type", "key-marker", "version-id-marker"],
        headers::LIST,
    ),
    on_bucket(
        "ListMultipartUploads",
        "GET",
        "uploads",
        &["prefix", "delimiter", "encoding-type", "key-marker", "max-uploads", "upload-id-marker"],
        &[],
    ),
    on_bucket("GetBucketAccelerateConfiguration", "GET", "accelerate", &[], &[]),
    on_bucket("GetBucketAcl", "GET", "acl", &[], &[]),
    on_bucket("GetBucketCors", "GET", "cors", &[], &[]),
    on_bucket("GetBucketEncryption", "GET", "encryption", &[], &[]),
    on_bucket("GetBucketLifecycleConfiguration", "GET", "lifecycle", &[], &[]),
    on_bucket("GetBucketLogging", "GET", "logging", &[], &[]),
    on_bucket("GetBucketNotificationConfiguration", "GET", "notification", &[], &[]),
    on_bucket("GetBucketOwnershipControls", "GET", "ownershipControls", &[], &[]),
    on_bucket("GetBucketPolicy", "GET", "policy", &[], &[]),
    on_bucket("GetBucketPolicyStatus", "GET", "policyStatus", &[], &[]),
    on_bucket("GetBucketReplication", "GET", "replication", &[], &[]),
    on_bucket("GetBucketRequestPayment", "GET", "requestPayment", &[], &[]),
    on_bucket("GetBucketTagging", "GET", "tagging", &[], &[]),
    on_bucket("PutBucketTagging", "PUT", "tagging", &[], &[]),
    on_bucket("GetBucketWebsite", "GET", "website", &[], &[]),
    on_bucket("GetObjectLockConfiguration", "GET", "object-lock", &[], &[]),
    on_bucket("GetPublicAccessBlock", "GET", "publicAccessBlock", &[], &[]),
    on_bucket("PutBucketAcl", "PUT", "acl", &[], headers::PUT_ACL),
    on_bucket("DeleteBucketCors", "DELETE", "cors", &[], &[]),
    on_bucket("DeleteBucketEncryption", "DELETE", "encryption", &[], &[]),
    on_bucket("DeleteBucketLifecycle", "DELETE", "lifecycle", &[], &[]),
    on_bucket("DeleteBucketPolicy", "DELETE", "policy", &[], &[]),
    on_bucket("DeleteBucketReplication", "DELETE", "replication", &[], &[]),
    on_bucket("DeleteBucketTagging", "DELETE", "tagging", &[], &[]),
    on_bucket("DeleteBucketWebsite", "DELETE", "website", &[], &[]),
    on_bucket("DeletePublicAccessBlock", "DELETE", "publicAccessBlock", &[], &[]),
    on_object("PutObject", "PUT", "", &[], headers::PUT_OBJECT),
    COPY_OBJECT,
    on_object("GetObject", "GET", "", GET_OBJECT, headers::GET_OBJECT),
    on_object("HeadObject", "HEAD", "", GET_OBJECT, headers::GET_OBJECT),
    on_object("DeleteObject", "DELETE", "", VERSION, headers::DELETE_OBJECT),
    on_object("GetObjectAttributes", "GET", "attributes", VERSION, headers::GET_ATTRIBUTES),
    on_object("RenameObject", "PUT", "renameObject", &[], headers::RENAME_OBJECT),
    on_object("CreateMultipartUpload", "POST", "uploads", &[], headers::CREATE_UPLOAD),
    UPLOAD_PART_COPY,
    on_object("UploadPart", "PUT", UPLOAD_ID, PART_NUMBER, &[]),
    on_object("CompleteMultipartUpload", "POST", UPLOAD_ID, &[], headers::COMPLETE_UPLOAD),
    on_object("AbortMultipartUpload", "DELETE", UPLOAD_ID, &[], &[]),
    on_object("ListParts", "GET", UPLOAD_ID, &["max-parts", "part-number-marker"], &[]),
    on_object("GetObjectAcl", "GET", "acl", VERSION, &[]),
    on_object("GetObjectLegalHold", "GET", "legal-hold", &[], &[]),
    on_object("GetObjectRetention", "GET", "retention", &[], &[]),
    on_object("GetObjectTagging", "GET", "tagging", VERSION, &[]),
    on_object("PutObjectTagging", "PUT", "tagging", VERSION, &[]),
    on_object("PutObjectAcl", "PUT", "acl", &[], headers::PUT_ACL),
    on_object("DeleteObjectTagging", "DELETE", "tagging", VERSION, &[]),
];

/// UploadPart's request with a header more.
const UPLOAD_PART_COPY: Operation =
    on_object("UploadPartCopy", "PUT", UPLOAD_ID, PART_NUMBER, headers::UPLOAD_PART_COPY);
/// PutObject's request with a header more, and so not found by a parameter.
const COPY_OBJECT: Operation = on_object("CopyObject", "PUT", headers::COPY_SOURCE, &[], headers::COPY_OBJECT);

const fn on_bucket(
    name: &'static str,
    method: &'static str,
    selector: &'static str,
    parameters: &'static [&'static str],
    headers: &'static [&'static str],
) -> Operation {
    Operation { name, method, level: Level::Bucket, selector, parameters, headers }
}

const fn on_object(
    name: &'static str,
    method: &'static str,
    selector: &'static str,
    parameters: &'static [&'static str],
    headers: &'static [&'static str],
) -> Operation {
    Operation { name, method, level: Level::Object, selector, parameters, headers }
}

/// What subresources are called that are not offered.
const NOT_OFFERED: &[(&str, &str)] = &[
    ("accelerate", "transfer acceleration is"),
    ("acl", "access control lists are"),
    ("analytics", "analytics are"),
    ("append", "appending is"),
    ("cors", "cross-origin rules (CORS) are"),
    ("encryption", "server-side encryption is"),
    ("intelligent-tiering", "tiers are"),
    ("inventory", "inventories are"),
    ("legal-hold", "object lock is"),
    ("lifecycle", "lifecycle rules are"),
    ("logging", "access logs in buckets are"),
    ("metrics", "request metrics by S3 are"),
    ("notification", "notifications are"),
    ("object-lock", "object lock is"),
    ("ownershipControls", "ownership controls are"),
    ("policy", "bucket policies are"),
    ("policyStatus", "bucket policies are"),
    ("publicAccessBlock", "public access settings are"),
    ("replication", "replication is"),
    ("requestPayment", "requester pays is"),
    ("restore", "archives are"),
    ("retention", "object lock is"),
    ("select", "queries in objects are"),
    ("session", "sessions of directory buckets are"),
    ("torrent", "torrents are"),
    ("versionId", "versions are"),
    ("website", "websites are"),
];

/// The path as `s3s` decodes it before it splits it: an encoded slash divides bucket and key as any other.
fn decoded(path: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(path).decode_utf8_lossy()
}

/// Bucket and key of a decoded path; each is empty if the path has none.
fn split(decoded: &str, in_host: bool) -> (&str, &str) {
    let rest = decoded.strip_prefix('/').unwrap_or(decoded);
    if in_host { ("", rest) } else { rest.split_once('/').unwrap_or((rest, "")) }
}

/// The level of a path, which is still encoded. `in_host`: the host's name has the bucket.
pub(super) fn level(path: &str, in_host: bool) -> Level {
    match split(&decoded(path), in_host) {
        ("", "") if !in_host => Level::Service,
        (_, "") => Level::Bucket,
        _ => Level::Object,
    }
}

/// Bucket and key of a request; the bucket is empty if it is about the service.
pub(super) fn target(uri: &Uri, style: Option<&Style>) -> (String, Option<String>) {
    let path = decoded(uri.path());
    let (bucket, key) = match style {
        Some(Style::Virtual(bucket)) => (bucket.as_str(), split(&path, true).1),
        _ => split(&path, false),
    };
    (bucket.to_owned(), (!key.is_empty()).then(|| key.to_owned()))
}

/// The bucket of a request; `None` if it is about the service.
pub(super) fn bucket(uri: &Uri, style: Option<&Style>) -> Option<String> {
    Some(target(uri, style).0).filter(|bucket| !bucket.is_empty())
}

/// Parameters of signatures, and those by which client libraries name the operation. `s3s` looks at `x-amz-*` parameters as
/// the gateway passes them on: as headers.
fn is_harmless(name: &str) -> bool {
    name == "x-id" || name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"))
}

/// The operation of a request.
///
/// # Errors
/// `NotImplemented` with the name of a parameter or header that is not offered; `MethodNotAllowed`; the error of a value.
pub(super) fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    in_host: bool,
) -> Result<&'static Operation, S3Error> {
    let level = level(uri.path(), in_host);
    let parameters: Vec<_> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect();
    let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_ref()).collect();
    let of_level = || OPERATIONS.iter().filter(|known| known.level == level && known.method == method.as_str());
    let copies = headers.contains_key(headers::COPY_SOURCE);
    let is_selected = |known: &&Operation| match known.selector {
        "" => false,
        headers::COPY_SOURCE => copies && !names.contains(&UPLOAD_ID),
        selector => names.contains(&selector) && (copies || known.name != UPLOAD_PART_COPY.name),
    };
    let selected = of_level().find(is_selected);
    let operation = selected.or_else(|| of_level().find(|known| known.selector.is_empty()));
    let allows = |known: &Operation, name: &str| known.selector == name || known.parameters.contains(&name);
    let unknown = names
        .iter()
        .find(|name| !is_harmless(name) && !name.is_empty() && !operation.is_some_and(|known| allows(known, name)));
    if let Some(name) = unknown {
        return Err(unknown_parameter(operation, name));
    }
    let is_version_1 = |pair: &(Cow<'_, str>, Cow<'_, str>)| pair.0 == "list-type" && pair.1 != "2";
    if parameters.iter().any(is_version_1) {
        return Err(bad_request("InvalidArgument", "Invalid List Type specified in Query"));
    }
    if parameters.iter().any(|(name, value)| name == "versionId" && value != ONLY_VERSION) {
        return Err(bad_request("InvalidArgument", "Invalid version id specified"));
    }
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| !name.is_empty() && names[..*at].contains(name)) {
        return Err(bad_request("InvalidArgument", format!("the parameter `{}` is there twice", twice.1)));
    }
    if operation.is_some_and(|operation| operation.parameters == PART_NUMBER) && !names.contains(&"partNumber") {
        let message = "Part number must be an integer between 1 and 10000, inclusive";
        return Err(bad_request("InvalidArgument", message));
    }
    let operation = operation.ok_or_else(|| s3_error!(MethodNotAllowed, "{}", level.refuses(method)))?;
    let taken = Taken { by: operation.name, headers: operation.headers, body: operation.takes_body() };
    headers::check(&taken, headers)?;
    Ok(operation)
}

fn unknown_parameter(operation: Option<&Operation>, name: &str) -> S3Error {
    if let Some((_, what)) = NOT_OFFERED.iter().find(|(known, _)| *known == name) {
        return not_offered(format!("{what} not offered (`?{name}`)"));
    }
    let asked = operation.map_or("this operation", |operation| operation.name);
    not_offered(format!("the parameter `{name}` is not offered with {asked}"))
}

impl Operation {
    /// The elements of the document that the operation takes; `None` if it takes none.
    pub(super) fn document(&self) -> Option<document::Elements> {
        match self.name {
            "CompleteMultipartUpload" => Some(document::COMPLETE),
            "CreateBucket" => Some(document::CREATE_BUCKET),
            "DeleteObjects" => Some(document::DELETE),
            "PutBucketAcl" | "PutObjectAcl" => Some(document::ACL),
            "PutBucketTagging" | "PutObjectTagging" => Some(document::TAGGING),
            _ => None,
        }
    }

    pub(super) fn takes_body(&self) -> bool {
        matches!(self.name, "PutObject" | "UploadPart") || self.document().is_some()
    }

    /// S3 demands a digest of documents that destroy.
    pub(super) fn demands_digest(&self) -> bool {
        self.name == "DeleteObjects"
    }

    /// The operation sends an object, or a part of one, or says that it would.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.name, "GetObject" | "HeadObject")
    }
}

impl Level {
    fn refuses(self, method: &Method) -> String {
        let what = match self {
            Self::Service => "the service",
            Self::Bucket => "a bucket",
            Self::Object => "an object",
        };
        format!("The specified method is not allowed against this resource: {method} against {what}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_with(method: Method, target: &str, headers: &[(&'static str, &str)]) -> Result<&'static str, String> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let checked = check(&method, &target.parse().unwrap(), &headers, false);
        checked
            .map(|operation| operation.name)
            .map_err(|error| format!("{}: {}", error.code().as_str(), error.message().unwrap_or_default()))
    }

    fn refusal(method: Method, target: &str) -> String {
        check_with(method, target, &[]).unwrap_err()
    }

    #[test]
    fn unknown_subresources_are_refused_by_name() {
        for (query, what) in [
            ("retention", "object lock"),
            ("retention=", "object lock"),
            ("append", "appending"),
            ("new", "`new`"),
            ("%72etention", "object lock"),
        ] {
            let refusal = refusal(Method::PUT, &format!("/b/k?{query}"));
            assert!(refusal.starts_with("NotImplemented") && refusal.contains(what), "{query}: {refusal}");
        }
        for (method, target) in [
            (Method::PUT, "/b?policy"),
            (Method::GET, "/b?list-type=2&surprise=1"),
            (Method::GET, "/b?location&list-type=2"),
            (Method::PUT, "/b/k?versionId=null"),
            (Method::DELETE, "/b?acl"),
            (Method::PUT, "/b?delete"),
            (Method::PUT, "/b%2Fk?location"),
            (Method::GET, "/b/k?location"),
        ] {
            assert!(refusal(method, target).starts_with("NotImplemented"), "{target}");
        }
        // A part without a number must not become the object.
        assert!(refusal(Method::PUT, "/b/k?uploadId=2").starts_with("InvalidArgument"));
        assert!(refusal(Method::PUT, "/b/k?partNumber=2").starts_with("NotImplemented"));
        for target in ["/b?prefix=a&prefix=b", "/b?list-type=3", "/b/k?versionId=3", "/b/k?versionId="] {
            assert!(refusal(Method::GET, target).starts_with("InvalidArgument"), "{target}");
        }
        for (method, target) in
            [(Method::PATCH, "/b/k"), (Method::POST, "/b/k"), (Method::PUT, "/"), (Method::POST, "/b")]
        {
            assert!(refusal(method, target).starts_with("MethodNotAllowed"), "{target}");
        }
    }

    #[test]
    fn headers_that_change_the_meaning_are_refused_by_name() {
        for (method, target, name, value) in [
            (Method::DELETE, "/b/k", "if-unmodified-since", "Mon, 01 Jan 2024 00:00:00 GMT"),
            (Method::POST, "/b?delete", "if-match", "\"e\""),
            (Method::PUT, "/b/k", "content-range", "bytes 1-2/3"),
            (Method::PUT, "/b/k", "if-unmodified-since", "Mon, 01 Jan 2024 00:00:00 GMT"),
            (Method::PUT, "/b/k", "x-amz-server-side-encryption-context", "e30="),
            (Method::PUT, "/b", "x-amz-copy-source", "/b/k"),
            (Method::PUT, "/b/k", "x-amz-new", "1"),
            (Method::PUT, "/b", "x-amz-grant-read", "id=1"),
            (Method::GET, "/b/k", "x-amz-meta-a", "1"),
            (Method::GET, "/b/k", "x-amz-checksum-crc32", "AAAAAQ=="),
        ] {
            let refusal = check_with(method, target, &[(name, value)]).unwrap_err();
            assert!(refusal.starts_with("NotImplemented") && refusal.contains(name), "{name}: {refusal}");
        }
        for (target, name, value, code) in [
            ("/b/k", "x-amz-storage-class", "NONSENSE", "InvalidStorageClass"),
            ("/b/k", "x-amz-acl", "public-read", "AccessControlListNotSupported"),
            ("/b", "x-amz-acl", "public-read", "InvalidBucketAclWithObjectOwnership"),
            ("/b", "x-amz-bucket-object-lock-enabled", "true", "NotImplemented"),
            ("/b", "x-amz-object-ownership", "ObjectWriter", "NotImplemented"),
        ] {
            let refusal = check_with(Method::PUT, target, &[(name, value)]).unwrap_err();
            assert!(refusal.starts_with(code), "{name}: {refusal}");
        }
    }

    #[test]
    fn known_requests_pass() {
        for (method, target, name) in [
            (Method::PUT, "/b/k?x-id=PutObject", "PutObject"),
            (Method::GET, "/?x-id=ListBuckets", "ListBuckets"),
            (Method::GET, "/b?list-type=2&prefix=&delimiter=%2F&encoding-type=url", "ListObjectsV2"),
            (Method::GET, "/b/?location", "GetBucketLocation"),
            (Method::GET, "/b?versioning", "GetBucketVersioning"),
            (Method::GET, "/b?marker=a", "ListObjects"),
            (Method::POST, "/b?delete", "DeleteObjects"),
            (Method::GET, "/b/k?X-Amz-Algorithm=a&X-Amz-Signature=b&response-content-type=c", "GetObject"),
            (Method::HEAD, "/b%2Fk", "HeadObject"),
            (Method::GET, "/b?versions&key-marker=a", "ListObjectVersions"),
            (Method::DELETE, "/b/k?versionId=null", "DeleteObject"),
            (Method::GET, "/b/k?attributes", "GetObjectAttributes"),
            (Method::GET, "/b?acl", "GetBucketAcl"),
            (Method::GET, "/b/k?tagging", "GetObjectTagging"),
            (Method::PUT, "/b/k?renameObject", "RenameObject"),
            (Method::POST, "/b/k?uploads", "CreateMultipartUpload"),
            (Method::PUT, "/b/k?partNumber=1&uploadId=2", "UploadPart"),
            (Method::POST, "/b/k?uploadId=2", "CompleteMultipartUpload"),
            (Method::DELETE, "/b/k?uploadId=2&x-id=AbortMultipartUpload", "AbortMultipartUpload"),
            (Method::GET, "/b/k?uploadId=2&max-parts=1", "ListParts"),
            (Method::GET, "/b?uploads&prefix=a", "ListMultipartUploads"),
        ] {
            assert_eq!(check_with(method, target, &[]).as_deref(), Ok(name), "{target}");
        }
        let headers = [
            ("x-amz-acl", "bucket-owner-full-control"),
            ("x-amz-storage-class", "STANDARD"),
            ("x-amz-meta-colour", "blue"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-amz-expected-bucket-owner", "7"),
            ("if-none-match", "*"),
        ];
        assert_eq!(check_with(Method::PUT, "/b/k", &headers), Ok("PutObject"));
        let of_nothing = [("x-amz-checksum-crc32", "AAAAAA==")];
        assert_eq!(check_with(Method::GET, "/b/k", &of_nothing), Ok("GetObject"));
        let of_source = [("x-amz-copy-source", "/b/s")];
        assert_eq!(check_with(Method::PUT, "/b/k", &of_source), Ok("CopyObject"));
        assert_eq!(check_with(Method::PUT, "/b/k?uploadId=2&partNumber=1", &of_source), Ok("UploadPartCopy"));
    }

    #[test]
    fn the_bucket_in_the_host_leaves_the_path_to_the_key() {
        assert_eq!(level("/", false), Level::Service);
        assert_eq!(level("/b", false), Level::Bucket);
        assert_eq!(level("/b/", false), Level::Bucket);
        assert_eq!(level("/b/k", false), Level::Object);
        assert_eq!(level("/b%2fk", false), Level::Object);
        assert_eq!(level("/", true), Level::Bucket);
        assert_eq!(level("/k", true), Level::Object);
    }
}
