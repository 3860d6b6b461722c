//! Calls that must not reach the dispatch of `s3s`. It ignores unknown query parameters, so `PUT key?renameObject`
//! would become an empty PutObject and destroy the object. So every parameter that is not known to be harmless for the
//! call is refused. Native calls with an S3 signature go to the native API once `s3s` has verified the signature.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{Extensions, HeaderMap, Method, Request, Uri, header},
};
use futures::StreamExt;
use s3s::{S3Error, S3Request, S3Response, S3Result, route::S3Route, s3_error};

use super::errors::not_offered;
use crate::{
    auth::Credentials,
    http::{header_text, is_native, native, request_context::RequestContext},
};

/// Parameters of authentication and of client libraries, allowed on any call.
const ANYWHERE: &[&str] = &[
    "x-id",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-content-sha256",
    "x-amz-user-agent",
    "x-amz-checksum-mode",
    "x-amz-sdk-checksum-algorithm",
    "awsaccesskeyid",
    "signature",
    "expires",
];

const LIST_BUCKETS: &[&str] = &["bucket-region", "continuation-token", "max-buckets", "prefix"];

const GET_BUCKET: &[&str] = &[
    "list-type",
    "prefix",
    "delimiter",
    "max-keys",
    "continuation-token",
    "start-after",
    "encoding-type",
    "fetch-owner",
    "marker",
    "location",
    "versioning",
];

const GET_OBJECT: &[&str] = &[
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
];

/// The depth of the path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Bucket,
    Object,
}

fn level(path: &str) -> Level {
    match path.strip_prefix('/').unwrap_or(path).split_once('/') {
        None if path.len() <= 1 => Level::Root,
        None | Some((_, "")) => Level::Bucket,
        Some(_) => Level::Object,
    }
}

fn allowed(method: &Method, level: Level) -> &'static [&'static str] {
    match (method.as_str(), level) {
        ("GET", Level::Root) => LIST_BUCKETS,
        ("GET", Level::Bucket) => GET_BUCKET,
        ("GET" | "HEAD", Level::Object) => GET_OBJECT,
        ("POST", Level::Bucket) => &["delete"],
        _ => &[],
    }
}

/// Whether the request has a parameter or header that its call does not know.
fn unknown(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    if headers.contains_key("x-amz-rename-source") {
        return true;
    }
    let allowed = allowed(method, level(uri.path()));
    uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).any(|pair| {
        // A known name is never escaped.
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        let lower = name.to_ascii_lowercase();
        !allowed.contains(&name) && !ANYWHERE.contains(&lower.as_str()) && !lower.starts_with("x-amz-checksum-")
    })
}

pub(super) struct Route {
    pub(super) native: Router,
    pub(super) credentials: Arc<Credentials>,
    pub(super) document_bytes_max: u64,
}

/// The error of a bucket's call whose document is, or may be, too large. `s3s` would read it up to its limit and report
/// an internal error.
fn oversized(uri: &Uri, headers: &HeaderMap, bytes_max: u64) -> Option<S3Error> {
    if level(uri.path()) == Level::Object {
        return None;
    }
    if !headers.contains_key(header::CONTENT_LENGTH) {
        return headers.contains_key(header::TRANSFER_ENCODING).then(|| s3_error!(MissingContentLength));
    }
    let length = header_text(headers, header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    let is_over = length.is_none_or(|length| length > bytes_max);
    is_over.then(|| s3_error!(MaxMessageLengthExceeded, "The document is over this service's limit."))
}

/// Drain at most READ_OVER × limit bytes of a rejected body, so that the client reads our error.
const READ_OVER: u64 = 4;

async fn drain(mut body: s3s::Body, bytes_max: u64) {
    let mut bytes = 0;
    while bytes < bytes_max
        && let Some(Ok(chunk)) = body.next().await
    {
        bytes += chunk.len() as u64;
    }
}

#[async_trait::async_trait]
impl S3Route for Route {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        is_native(uri.path())
            || unknown(method, uri, headers)
            || oversized(uri, headers, self.document_bytes_max).is_some()
    }

    async fn call(&self, request: S3Request<s3s::Body>) -> S3Result<S3Response<s3s::Body>> {
        if !is_native(request.uri.path()) {
            if let Some(context) = request.extensions.get::<RequestContext>() {
                context.set_verb("not_offered");
            }
            if let Some(error) = oversized(&request.uri, &request.headers, self.document_bytes_max) {
                drain(request.input, READ_OVER * self.document_bytes_max).await;
                return Err(error);
            }
            return Err(not_offered("a subresource, parameter or header of the request is not offered"));
        }
        let access_key = request.credentials.as_ref().map(|c| c.access_key.clone()).unwrap_or_default();
        let caller = self.credentials.by_access_key(&access_key).map_err(|_| s3_error!(InvalidAccessKeyId))?;
        let mut call = Request::new(Body::new(request.input));
        *call.method_mut() = request.method;
        *call.uri_mut() = request.uri;
        *call.headers_mut() = request.headers;
        *call.extensions_mut() = request.extensions;
        call.extensions_mut().insert(caller);
        let (parts, body) = native(&self.native, call).await.into_parts();
        let mut converted = S3Response::with_status(s3s::Body::http_body_unsync(body), parts.status);
        converted.headers = parts.headers;
        converted.extensions = parts.extensions;
        Ok(converted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(method: Method, target: &str) -> bool {
        unknown(&method, &target.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn unknown_subresources_are_refused() {
        for query in ["renameObject", "renameObject=", "acl", "tagging", "uploads", "new"] {
            assert!(refused(Method::PUT, &format!("/b/k?{query}")), "{query}");
        }
        assert!(refused(Method::GET, "/b?acl"));
        assert!(refused(Method::GET, "/b?list-type=2&surprise=1"));
        assert!(refused(Method::GET, "/b/k?versionId=3"));
        assert!(refused(Method::DELETE, "/b?policy"));
        assert!(refused(Method::PUT, "/b/k?%72enameObject"));
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-rename-source", "/b/k".parse().unwrap());
        assert!(unknown(&Method::PUT, &Uri::from_static("/b/k"), &headers));
    }

    #[test]
    fn documents_are_bounded_and_objects_are_not() {
        let code = |target: &str, name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            oversized(&target.parse().unwrap(), &headers, 100).map(|error| error.code().as_str().to_owned())
        };
        assert_eq!(code("/b?delete", "content-length", "100"), None);
        assert_eq!(code("/b/k", "content-length", "101"), None);
        assert_eq!(code("/b", "x-other", "1"), None);
        for (name, value, wanted) in [
            ("content-length", "101", "MaxMessageLengthExceeded"),
            ("content-length", "x", "MaxMessageLengthExceeded"),
            ("transfer-encoding", "chunked", "MissingContentLength"),
        ] {
            assert_eq!(code("/b?delete", name, value).as_deref(), Some(wanted), "{name} {value}");
        }
    }

    #[test]
    fn known_parameters_pass() {
        assert!(!refused(Method::PUT, "/b/k?x-id=PutObject"));
        assert!(!refused(Method::GET, "/?x-id=ListBuckets"));
        assert!(!refused(Method::GET, "/b?list-type=2&prefix=&delimiter=%2F&encoding-type=url"));
        assert!(!refused(Method::GET, "/b/?location"));
        assert!(!refused(Method::GET, "/b?versioning"));
        assert!(!refused(Method::POST, "/b?delete"));
        assert!(!refused(Method::GET, "/b/k?AWSAccessKeyId=a&Signature=b&Expires=1"));
        assert!(!refused(Method::GET, "/b/k?X-Amz-Algorithm=a&X-Amz-Signature=b&response-content-type=c"));
    }
}
