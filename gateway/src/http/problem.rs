//! Errors of the native API: problem+json (RFC 9457). A use case's error travels in the response's extensions to the
//! dispatcher, which knows the request id and writes the document.

use axum::{
    body::Body,
    http::{HeaderValue, Response, header},
    response::IntoResponse,
};
use mantle_types::{Error, error::Retry};
use serde::Serialize;
use uuid::Uuid;

use super::status;

/// An error in a response's extensions.
#[derive(Clone, Debug)]
pub struct Failure(pub Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<mantle_types::ErrorCode> for Failure {
    fn from(code: mantle_types::ErrorCode) -> Self {
        Self(code.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> axum::response::Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status::of(self.0.code());
        response.extensions_mut().insert(self);
        response
    }
}

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: &'a str,
    request_id: Uuid,
    retry_with_same_request_id: bool,
}

/// The response of an error.
pub fn response(error: &Error, request_id: Uuid) -> Response<Body> {
    let row = error.code().row();
    let retry = row.retry == Retry::SameRequestId;
    let document = Problem {
        r#type: "about:blank",
        title: row.meaning,
        status: row.http,
        code: row.name,
        detail: error.detail(),
        request_id,
        retry_with_same_request_id: retry,
    };
    let mut response = Response::new(Body::from(serde_json::to_vec(&document).unwrap_or_default()));
    *response.status_mut() = status::of(error.code());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if retry {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if row.code == mantle_types::ErrorCode::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
