//! PutObject. A key that ends in a slash makes a directory.

use futures::StreamExt;
use http::HeaderMap;
use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Error, S3Response, S3Result, TrailingHeaders,
    dto::{ETag, ETagCondition, PutObjectInput, PutObjectOutput, StreamingBlob},
    s3_error,
};

use super::{
    S3Operations,
    entry::EMPTY_MD5,
    errors::{self, Answer, Refusal, not_offered},
    metadata,
};
use crate::{
    app::Call,
    data::{ALGORITHMS, Expected, Mismatch, UploadError},
    http::{header_text, status},
    ops::{mkdir::Mkdir, put_object::PutObject},
    store::Precondition,
};

/// The digest of the body, or how the body is framed and signed.
const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// The body's length without its framing.
const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// How a body is signed decides how it can fail.
#[derive(Clone, Copy)]
enum Framing {
    /// One SHA-256 for the whole body.
    Digest,
    /// A signature for each chunk.
    SignedChunks,
    /// Unsigned, perhaps with a trailer.
    Other,
}

impl Framing {
    fn of(headers: &HeaderMap) -> Self {
        let value = header_text(headers, CONTENT_SHA256).unwrap_or_default();
        match value {
            _ if value.len() == 64 && value.bytes().all(|b| b.is_ascii_hexdigit()) => Self::Digest,
            _ if value.starts_with("STREAMING-AWS4") => Self::SignedChunks,
            _ => Self::Other,
        }
    }

    /// The error of a stream that failed. `s3s` verifies while the body is read, and its error types are private.
    fn failure(self) -> S3Error {
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

/// Refuses features that would be lost silently.
fn refuse_unknown(input: &PutObjectInput) -> S3Result<()> {
    let refused = [
        (input.write_offset_bytes.is_some(), "appending is not offered"),
        (input.tagging.is_some(), "tags are not offered"),
        (
            input.sse_customer_algorithm.is_some() || input.sse_customer_key.is_some(),
            "encryption with the client's keys is not offered",
        ),
        (
            input.server_side_encryption.is_some() || input.ssekms_key_id.is_some(),
            "server-side encryption is not offered",
        ),
        (
            input.object_lock_mode.is_some()
                || input.object_lock_legal_hold_status.is_some()
                || input.object_lock_retain_until_date.is_some(),
            "object lock is not offered",
        ),
        (input.website_redirect_location.is_some(), "redirects are not offered"),
        (input.acl.as_ref().is_some_and(|acl| acl.as_str() != "private"), "access control lists are not offered"),
        (
            input.grant_read.is_some()
                || input.grant_full_control.is_some()
                || input.grant_read_acp.is_some()
                || input.grant_write_acp.is_some(),
            "access control lists are not offered",
        ),
    ];
    refused.into_iter().find(|(asked, _)| *asked).map_or(Ok(()), |(_, feature)| Err(not_offered(feature)))
}

fn precondition(input: &PutObjectInput) -> S3Result<Precondition> {
    match (&input.if_match, &input.if_none_match) {
        (None, None) => Ok(Precondition::None),
        (Some(ETagCondition::Any), None) => Ok(Precondition::Present),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Precondition::Etag(etag.value().to_owned())),
        (None, Some(ETagCondition::Any)) => Ok(Precondition::Absent),
        (None, Some(ETagCondition::ETag(_))) => Err(not_offered("If-None-Match is offered with * only")),
        (Some(_), Some(_)) => Err(not_offered("If-Match and If-None-Match are not offered together")),
    }
}

fn expected(input: &PutObjectInput, headers: &HeaderMap, trailer: Option<TrailingHeaders>) -> Expected {
    let announced = header_text(headers, "x-amz-trailer").unwrap_or_default().to_ascii_lowercase();
    let given = |algorithm: &str| match algorithm {
        "crc32" => input.checksum_crc32.clone(),
        "crc32c" => input.checksum_crc32c.clone(),
        "crc64nvme" => input.checksum_crc64nvme.clone(),
        "sha1" => input.checksum_sha1.clone(),
        _ => input.checksum_sha256.clone(),
    };
    let in_trailer = |algorithm: &str| {
        announced.split(',').any(|name| name.trim().strip_prefix("x-amz-checksum-") == Some(algorithm))
    };
    let others = ALGORITHMS
        .into_iter()
        .filter_map(|algorithm| match given(algorithm) {
            Some(value) => Some((algorithm, Some(value))),
            None => in_trailer(algorithm).then_some((algorithm, None)),
        })
        .collect();
    Expected { md5: input.content_md5.clone(), others, trailer }
}

fn upload_error(error: UploadError, framing: Framing) -> Refusal {
    match error {
        UploadError::TooLarge => too_large(),
        UploadError::Body(cause) => {
            tracing::debug!(%cause, "a body broke");
            framing.failure().into()
        }
        UploadError::Mismatch(Mismatch::Wrong(what)) => {
            s3_error!(BadDigest, "The body does not match its {what}.").into()
        }
        UploadError::Mismatch(Mismatch::Malformed(what)) => {
            s3_error!(InvalidDigest, "The {what} is not a valid digest.").into()
        }
        UploadError::Store(error) => error.into(),
    }
}

fn too_large() -> Refusal {
    s3_error!(EntityTooLarge, "The object is over this service's limit.").into()
}

impl S3Operations {
    pub(super) async fn put_object(
        &self,
        call: &Call,
        mut input: PutObjectInput,
        headers: HeaderMap,
        trailer: Option<TrailingHeaders>,
    ) -> Answer<PutObjectOutput> {
        refuse_unknown(&input)?;
        let framing = Framing::of(&headers);
        let size_max = self.gateway.limits.object_bytes_max;
        if input.content_length.is_some_and(|length| length as u64 > size_max) {
            return Err(too_large());
        }
        let body = input.body.take();
        if input.key.ends_with('/') {
            return self.put_directory(call, input, body, framing).await;
        }
        let put = PutObject {
            content_type: input.content_type.clone(),
            user_metadata: metadata::of_put(&input),
            precondition: precondition(&input)?,
        };
        let expected = expected(&input, &headers, trailer);
        let declared = header_text(&headers, DECODED_LENGTH).and_then(|text| text.parse::<u64>().ok());
        let (bucket, key) = (input.bucket, input.key);
        let body = body.unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
        let received = self.gateway.receive_object(call, &bucket, &key, body, expected).await;
        let received = received.map_err(|e| upload_error(e, framing))?;
        // `s3s` takes a stream without any signed chunk, even the last, for complete.
        if declared.is_some_and(|declared| declared != received.stored.size) {
            let message = "The body has another length than x-amz-decoded-content-length says.";
            return Err(s3_error!(IncompleteBody, "{message}").into());
        }
        let checksums = received.stored.checksums.clone();
        self.mutate(call, |gateway, call| async move { gateway.put_object(&call, &bucket, &key, put, received).await })
            .await?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(ETag::Strong(checksums.md5)),
            checksum_crc32: checksums.others.checksum_crc32,
            checksum_crc32c: checksums.others.checksum_crc32c,
            checksum_crc64nvme: checksums.others.checksum_crc64nvme,
            checksum_sha1: checksums.others.checksum_sha1,
            checksum_sha256: checksums.others.checksum_sha256,
            ..PutObjectOutput::default()
        }))
    }

    /// An explicit directory: an object without bytes, whose key ends in a slash. It may exist.
    async fn put_directory(
        &self,
        call: &Call,
        input: PutObjectInput,
        body: Option<StreamingBlob>,
        framing: Framing,
    ) -> Answer<PutObjectOutput> {
        if let Some(mut body) = body {
            // `s3s` verifies the digest only when the body is read to its end.
            while let Some(chunk) = body.next().await {
                let chunk = chunk.map_err(|_| framing.failure())?;
                if !chunk.is_empty() {
                    let why = "a key that ends in a slash names a directory, which holds no bytes";
                    return Err(Error::new(ErrorCode::InvalidArgument, why).into());
                }
            }
        }
        if precondition(&input)? != Precondition::None {
            return Err(not_offered("conditions on directories are not offered").into());
        }
        let options = Mkdir { parents: true, exist_ok: true, user_metadata: metadata::of_put(&input) };
        let (bucket, key) = (input.bucket, input.key);
        self.mutate(call, |gateway, call| async move { gateway.mkdir(&call, &bucket, &key, options).await }).await?;
        let e_tag = Some(ETag::Strong(EMPTY_MD5.to_owned()));
        Ok(S3Response::new(PutObjectOutput { e_tag, ..PutObjectOutput::default() }))
    }
}
