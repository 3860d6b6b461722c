//! Errors in S3's form. Code and status come from the error table. Errors of S3's own protocol (digests, ranges, body
//! lengths) keep S3's codes.

use std::borrow::Cow;

use http::StatusCode;
use mantle_types::{Error, ErrorCode, name::is_xml};
use s3s::{S3Error, S3ErrorCode, S3Response};
use uuid::Uuid;

use crate::http::status;

pub(super) type Answer<T> = Result<S3Response<T>, Refusal>;

/// An error of a use case, or one of S3's own protocol.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum Refusal {
    Mantle(#[from] Error),
    S3(#[from] S3Error),
}

impl Refusal {
    pub(super) fn into_s3(self, request_id: Uuid) -> S3Error {
        match self {
            Self::Mantle(error) => s3_error(&error, request_id),
            Self::S3(error) => error,
        }
    }
}

/// The code of a name, whether `s3s` knows it or not.
pub(super) fn code(name: &str) -> S3ErrorCode {
    let Ok(code) = name.parse();
    code
}

/// The text without characters that no XML document can hold: a message may quote what a client sent.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_xml) {
        true => Cow::Borrowed(text),
        false => text.chars().map(|c| if is_xml(c) { c } else { char::REPLACEMENT_CHARACTER }).collect(),
    }
}

/// S3's own words for an error, if it has some. Tools show them, and some compare them.
fn words(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::NamespaceNotFound => Some("The specified bucket does not exist"),
        ErrorCode::InvalidNamespaceName => Some("The specified bucket is not valid."),
        ErrorCode::NotFound => Some("The specified key does not exist."),
        ErrorCode::InvalidRange => Some("The requested range is not satisfiable"),
        ErrorCode::NotEmpty => Some("The bucket you tried to delete is not empty"),
        ErrorCode::NamespaceExists => Some(
            "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please \
             select a different name and try again.",
        ),
        ErrorCode::PreconditionFailed => Some("At least one of the pre-conditions you specified did not hold"),
        _ => None,
    }
}

/// An error of the error table, with the request's id.
pub(super) fn s3_error(error: &Error, request_id: Uuid) -> S3Error {
    let row = error.code().row();
    let text = words(error.code()).unwrap_or(error.detail());
    let mut converted = S3Error::with_message(code(row.s3), printable(text).into_owned());
    converted.set_status_code(status::of(error.code()));
    converted.set_request_id(request_id.to_string());
    converted
}

/// A feature of S3 that this service does not have.
pub(super) fn not_offered(message: impl Into<Cow<'static, str>>) -> S3Error {
    let message = printable(&message.into()).into_owned();
    let mut error = S3Error::with_message(S3ErrorCode::NotImplemented, message);
    error.set_status_code(status::of(ErrorCode::NotImplemented));
    error
}

/// An error with status 400, also for codes that `s3s` does not know.
pub(super) fn bad_request(name: &str, message: impl Into<Cow<'static, str>>) -> S3Error {
    let message = printable(&message.into()).into_owned();
    let mut error = S3Error::with_message(code(name), message);
    error.set_status_code(StatusCode::BAD_REQUEST);
    error
}
