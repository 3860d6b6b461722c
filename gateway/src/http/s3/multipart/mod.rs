//! Multipart uploads: begin and abort. `s3s` has no elements for the newer checksums, and would take CompleteMultipartUpload's
//! document for less than it says: [`complete`] reads and answers it itself.

mod complete;
mod list;
mod parts;

pub(super) use self::complete::Target;
#[cfg(any(test, fuzzing))]
pub(super) use self::{complete::parts, parts::source_range};

use s3s::{
    S3Response,
    dto::{
        AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType,
        CreateMultipartUploadInput, CreateMultipartUploadOutput, PutObjectInput,
    },
};

use super::{
    S3Operations,
    errors::{Answer, Refusal, bad_request},
    metadata,
};
use crate::{
    app::Call,
    data::{Algorithm, ChecksumKind},
    ops::uploads::Begin,
};

impl S3Operations {
    pub(super) async fn create_multipart_upload(
        &self,
        call: &Call,
        input: CreateMultipartUploadInput,
    ) -> Answer<CreateMultipartUploadOutput> {
        let (algorithm, kind) = checksum(input.checksum_algorithm.as_ref(), input.checksum_type.as_ref())?;
        let metadata = metadata::of_put(&PutObjectInput {
            metadata: input.metadata,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            expires: input.expires,
            tagging: input.tagging,
            ..PutObjectInput::default()
        })?;
        let begin = Begin { content_type: input.content_type, user_metadata: metadata, algorithm, kind };
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let created =
            self.mutate(call, |gateway, call| async move { gateway.create_upload(&call, &bucket, &key, &begin).await });
        Ok(S3Response::new(CreateMultipartUploadOutput {
            upload_id: Some(created.await?),
            bucket: Some(input.bucket),
            key: Some(input.key),
            checksum_algorithm: algorithm.map(algorithm_dto),
            checksum_type: algorithm.map(|_| ChecksumType::from_static(kind.name())),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn abort_multipart_upload(
        &self,
        call: &Call,
        input: AbortMultipartUploadInput,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.mutate(call, |gateway, call| async move {
            gateway.abort_upload(&call, &input.bucket, &input.key, &input.upload_id).await
        })
        .await?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}

fn algorithm_dto(algorithm: Algorithm) -> ChecksumAlgorithm {
    ChecksumAlgorithm::from(algorithm.name().to_ascii_uppercase())
}

/// The checksum that an object shall have.
pub(super) fn algorithm(asked: Option<&ChecksumAlgorithm>) -> Result<Option<Algorithm>, Refusal> {
    let Some(asked) = asked else { return Ok(None) };
    match Algorithm::named(asked.as_str()) {
        Some(algorithm) => Ok(Some(algorithm)),
        None => {
            let message = "Checksum algorithm provided is unsupported. Please try again with any of the valid types.";
            Err(bad_request("InvalidRequest", message).into())
        }
    }
}

/// The checksum of an upload, and how those of its parts make that of the object.
fn checksum(
    algorithm: Option<&ChecksumAlgorithm>,
    kind: Option<&ChecksumType>,
) -> Result<(Option<Algorithm>, ChecksumKind), Refusal> {
    let invalid = |message: &'static str| Refusal::from(bad_request("InvalidRequest", message));
    let algorithm = self::algorithm(algorithm)?;
    let used = algorithm.unwrap_or(Algorithm::Crc64Nvme);
    let kind = match kind {
        None => used.default_kind(),
        Some(_) if algorithm.is_none() => {
            return Err(invalid(
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            ));
        }
        Some(kind) => ChecksumKind::named(kind.as_str())
            .ok_or_else(|| invalid("Value for x-amz-checksum-type header is invalid."))?,
    };
    match used.offers(kind) {
        true => Ok((algorithm, kind)),
        false => {
            let name = used.name();
            let message =
                format!("The {} checksum type cannot be used with the {name} checksum algorithm.", kind.name());
            Err(bad_request("InvalidRequest", message).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_and_kind_fit_together() {
        let read = |algorithm: Option<&str>, kind: Option<&str>| {
            let algorithm = algorithm.map(|name| ChecksumAlgorithm::from(name.to_owned()));
            let kind = kind.map(|name| ChecksumType::from(name.to_owned()));
            checksum(algorithm.as_ref(), kind.as_ref()).ok()
        };
        use ChecksumKind::{Composite, FullObject};
        assert_eq!(read(None, None), Some((None, FullObject)));
        assert_eq!(read(Some("CRC32"), None), Some((Some(Algorithm::Crc32), Composite)));
        assert_eq!(read(Some("CRC32"), Some("FULL_OBJECT")), Some((Some(Algorithm::Crc32), FullObject)));
        assert_eq!(read(Some("CRC64NVME"), None), Some((Some(Algorithm::Crc64Nvme), FullObject)));
        for (algorithm, kind) in [
            (Some("CRC64NVME"), Some("COMPOSITE")),
            (Some("SHA256"), Some("FULL_OBJECT")),
            (Some("CRC16"), None),
            (Some("CRC32"), Some("full")),
            (None, Some("COMPOSITE")),
        ] {
            assert_eq!(read(algorithm, kind), None, "{algorithm:?} {kind:?}");
        }
    }
}
