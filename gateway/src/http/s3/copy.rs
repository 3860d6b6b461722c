//! CopyObject. The copy shares the bytes of its source, so its cost does not depend on the size, unless the client
//! wants a checksum that the source does not have.

use chrono::Utc;
use http::{Extensions, HeaderMap};
use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Error, S3ErrorCode,
    dto::{ChecksumType, CopyObjectInput, CopyObjectOutput, CopyObjectResult, ETag, MetadataDirective, PutObjectInput},
};

use super::{
    S3Operations,
    checksums::{self, Elements},
    conditions::{self, Conditions},
    copy_source,
    entry::{etag, timestamp},
    errors::{Answer, Refusal, bad_request},
    headers::COPY_SOURCE,
    metadata, multipart, tagging,
};
use crate::{
    app::Call,
    data::{Checksum, ChecksumKind},
    ops::copy_object::{Copy, Described},
    store::Entry,
};

pub(super) const SOURCE_OWNER: &str = "x-amz-source-expected-bucket-owner";
/// The conditions of the source, and the headers that they are when an object is read.
const CONDITIONS: [(&str, http::HeaderName); 4] = [
    ("x-amz-copy-source-if-match", http::header::IF_MATCH),
    ("x-amz-copy-source-if-none-match", http::header::IF_NONE_MATCH),
    ("x-amz-copy-source-if-modified-since", http::header::IF_MODIFIED_SINCE),
    ("x-amz-copy-source-if-unmodified-since", http::header::IF_UNMODIFIED_SINCE),
];

/// The conditions of the source. They are taken out: `s3s` would refuse forms that are valid.
pub(super) fn take_conditions(headers: &mut HeaderMap) -> Result<SourceConditions, S3Error> {
    let mut of_source = HeaderMap::new();
    for (name, header) in CONDITIONS {
        of_source.extend(headers.remove(name).map(|value| (header, value)));
    }
    Conditions::read(&of_source, None).map(SourceConditions)
}

#[derive(Clone, Default)]
pub(super) struct SourceConditions(Conditions);

impl SourceConditions {
    /// Any condition that does not hold is 412, also those that are 304 for a read.
    pub(super) fn check(&self, source: &Entry) -> Result<(), Refusal> {
        let modified = source.last_modified().map(|time| time.timestamp());
        self.0.check(source.md5(), modified).map_err(|_| {
            let message = "At least one of the pre-conditions you specified did not hold";
            S3Error::with_message(S3ErrorCode::PreconditionFailed, message).into()
        })
    }
}

impl S3Operations {
    pub(super) async fn copy_object(
        &self,
        call: &Call,
        input: CopyObjectInput,
        headers: HeaderMap,
        extensions: Extensions,
    ) -> Answer<CopyObjectOutput> {
        let (source_bucket, source_key) = copy_source::read(&headers, COPY_SOURCE)?;
        self.check_owner_of(&call.caller, &source_bucket, headers.get(SOURCE_OWNER)).await?;
        let precondition = conditions::of_change(&extensions)?;
        let replaces = is_replaced(&input)?;
        let directive = input.tagging_directive.as_ref().map(|directive| directive.as_str());
        let tags = match tagging::is_replaced(directive)? {
            true => Some(tagging::of_header(input.tagging.as_deref())?.unwrap_or_default()),
            false => None,
        };
        let is_itself = (&source_bucket, &source_key) == (&input.bucket, &input.key);
        if is_itself && !replaces {
            return Err(bad_request(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing the object's \
                 metadata, storage class, website redirect location or encryption attributes.",
            )
            .into());
        }
        let algorithm = multipart::algorithm(input.checksum_algorithm.as_ref())?;
        let of_source = extensions.get::<SourceConditions>().cloned().unwrap_or_default();
        let accept = move |source: &Entry| of_source.check(source);
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let described = Described { content_type: input.content_type.clone(), user_metadata: of_copy(input)? };
        let copy = Copy { replaced: replaces.then_some(described), tags, algorithm, precondition };
        let (to_bucket, to_key) = (bucket.clone(), key.clone());
        let copied = self.mutate(call, |gateway, call| async move {
            let (source, destination) = ((&*source_bucket, &*source_key), (&*to_bucket, &*to_key));
            gateway.copy_object(&call, source, destination, &copy, accept).await
        });
        let copied = copied.await?;
        // The copy has succeeded, whatever has become of it since.
        let there = self.gateway.head_object(call, &bucket, &key).await.ok().filter(|there| copied.is(there));
        let kept = there.as_ref().map_or(copied.checksum, |there| Checksum::kept_in(there.user_metadata()));
        let algorithm = kept.as_ref().map(|kept| kept.algorithm);
        let mut result = CopyObjectResult {
            checksum_type: kept.as_ref().map(|kept| ChecksumType::from_static(ChecksumKind::of(&kept.value).name())),
            e_tag: there.as_ref().map_or(copied.etag.map(ETag::Strong), etag),
            last_modified: Some(timestamp(there.and_then(|there| there.last_modified()).unwrap_or_else(Utc::now))),
            ..CopyObjectResult::default()
        };
        if let Some(kept) = kept {
            result.set(kept.algorithm, kept.value);
        }
        let output = CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() };
        Ok(checksums::answer(output, algorithm))
    }
}

/// Whether the copy has metadata of its own.
fn is_replaced(input: &CopyObjectInput) -> Result<bool, Error> {
    match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
        None | Some(MetadataDirective::COPY) => Ok(false),
        Some(MetadataDirective::REPLACE) => Ok(true),
        Some(_) => Err(Error::new(ErrorCode::InvalidArgument, "Unknown metadata directive.")),
    }
}

/// The metadata that a request gives, as PutObject's.
fn of_copy(input: CopyObjectInput) -> Result<Option<serde_json::Value>, S3Error> {
    metadata::of_put(&PutObjectInput {
        metadata: input.metadata,
        cache_control: input.cache_control,
        content_disposition: input.content_disposition,
        content_encoding: input.content_encoding,
        content_language: input.content_language,
        expires: input.expires,
        ..PutObjectInput::default()
    })
}
