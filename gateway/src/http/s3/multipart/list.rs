//! ListMultipartUploads.

use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Response,
    dto::{
        ChecksumType, CommonPrefix, Initiator, ListMultipartUploadsInput, ListMultipartUploadsOutput, MultipartUpload,
        StorageClass,
    },
};

use super::{
    super::{
        S3Operations,
        entry::timestamp,
        errors::Answer,
        listing::{self, KeyEncoding, check_texts, some},
    },
    algorithm_dto,
};
use crate::{
    app::Call,
    ops::uploads::{ListedUpload, UploadsQuery},
};

impl S3Operations {
    pub(in crate::http::s3) async fn list_multipart_uploads(
        &self,
        call: &Call,
        input: ListMultipartUploadsInput,
    ) -> Answer<ListMultipartUploadsOutput> {
        let encoding = KeyEncoding::of(input.encoding_type.as_ref())?;
        let limit = listing::limit("max-uploads", input.max_uploads)?;
        let query = UploadsQuery {
            prefix: input.prefix.unwrap_or_default(),
            delimiter: input.delimiter.unwrap_or_default(),
            after_key: input.key_marker.unwrap_or_default(),
            after_name: input.upload_id_marker.clone().filter(|name| !name.is_empty()),
            limit: limit.max(1),
        };
        check_texts([&query.prefix, &query.delimiter, &query.after_key])?;
        if limit == 0 {
            return Err(Error::new(ErrorCode::InvalidArgument, "max-uploads must be between 1 and 1000").into());
        }
        let page = self.gateway.list_uploads(call, &input.bucket, &query).await?;
        let prefix = |common: String| CommonPrefix { prefix: Some(encoding.write(common)) };
        let uploads = page.uploads.into_iter().map(|upload| self.listed_upload(encoding, upload)).collect();
        let (is_truncated, next) = (page.next.is_some(), page.next.unwrap_or_default());
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: some(page.common_prefixes.into_iter().map(prefix).collect()),
            delimiter: encoding.write_some(query.delimiter),
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            key_marker: Some(encoding.write(query.after_key)),
            max_uploads: Some(limit as i32),
            next_key_marker: is_truncated.then(|| encoding.write(next.0)),
            next_upload_id_marker: next.1,
            prefix: encoding.write_some(query.prefix),
            upload_id_marker: input.upload_id_marker,
            uploads: some(uploads),
            ..ListMultipartUploadsOutput::default()
        }))
    }

    fn listed_upload(&self, encoding: KeyEncoding, upload: ListedUpload) -> MultipartUpload {
        let owner = self.owner(upload.owner);
        MultipartUpload {
            key: Some(encoding.write(upload.key)),
            upload_id: Some(upload.name),
            checksum_algorithm: upload.checksum.map(|(algorithm, _)| algorithm_dto(algorithm)),
            checksum_type: upload.checksum.map(|(_, kind)| ChecksumType::from_static(kind.name())),
            initiated: Some(timestamp(upload.created)),
            initiator: Some(Initiator { id: owner.id.clone(), display_name: owner.display_name.clone() }),
            owner: Some(owner),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        }
    }
}
