//! GetObject and HeadObject.

use std::{
    ops::Range,
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Response,
    dto::{GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Range as AskedRange, StreamingBlob},
};

use super::{
    S3Operations,
    conditions::Conditions,
    entry::{etag, md5, size, timestamp},
    errors::{Answer, Refusal, not_offered},
    metadata,
};
use crate::{app::Call, store::Entry};

/// Marks an imported entry whose size was made up.
const SIZE_HEADER: HeaderName = HeaderName::from_static("x-mantle-size");
/// MIME type of an object whose creator gave none, as in S3.
const DEFAULT_TYPE: &str = "binary/octet-stream";
const DIRECTORY_TYPE: &str = "application/x-directory";

/// The range of bytes to send, and the Content-Range header if it is only a part.
fn select(
    entry: &Entry,
    conditions: &Conditions<'_>,
    range: Option<AskedRange>,
) -> Result<(Range<u64>, Option<String>), Refusal> {
    conditions.check(md5(entry), entry.last_modified().map(timestamp).as_ref())?;
    let size = size(entry);
    let Some(range) = range else { return Ok((0..size, None)) };
    let chosen = range.check(size).map_err(|_| Error::from(ErrorCode::InvalidRange))?;
    let header = format!("bytes {}-{}/{size}", chosen.start, chosen.end.saturating_sub(1));
    Ok((chosen, Some(header)))
}

fn describe(entry: &Entry, bytes: &Range<u64>, content_range: Option<String>) -> (HeadObjectOutput, HeaderMap) {
    let default_type = if entry.is_directory() { DIRECTORY_TYPE } else { DEFAULT_TYPE };
    let mut output = HeadObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        content_length: Some((bytes.end - bytes.start) as i64),
        content_range,
        content_type: Some(entry.content_type.clone().unwrap_or_else(|| default_type.to_owned())),
        e_tag: etag(entry),
        last_modified: entry.last_modified().map(timestamp),
        ..HeadObjectOutput::default()
    };
    metadata::add_to(&mut output, entry.user_metadata.as_ref());
    let mut headers = HeaderMap::new();
    if entry.synthetic {
        headers.insert(SIZE_HEADER, HeaderValue::from_static("synthetic"));
    }
    (output, headers)
}

/// The conditions of GetObject or HeadObject. Refuses parts and versions, which are not offered.
macro_rules! conditions {
    ($input:expr) => {{
        if $input.part_number.is_some() || $input.version_id.is_some() {
            return Err(not_offered("parts and versions are not offered").into());
        }
        Conditions {
            if_match: $input.if_match.as_ref(),
            if_none_match: $input.if_none_match.as_ref(),
            if_modified_since: $input.if_modified_since.as_ref(),
            if_unmodified_since: $input.if_unmodified_since.as_ref(),
        }
    }};
}

impl S3Operations {
    pub(super) async fn head_object(&self, call: &Call, input: HeadObjectInput) -> Answer<HeadObjectOutput> {
        let conditions = conditions!(input);
        let entry = self.gateway.head_object(call, &input.bucket, &input.key).await?;
        let (bytes, content_range) = select(&entry, &conditions, input.range)?;
        let status = content_range.as_ref().map(|_| http::StatusCode::PARTIAL_CONTENT);
        let (output, headers) = describe(&entry, &bytes, content_range);
        Ok(S3Response { status, ..S3Response::with_headers(output, headers) })
    }

    pub(super) async fn get_object(&self, call: &Call, input: GetObjectInput) -> Answer<GetObjectOutput> {
        let conditions = conditions!(input);
        let choose = |entry: &Entry| {
            let (bytes, header) = select(entry, &conditions, input.range)?;
            Ok::<_, Refusal>((bytes.clone(), (bytes, header)))
        };
        let (entry, (bytes, content_range), stream) =
            self.gateway.get_object(call, &input.bucket, &input.key, choose).await?;
        let (head, headers) = describe(&entry, &bytes, content_range);
        let output = GetObjectOutput {
            body: Some(StreamingBlob::wrap(SyncStream(parking_lot::Mutex::new(stream)))),
            accept_ranges: head.accept_ranges,
            cache_control: head.cache_control,
            content_disposition: head.content_disposition,
            content_encoding: head.content_encoding,
            content_language: head.content_language,
            content_length: head.content_length,
            content_range: head.content_range,
            content_type: head.content_type,
            e_tag: head.e_tag,
            expires: head.expires,
            last_modified: head.last_modified,
            metadata: head.metadata,
            ..GetObjectOutput::default()
        };
        Ok(S3Response::with_headers(output, headers))
    }
}

/// `s3s` demands bodies that are `Sync`. One task at a time polls a stream, so the lock is never contended.
struct SyncStream<S>(parking_lot::Mutex<S>);

impl<S: futures::Stream + Unpin> futures::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(self.get_mut().0.get_mut()).poll_next(cx)
    }
}
