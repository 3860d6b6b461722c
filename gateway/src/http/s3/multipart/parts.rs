//! UploadPart, UploadPartCopy and ListParts.

use std::ops::Range;

use http::{Extensions, HeaderMap};
use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Error, S3ErrorCode, S3Response,
    dto::{
        ChecksumType, CopyPartResult, ETag, Initiator, ListPartsInput, ListPartsOutput, Part as PartDto, StorageClass,
        StreamingBlob, UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
    },
};

use super::super::{
    S3Operations,
    checksums::{self, Elements},
    copy::{SOURCE_OWNER, SourceConditions},
    copy_source,
    entry::timestamp,
    errors::{Answer, Refusal, bad_request},
    framing::Framing,
    headers::COPY_SOURCE,
    listing,
    put::{too_large, upload_error},
};
use crate::{
    app::Call,
    data::{Algorithm, ChecksumKind, Checksums, Trailer},
    ops::uploads::{PARTS_MAX, PartSource},
    store::{Entry, Upload},
};

const SOURCE_RANGE: &str = "x-amz-copy-source-range";

pub(super) fn check_number(number: i32) -> Result<i32, Refusal> {
    match (1..=PARTS_MAX).contains(&number) {
        true => Ok(number),
        false => {
            let message = "Part number must be an integer between 1 and 10000, inclusive";
            Err(Error::new(ErrorCode::InvalidArgument, message).into())
        }
    }
}

/// The checksum that the client has chosen for an upload; `None` if it has chosen none.
fn chosen(upload: &Upload) -> Option<(Algorithm, ChecksumKind)> {
    let algorithm = upload.checksum_algorithm.as_deref().and_then(Algorithm::named)?;
    Some((algorithm, ChecksumKind::named(&upload.checksum_type)?))
}

/// `bytes=first-last`: both are demanded.
pub(in crate::http::s3) fn source_range(headers: &HeaderMap) -> Result<Option<Range<u64>>, Refusal> {
    let Some(value) = headers.get(SOURCE_RANGE) else { return Ok(None) };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let read = || {
        let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        (first <= last && last < u64::MAX).then(|| first..last + 1)
    };
    read().map(Some).ok_or_else(|| {
        let message = "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the \
                       zero-based offsets of the first and last bytes to copy";
        Error::new(ErrorCode::InvalidArgument, message).into()
    })
}

/// A source that lacks the range is an error of the request, not of a read.
fn out_of_source(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Mantle(error) if error.code() == ErrorCode::InvalidRange => {
            let mut converted = S3Error::with_message(S3ErrorCode::InvalidRange, error.detail().to_owned());
            converted.set_status_code(http::StatusCode::RANGE_NOT_SATISFIABLE);
            converted.into()
        }
        other => other,
    }
}

impl S3Operations {
    pub(in crate::http::s3) async fn upload_part(
        &self,
        call: &Call,
        mut input: UploadPartInput,
        headers: HeaderMap,
        extensions: Extensions,
    ) -> Answer<UploadPartOutput> {
        let framing = Framing::of(&headers);
        let number = check_number(input.part_number)?;
        if input.content_length.is_some_and(|length| length as u64 > self.gateway.limits.object_bytes_max) {
            return Err(too_large());
        }
        let mut expected = checksums::announced(&headers, extensions.get::<Trailer>().cloned())?;
        let upload = self.gateway.unfinished_upload(call, &input.bucket, &input.key, &input.upload_id).await?;
        let chosen = chosen(&upload).map(|(algorithm, _)| algorithm);
        if let (Some(chosen), Some(announced)) = (chosen, expected.algorithm())
            && chosen != announced
        {
            let message = format!(
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                chosen.name().to_ascii_uppercase(),
                announced.name().to_ascii_uppercase()
            );
            return Err(bad_request("InvalidRequest", message).into());
        }
        expected.size = input.content_length.and_then(|length| length.try_into().ok());
        expected.kept = Some(chosen.unwrap_or(Algorithm::Crc64Nvme));
        let body = input.body.take().unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
        let stored = self.gateway.store_part(body, expected).await;
        let stored = stored.map_err(|e| upload_error(e, framing))?;
        let Checksums { md5, checksum } = stored.checksums.clone();
        let bucket = input.bucket;
        let put = self.mutate(call, |gateway, call| async move {
            gateway.put_part(&call, &bucket, &upload, number, stored).await
        });
        put.await?;
        let output = UploadPartOutput { e_tag: Some(ETag::Strong(md5)), ..UploadPartOutput::default() };
        Ok(S3Response::with_headers(output, checksums::header_of_part(&checksum)))
    }

    pub(in crate::http::s3) async fn upload_part_copy(
        &self,
        call: &Call,
        input: UploadPartCopyInput,
        headers: HeaderMap,
        extensions: Extensions,
    ) -> Answer<UploadPartCopyOutput> {
        let number = check_number(input.part_number)?;
        let (source_bucket, source_key) = copy_source::read(&headers, COPY_SOURCE)?;
        self.check_owner_of(&call.caller, &source_bucket, headers.get(SOURCE_OWNER)).await?;
        let range = source_range(&headers)?;
        let of_source = extensions.get::<SourceConditions>().cloned().unwrap_or_default();
        let upload = self.gateway.unfinished_upload(call, &input.bucket, &input.key, &input.upload_id).await?;
        let chosen = chosen(&upload).map(|(algorithm, _)| algorithm);
        let bucket = input.bucket;
        let copied = self.mutate(call, |gateway, call| async move {
            let source = PartSource { place: (&source_bucket, &source_key), range };
            let accept = |entry: &Entry| of_source.check(entry);
            gateway.copy_part(&call, &bucket, &upload, number, &source, accept).await
        });
        let part = copied.await.map_err(out_of_source)?;
        let mut result = CopyPartResult {
            e_tag: Some(ETag::Strong(part.etag)),
            last_modified: Some(timestamp(part.created)),
            ..CopyPartResult::default()
        };
        if let Some(algorithm) = chosen {
            result.set(algorithm, part.checksum);
        }
        let output = UploadPartCopyOutput { copy_part_result: Some(result), ..UploadPartCopyOutput::default() };
        Ok(checksums::answer(output, chosen))
    }

    pub(in crate::http::s3) async fn list_parts(&self, call: &Call, input: ListPartsInput) -> Answer<ListPartsOutput> {
        let limit = listing::limit("max-parts", input.max_parts)?;
        let after = input.part_number_marker.unwrap_or_default();
        if after < 0 {
            return Err(Error::new(ErrorCode::InvalidArgument, "part-number-marker must not be negative").into());
        }
        let upload = self.gateway.unfinished_upload(call, &input.bucket, &input.key, &input.upload_id).await?;
        let (parts, is_truncated) = self.gateway.list_parts(&upload, after, limit).await?;
        let chosen = chosen(&upload);
        let owner = self.owner(upload.attempt.principal);
        let last = parts.last().map(|part| part.number);
        let listed = parts.into_iter().map(|part| {
            let mut dto = PartDto {
                e_tag: Some(ETag::Strong(part.etag)),
                last_modified: Some(timestamp(part.created)),
                part_number: Some(part.number),
                size: Some(part.size as i64),
                ..PartDto::default()
            };
            if let Some((algorithm, _)) = chosen {
                dto.set(algorithm, part.checksum);
            }
            dto
        });
        let output = ListPartsOutput {
            parts: Some(listed.collect()),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            checksum_algorithm: chosen.map(|(algorithm, _)| super::algorithm_dto(algorithm)),
            checksum_type: chosen.map(|(_, kind)| ChecksumType::from_static(kind.name())),
            initiator: Some(Initiator { id: owner.id.clone(), display_name: owner.display_name.clone() }),
            owner: Some(owner),
            is_truncated: Some(is_truncated),
            max_parts: Some(limit as i32),
            next_part_number_marker: Some(last.unwrap_or(after)).filter(|_| is_truncated),
            part_number_marker: Some(after),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..ListPartsOutput::default()
        };
        Ok(checksums::answer(output, chosen.map(|(algorithm, _)| algorithm)))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn ranges_of_sources_name_both_ends() {
        let read = |text: &str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(SOURCE_RANGE), HeaderValue::from_str(text).unwrap())]);
            source_range(&headers).map_err(drop)
        };
        assert_eq!(read("bytes=0-0"), Ok(Some(0..1)));
        assert_eq!(read("bytes=5-9"), Ok(Some(5..10)));
        for bad in [
            "",
            "5-9",
            "bytes=5-",
            "bytes=-9",
            "bytes=9-5",
            "bytes=+5-9",
            "bytes=0-18446744073709551615",
            "bytes=0-1,2-3",
        ] {
            assert_eq!(read(bad), Err(()), "{bad}");
        }
        assert_eq!(source_range(&HeaderMap::new()).map_err(drop), Ok(None));
    }
}
