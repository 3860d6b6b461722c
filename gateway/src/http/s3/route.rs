//! What must not reach `s3s`'s own dispatch. It ignores query parameters that it does not know, so `PUT key?renameObject`
//! would become an empty PutObject and destroy the object: every parameter that is not known to be harmless for the call
//! is refused. And native calls signed in S3's way, whose signature has been verified here, go to the native API.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{Extensions, HeaderMap, Method, Request, Uri},
};
use s3s::{S3Request, S3Response, S3Result, route::S3Route};
use tower::ServiceExt;

use super::errors::not_offered;
use crate::{auth::Credentials, http::tracked::Tracked};

/// Parameters of authentication and of the clients' own book-keeping, on any call.
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

/// How deep the path goes.
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

/// The first parameter, or header, that the call does not have.
fn unknown(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    if headers.contains_key("x-amz-rename-source") {
        return true;
    }
    let allowed = allowed(method, level(uri.path()));
    uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).any(|pair| {
        // Names with escapes are none of ours, whatever they decode to.
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        let lower = name.to_ascii_lowercase();
        !allowed.contains(&name) && !ANYWHERE.contains(&lower.as_str()) && !lower.starts_with("x-amz-checksum-")
    })
}

fn is_native(uri: &Uri) -> bool {
    uri.path() == "/v1" || uri.path().starts_with("/v1/")
}

/// The route.
pub(super) struct Route {
    pub(super) native: Router,
    pub(super) credentials: Arc<Credentials>,
}

#[async_trait::async_trait]
impl S3Route for Route {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        is_native(uri) || unknown(method, uri, headers)
    }

    async fn call(&self, request: S3Request<s3s::Body>) -> S3Result<S3Response<s3s::Body>> {
        if !is_native(&request.uri) {
            if let Some(tracked) = request.extensions.get::<Tracked>() {
                tracked.set_verb("not_offered");
            }
            return Err(not_offered("a subresource, parameter or header of the request is not offered"));
        }
        let access_key = request.credentials.as_ref().map(|c| c.access_key.clone()).unwrap_or_default();
        let caller = self.credentials.by_access_key(&access_key);
        let mut native = Request::new(Body::new(request.input));
        *native.method_mut() = request.method;
        *native.uri_mut() = request.uri;
        *native.headers_mut() = request.headers;
        *native.extensions_mut() = request.extensions;
        match caller {
            Ok(caller) => native.extensions_mut().insert(caller),
            Err(_) => return Err(s3s::s3_error!(InvalidAccessKeyId)),
        };
        let response = match self.native.clone().oneshot(native).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
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
        for target in
            ["/b/k?renameObject", "/b/k?renameObject=", "/b/k?acl", "/b/k?tagging", "/b/k?uploads", "/b/k?new"]
        {
            assert!(refused(Method::PUT, target), "{target}");
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
