//! How a body is framed and signed, and how it fails because of that.

use std::error::Error;

use http::HeaderMap;
use mantle_types::ErrorCode;
use s3s::{S3Error, s3_error};

use super::errors;
use crate::http::{drain::BodyIdle, header_text, status};

/// The digest of the body, or how the body is framed and signed.
const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// How a body is signed decides how it can fail.
#[derive(Clone, Copy)]
pub(super) enum Framing {
    /// One SHA-256 for the whole body.
    Digest,
    /// A signature for each chunk.
    SignedChunks,
    /// Unsigned, perhaps with a trailer.
    Other,
}

impl Framing {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let value = header_text(headers, CONTENT_SHA256).unwrap_or_default();
        match value {
            _ if value.len() == 64 && value.bytes().all(|b| b.is_ascii_hexdigit()) => Self::Digest,
            _ if value.starts_with("STREAMING-AWS4") => Self::SignedChunks,
            _ => Self::Other,
        }
    }

    /// The error of a stream that failed, by its cause.
    pub(super) fn failure_of(self, cause: &(dyn Error + 'static)) -> S3Error {
        if anyhow::Chain::new(cause).any(|cause| cause.is::<BodyIdle>()) {
            let message =
                "Your socket connection to the server was not read from or written to within the timeout period.";
            return s3_error!(RequestTimeout, "{message}");
        }
        self.failure()
    }

    /// The error of a stream that failed. `s3s` verifies while the body is read, and its error types are private.
    pub(super) fn failure(self) -> S3Error {
        match self {
            Self::Digest => {
                let code = errors::code("XAmzContentSHA256Mismatch");
                let mut error = S3Error::with_message(code, "The body is not what x-amz-content-sha256 says.");
                error.set_status_code(status::of(ErrorCode::InvalidArgument));
                error
            }
            Self::SignedChunks => {
                s3_error!(SignatureDoesNotMatch, "A chunk of the body does not verify, or the body broke off.")
            }
            Self::Other => s3_error!(IncompleteBody, "The body broke off or is malformed."),
        }
    }
}
