//! Errors in S3's form. Code and status come from the error table; what belongs to S3's own protocol (digests, ranges, body
//! lengths) keeps S3's own codes.

use mantle_types::{Error, ErrorCode};
use s3s::{S3Error, S3ErrorCode};
use uuid::Uuid;

use crate::http::status;

/// Names a code, known to `s3s` or not.
pub(super) trait Named {
    /// The code of that name.
    fn named(name: &str) -> S3ErrorCode;
}

impl Named for S3ErrorCode {
    fn named(name: &str) -> S3ErrorCode {
        match name.parse() {
            Ok(code) => code,
            Err(never) => match never {},
        }
    }
}

/// One of our errors, with the request's id.
pub(super) fn s3_error(error: &Error, request_id: Uuid) -> S3Error {
    let row = error.code().row();
    let mut converted = S3Error::with_message(S3ErrorCode::named(row.s3), error.detail().to_owned());
    converted.set_status_code(status::of(error.code()));
    converted.set_request_id(request_id.to_string());
    converted
}

/// Something of S3 that this service does not have.
pub(super) fn not_offered(what: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::NotImplemented, what);
    error.set_status_code(status::of(ErrorCode::NotImplemented));
    error
}
