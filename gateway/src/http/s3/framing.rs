//! How a body is framed and signed, and how it fails because of that.

use std::error::Error;

use http::HeaderMap;
use mantle_types::ErrorCode;
use s3s::{S3Error, s3_error};

use super::errors::{self, bad_request};
use crate::http::{drain::BodyIdle, header_text, status};

/// The digest of the body, or how the body is framed and signed.
const CONTENT_SHA256: &str = "x-amz-content-sha256";

/// What is wrong with a body in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("The request body terminated unexpectedly")]
    Incomplete,
    #[error("You did not provide the number of bytes specified by the Content-Length HTTP header")]
    Length,
    #[error("The request contained trailing data that was not well-formed or did not conform to our published schema.")]
    Trailer,
    #[error("The signature of a chunk or of the trailer does not match what was received.")]
    Signature,
}

/// How a body is signed decides how it can fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// One SHA-256 for the whole body.
    Digest,
    /// A signature for each chunk.
    SignedChunks,
    UnsignedChunks,
    /// Neither framed nor signed.
    Plain,
}

impl Framing {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let value = header_text(headers, CONTENT_SHA256).unwrap_or_default();
        match value {
            _ if value.len() == 64 && value.bytes().all(|b| b.is_ascii_hexdigit()) => Self::Digest,
            _ if value.starts_with("STREAMING-AWS4") => Self::SignedChunks,
            _ if value.starts_with("STREAMING-") => Self::UnsignedChunks,
            _ => Self::Plain,
        }
    }

    pub(super) fn is_chunked(self) -> bool {
        matches!(self, Self::SignedChunks | Self::UnsignedChunks)
    }

    /// The error of a body that failed, by its cause.
    pub(super) fn failure(self, cause: &(dyn Error + 'static)) -> S3Error {
        let mut chain = anyhow::Chain::new(cause);
        if chain.clone().any(|cause| cause.is::<BodyIdle>()) {
            let message =
                "Your socket connection to the server was not read from or written to within the timeout period.";
            return s3_error!(RequestTimeout, "{message}");
        }
        if let Some(error) = chain.find_map(|cause| cause.downcast_ref::<ChunkError>()) {
            let message = error.to_string();
            return match error {
                ChunkError::Incomplete | ChunkError::Length => s3_error!(IncompleteBody, "{message}"),
                ChunkError::Trailer => bad_request("MalformedTrailerError", message),
                ChunkError::Signature => s3_error!(SignatureDoesNotMatch, "{message}"),
            };
        }
        // `s3s` compares the digest while the body is read, and its error types are private.
        if self == Self::Digest {
            let code = errors::code("XAmzContentSHA256Mismatch");
            let mut error = S3Error::with_message(
                code,
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            );
            error.set_status_code(status::of(ErrorCode::InvalidArgument));
            return error;
        }
        s3_error!(IncompleteBody, "The body broke off or is malformed.")
    }
}
