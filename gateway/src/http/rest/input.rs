//! The input of a native call: the caller, the namespace and path from the raw target, query parameters, the body.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::{Uri, header, request::Parts},
};
use mantle_types::{Caller, Error, ErrorCode, Result};
use serde::de::DeserializeOwned;

use crate::{
    app::Call,
    http::{App, header_text, percent, problem::Failure, request_context::RequestContext},
};

/// A call and its target. `ns` and `path` are empty where the route has none.
pub struct Input {
    pub call: Call,
    pub ns: String,
    /// The key: everything after `/v1/ns/{ns}/{kind}/`.
    pub path: String,
    context: RequestContext,
    uri: Uri,
}

impl Input {
    pub fn verb(self, verb: &'static str) -> Self {
        self.context.set_verb(verb);
        self
    }

    /// Sets the verb of a call that takes no query parameters.
    pub fn without_parameters(self, verb: &'static str) -> Result<Self> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct NoParameters {}

        let input = self.verb(verb);
        input.query::<NoParameters>()?;
        Ok(input)
    }

    /// The query parameters; unknown ones are refused.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T> {
        let Query(parameters) = Query::try_from_uri(&self.uri)
            .map_err(|cause| Error::new(ErrorCode::InvalidArgument, cause.body_text()))?;
        Ok(parameters)
    }

    /// The key of a directory with its trailing slash; empty for the root.
    pub fn directory_prefix(&self) -> String {
        match self.directory_key() {
            "" => String::new(),
            key => format!("{key}/"),
        }
    }

    /// The key of a directory, without the trailing slash that the request may have.
    pub fn directory_key(&self) -> &str {
        match self.path.as_str() {
            // The request had a doubled slash; this is not the root.
            "/" => "/",
            path => path.strip_suffix('/').unwrap_or(path),
        }
    }
}

/// The namespace and the key of `/v1/ns/{ns}/{kind}/{key}`, decoded.
fn target(raw_path: &str) -> Result<(String, String)> {
    let Some(rest) = raw_path.strip_prefix("/v1/ns/") else { return Ok((String::new(), String::new())) };
    let (ns, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let key = rest.split_once('/').map_or("", |(_, key)| key);
    let ns = percent::decode(ns)?;
    if ns.contains('\0') {
        return Err(Error::new(ErrorCode::InvalidNamespaceName, "namespace name: it contains NUL"));
    }
    Ok((ns, percent::decode(key)?))
}

impl FromRequestParts<Arc<App>> for Input {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let context = RequestContext::of(&parts.extensions, &parts.headers);
        // The S3 service has verified a signature already.
        let caller = match parts.extensions.get::<Caller>() {
            Some(caller) => caller.clone(),
            None => app.credentials.by_authorization(header_text(&parts.headers, header::AUTHORIZATION))?,
        };
        let (ns, path) = target(parts.uri.path())?;
        Ok(Self { call: context.call(caller)?, ns, path, context, uri: parts.uri.clone() })
    }
}

/// Mode bits: octal text, as in the answer of `stat`.
///
/// # Errors
/// `InvalidArgument` for bits beyond `max`. The mode bits setuid and setgid mean nothing here, so they are refused.
pub fn octal(name: &str, text: &str, max: u32) -> Result<u16> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let bits = u16::from_str_radix(text, 8).ok().filter(|bits| is_digits && u32::from(*bits) <= max);
    let malformed =
        || Error::new(ErrorCode::InvalidArgument, format!("{name} must be octal text from 0000 to {max:04o}"));
    bits.ok_or_else(malformed)
}

/// A JSON body; unknown members are refused by the types.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let limit = app.gateway.limits.document_bytes_max;
        let body: Bytes = axum::body::to_bytes(request.into_body(), limit).await.map_err(|_| {
            Error::new(ErrorCode::InvalidArgument, format!("the body is over {limit} bytes or broke off"))
        })?;
        let parsed = serde_json::from_slice(&body);
        parsed.map(Self).map_err(|cause| Error::new(ErrorCode::InvalidArgument, format!("the body: {cause}")).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_cut_at_the_right_slashes() {
        let parse = |raw| target(raw).unwrap();
        let text = |ns: &str, key: &str| (ns.to_owned(), key.to_owned());
        assert_eq!(parse("/v1/ns"), text("", ""));
        assert_eq!(parse("/v1/ns/debian"), text("debian", ""));
        assert_eq!(parse("/v1/ns/debian/list"), text("debian", ""));
        assert_eq!(parse("/v1/ns/debian/list/"), text("debian", ""));
        assert_eq!(parse("/v1/ns/debian/list//a"), text("debian", "/a"));
        assert_eq!(parse("/v1/ns/debian/dirs/a/../b//"), text("debian", "a/../b//"));
        assert_eq!(parse("/v1/ns/debian/dirs/a%2Fb%20c/"), text("debian", "a/b c/"));
        assert!(target("/v1/ns/debian/dirs/%ff").is_err());
        assert_eq!(target("/v1/ns/a%00b/dirs/x").unwrap_err().code(), ErrorCode::InvalidNamespaceName);
    }
}
