//! PutObject. A key that ends in a slash makes a directory.

use futures::StreamExt;
use http::{Extensions, HeaderMap};
use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Response,
    dto::{ETag, PutObjectInput, PutObjectOutput, StreamingBlob},
    s3_error,
};

use super::{
    S3Operations, checksums, conditions,
    errors::{Answer, Refusal},
    framing::Framing,
    metadata,
};
use crate::{
    app::Call,
    data::{Checksums, Expected, Trailer, UploadError},
    ops::put_object::PutObject,
    store::{EMPTY_MD5, Precondition},
};

pub(super) fn upload_error(error: UploadError, framing: Framing) -> Refusal {
    match error {
        UploadError::TooLarge => too_large(),
        UploadError::Body(cause) => {
            tracing::debug!(%cause, "a body broke");
            framing.failure(cause.as_ref()).into()
        }
        UploadError::Mismatch(mismatch) => checksums::failure(mismatch).into(),
        UploadError::Store(error) => error.into(),
    }
}

pub(super) fn too_large() -> Refusal {
    s3_error!(EntityTooLarge, "The object is over this service's limit.").into()
}

/// The parts of a request that puts a directory.
struct Directory {
    body: Option<StreamingBlob>,
    expected: Expected,
    framing: Framing,
    precondition: Precondition,
    user_metadata: Option<serde_json::Value>,
}

impl S3Operations {
    pub(super) async fn put_object(
        &self,
        call: &Call,
        mut input: PutObjectInput,
        headers: HeaderMap,
        extensions: Extensions,
    ) -> Answer<PutObjectOutput> {
        let framing = Framing::of(&headers);
        let size_max = self.gateway.limits.object_bytes_max;
        if input.content_length.is_some_and(|length| length as u64 > size_max) {
            return Err(too_large());
        }
        let precondition = conditions::of_change(&extensions)?;
        let mut expected = checksums::announced(&headers, extensions.get::<Trailer>().cloned())?;
        expected.size = input.content_length.and_then(|length| length.try_into().ok());
        let user_metadata = metadata::of_put(&input)?;
        let body = input.body.take();
        if input.key.ends_with('/') {
            let directory = Directory { body, expected, framing, precondition, user_metadata };
            return self.put_directory(call, input.bucket, input.key, directory).await;
        }
        let (bucket, key) = (input.bucket, input.key);
        let body = body.unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
        let received = self.gateway.receive_object(call, &bucket, &key, body, expected).await;
        let received = received.map_err(|e| upload_error(e, framing))?;
        let Checksums { md5, checksum } = received.stored.checksums.clone();
        let size = Some(received.stored.size as i64);
        let user_metadata = Some(checksum.kept_with(user_metadata));
        let put = PutObject { content_type: input.content_type.clone(), user_metadata, precondition };
        self.mutate(call, |gateway, call| async move { gateway.put_object(&call, &bucket, &key, put, received).await })
            .await?;
        let output = PutObjectOutput { e_tag: Some(ETag::Strong(md5)), size, ..PutObjectOutput::default() };
        Ok(S3Response::with_headers(output, checksums::headers(&checksum)))
    }

    /// An explicit directory: an object without bytes, whose key ends in a slash. It may exist.
    async fn put_directory(
        &self,
        call: &Call,
        bucket: String,
        key: String,
        directory: Directory,
    ) -> Answer<PutObjectOutput> {
        let Directory { body, expected, framing, precondition, user_metadata } = directory;
        // `s3s` verifies the digest only when the body is read to its end.
        if let Some(mut body) = body {
            while let Some(chunk) = body.next().await {
                let chunk = chunk.map_err(|cause| framing.failure(cause.as_ref()))?;
                if !chunk.is_empty() {
                    let why = "a key that ends in a slash names a directory, which holds no bytes";
                    return Err(Error::new(ErrorCode::InvalidArgument, why).into());
                }
            }
        }
        let Checksums { checksum, .. } = expected.check(expected.hashers()).map_err(checksums::failure)?;
        let user_metadata = Some(checksum.kept_with(user_metadata));
        self.mutate(call, |gateway, call| async move {
            gateway.put_marker(&call, &bucket, &key, user_metadata, &precondition).await
        })
        .await?;
        let e_tag = Some(ETag::Strong(EMPTY_MD5.to_owned()));
        let output = PutObjectOutput { e_tag, size: Some(0), ..PutObjectOutput::default() };
        Ok(S3Response::with_headers(output, checksums::headers(&checksum)))
    }
}
