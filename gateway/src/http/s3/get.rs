//! GetObject and HeadObject.

use std::{
    ops::Range,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Error, S3ErrorCode, S3Response,
    dto::{GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, StreamingBlob},
};

use super::{
    S3Operations, checksums,
    conditions::{Choice, Conditions},
    entry::{etag, timestamp},
    errors::{self, Answer, Refusal},
    metadata, tagging,
};
use crate::{
    app::Call,
    data::{Checksum, Content, has_own_checksum},
    store::{Entry, PartOfObject},
};

/// Marks an imported entry whose size was made up.
const SIZE_HEADER: HeaderName = HeaderName::from_static("x-mantle-size");
const TAG_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");
/// MIME type of an object whose creator gave none, as in S3.
const DEFAULT_TYPE: &str = "binary/octet-stream";
const DIRECTORY_TYPE: &str = "application/x-directory";

/// The bytes to send, and the Content-Range header if they are a part.
fn select(
    entry: &Entry,
    part: Option<&PartOfObject>,
    conditions: &Conditions,
) -> Result<(Range<u64>, Option<String>), Refusal> {
    let (etag, size) = (entry.md5(), entry.length());
    let modified = entry.last_modified().map(|time| time.timestamp());
    conditions.check(etag, modified).map_err(|error| with_headers(error, entry))?;
    let place = part.map(|part| part.first_byte..part.first_byte + part.size);
    match conditions.choose(size, etag, modified, place) {
        Ok(Choice::Whole) => Ok((0..size, None)),
        Ok(Choice::Range(chosen)) => {
            let header = format!("bytes {}-{}/{size}", chosen.start, chosen.end.saturating_sub(1));
            Ok((chosen, Some(header)))
        }
        Err(_) if conditions.part().is_some() => Err(no_such_part().into()),
        Err(error) => Err(beyond(&error, size).into()),
    }
}

/// The headers that a cache needs with the answer that its copy is still good (RFC 9110, section 15.4.5).
fn with_headers(mut error: S3Error, entry: &Entry) -> S3Error {
    if *error.code() == S3ErrorCode::NotModified {
        let mut headers = HeaderMap::new();
        let mut add = |name, value: Option<String>| {
            headers.extend(value.and_then(|value| HeaderValue::try_from(value).ok()).map(|value| (name, value)));
        };
        add(header::ETAG, entry.md5().map(|etag| format!("\"{etag}\"")));
        add(header::LAST_MODIFIED, entry.last_modified().map(|time| httpdate::fmt_http_date(time.into())));
        let kept = entry.user_metadata();
        add(header::CACHE_CONTROL, metadata::standard(kept, metadata::CACHE_CONTROL));
        add(header::EXPIRES, metadata::standard(kept, metadata::EXPIRES));
        error.set_headers(headers);
    }
    error
}

/// The error of a range that the object does not have, with the size that it has.
fn beyond(error: &Error, size: u64) -> S3Error {
    let row = error.code().row();
    let mut converted = S3Error::with_message(errors::code(row.s3), error.detail().to_owned());
    converted.set_status_code(StatusCode::RANGE_NOT_SATISFIABLE);
    converted.set_headers(HeaderMap::from_iter(
        HeaderValue::try_from(format!("bytes */{size}")).ok().map(|value| (header::CONTENT_RANGE, value)),
    ));
    converted
}

fn no_such_part() -> S3Error {
    let mut error =
        S3Error::with_message(errors::code("InvalidPartNumber"), "The requested partnumber is not satisfiable");
    error.set_status_code(StatusCode::RANGE_NOT_SATISFIABLE);
    error
}

/// The error of a read, which is about a part if one was asked for.
fn of_read(refusal: Refusal, conditions: &Conditions) -> Refusal {
    match refusal {
        Refusal::Mantle(error) if error.code() == ErrorCode::InvalidRange && conditions.part().is_some() => {
            no_such_part().into()
        }
        other => other,
    }
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
    metadata::add_to(&mut output, entry.user_metadata());
    let mut headers = HeaderMap::new();
    if entry.synthetic {
        headers.insert(SIZE_HEADER, HeaderValue::from_static("synthetic"));
    }
    if let Some(count) = tagging::count(entry.user_metadata()) {
        headers.insert(TAG_COUNT, count.into());
    }
    (output, headers)
}

/// The headers that a client demands of the answer (`response-content-type`, …) instead of those that are kept.
macro_rules! override_headers {
    ($output:expr, $input:expr) => {{
        let (output, input) = (&mut $output, &mut $input);
        let replace = |kept: &mut Option<String>, asked: &mut Option<String>| {
            if asked.is_some() {
                *kept = asked.take();
            }
        };
        replace(&mut output.cache_control, &mut input.response_cache_control);
        replace(&mut output.content_disposition, &mut input.response_content_disposition);
        replace(&mut output.content_encoding, &mut input.response_content_encoding);
        replace(&mut output.content_language, &mut input.response_content_language);
        replace(&mut output.content_type, &mut input.response_content_type);
        if let Some(expires) = input.response_expires.take() {
            output.expires = Some(expires);
        }
    }};
}

/// The checksum is told to clients that ask for it, and only with what it is the checksum of: the whole object, or a part
/// of its upload.
fn add_checksum(headers: &mut HeaderMap, entry: &Entry, part: Option<&PartOfObject>, is_asked: bool, is_range: bool) {
    let kept = if is_asked { Checksum::kept_in(entry.user_metadata()) } else { None };
    let Some(mut kept) = kept.filter(|_| part.is_some() || !is_range) else { return };
    if part.is_some() && has_own_checksum(entry.user_metadata()) {
        return;
    }
    let mut told = checksums::headers(&kept);
    if let Some(part) = part {
        kept.value.clone_from(&part.checksum);
        told.extend(checksums::header_of_part(&kept));
    }
    headers.extend(told);
}

/// Bucket and key.
type Target<'a> = (&'a str, &'a str);

impl S3Operations {
    /// What HeadObject answers: with the headers that `s3s` has no fields for. `with_checksum`: the client asked for it.
    pub(super) async fn head(
        &self,
        call: &Call,
        (bucket, key): Target<'_>,
        conditions: &Conditions,
        with_checksum: bool,
    ) -> Result<(HeadObjectOutput, HeaderMap), Refusal> {
        let entry = self.gateway.head_object(call, bucket, key).await?;
        let part = self.gateway.part_of_object(&entry, conditions.part()).await;
        let part = part.map_err(|error| of_read(error.into(), conditions))?;
        let (bytes, content_range) = select(&entry, part.as_ref(), conditions)?;
        let is_part = content_range.is_some();
        let (mut output, mut headers) = describe(&entry, &bytes, content_range);
        output.parts_count = part.as_ref().map(|part| part.parts as i32);
        add_checksum(&mut headers, &entry, part.as_ref(), with_checksum, is_part);
        Ok((output, headers))
    }

    /// What GetObject answers: as HeadObject, and the bytes.
    pub(super) async fn get(
        &self,
        call: &Call,
        (bucket, key): Target<'_>,
        conditions: &Conditions,
        with_checksum: bool,
    ) -> Result<(HeadObjectOutput, HeaderMap, Content), Refusal> {
        let choose = |entry: &Entry, part: Option<&PartOfObject>| {
            let (bytes, header) = select(entry, part, conditions)?;
            Ok::<_, Refusal>((bytes.clone(), (bytes, header, part.cloned())))
        };
        let (entry, (bytes, content_range, part), content) = self
            .gateway
            .get_object(call, bucket, key, conditions.part(), choose)
            .await
            .map_err(|refusal| of_read(refusal, conditions))?;
        let is_part = content_range.is_some();
        let (mut output, mut headers) = describe(&entry, &bytes, content_range);
        output.parts_count = part.as_ref().map(|part| part.parts as i32);
        add_checksum(&mut headers, &entry, part.as_ref(), with_checksum, is_part);
        Ok((output, headers, content))
    }

    pub(super) async fn head_object(
        &self,
        call: &Call,
        mut input: HeadObjectInput,
        extensions: Extensions,
    ) -> Answer<HeadObjectOutput> {
        let conditions = extensions.get::<Conditions>().cloned().unwrap_or_default();
        let target = (&*input.bucket, &*input.key);
        let (mut output, headers) = self.head(call, target, &conditions, input.checksum_mode.is_some()).await?;
        override_headers!(output, input);
        Ok(S3Response::with_headers(output, headers))
    }

    pub(super) async fn get_object(
        &self,
        call: &Call,
        mut input: GetObjectInput,
        extensions: Extensions,
    ) -> Answer<GetObjectOutput> {
        let conditions = extensions.get::<Conditions>().cloned().unwrap_or_default();
        let target = (&*input.bucket, &*input.key);
        let (mut head, headers, content) = self.get(call, target, &conditions, input.checksum_mode.is_some()).await?;
        override_headers!(head, input);
        let output = GetObjectOutput {
            body: Some(StreamingBlob::wrap(SyncStream(parking_lot::Mutex::new(content.into_stream())))),
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
            parts_count: head.parts_count,
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
