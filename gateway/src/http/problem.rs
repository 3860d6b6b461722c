//! Errors of the native API: problem+json (RFC 9457). A use case's error travels in the response's extensions to the
//! dispatcher, which knows the request id and writes the document.

use axum::{
    Extension,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use mantle_types::{Error, ErrorCode, error::Retry};
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

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self(code.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (status::of(self.0.code()), Extension(self)).into_response()
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

pub fn response(error: &Error, request_id: Uuid) -> Response {
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
    let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
    let body = serde_json::to_vec(&document).unwrap_or_default();
    let mut response = (status::of(error.code()), content_type, body).into_response();
    let headers = response.headers_mut();
    if retry {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if row.code == ErrorCode::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
