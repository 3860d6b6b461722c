//! GetObject and HeadObject as nearly all clients send them, without parameters. They are answered in one pass: `s3s` would
//! read the request a second time, and fill structures of some twenty and forty fields on the way. What an answer says is
//! decided in [`get`](super::get); here it is only written, as `s3s` would write it. A test compares both.

use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use s3s::{
    S3Request, S3Response,
    dto::{HeadObjectOutput, Timestamp, TimestampFormat},
};

use super::{
    S3Operations,
    conditions::Conditions,
    errors::Refusal,
    operation::{self, Operation},
};
use crate::{app::Call, data::Content, http::request_context::RequestContext};

const CHECKSUM_MODE: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

/// Whether a request is a read without anything that `s3s` has to read.
pub(super) fn is_plain(operation: &Operation, request: &S3Request<s3s::Body>) -> bool {
    let is_given_twice = request.headers.get_all(CHECKSUM_MODE).iter().nth(1).is_some();
    operation.is_read() && request.uri.query().is_none_or(str::is_empty) && !is_given_twice
}

impl S3Operations {
    /// Answers a plain read; `None` if `s3s` has to write the answer.
    pub(super) async fn plain_read(
        &self,
        call: &Call,
        operation: &Operation,
        request: &S3Request<s3s::Body>,
        conditions: &Conditions,
    ) -> Result<Option<S3Response<s3s::Body>>, Refusal> {
        let context = RequestContext::of(&request.extensions, &request.headers);
        let (bucket, key) = operation::target(&request.uri, request.extensions.get());
        let target = (&*bucket, key.as_deref().unwrap_or_default());
        let with_checksum = request.headers.contains_key(CHECKSUM_MODE);
        let (output, own, content) = if operation.name == "HeadObject" {
            context.set_verb("head_object");
            let (output, own) = self.head(call, target, conditions, with_checksum).await?;
            (output, own, Content::empty())
        } else {
            context.set_verb("get_object");
            self.get(call, target, conditions, with_checksum).await?
        };
        let Some(mut headers) = written(&output) else { return Ok(None) };
        headers.extend(own);
        let is_part = output.content_range.is_some();
        let status = if is_part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let mut answer = S3Response::with_status(body(content), status);
        answer.headers = headers;
        Ok(Some(answer))
    }
}

/// In one piece if it is one: then it is sent together with the answer's head.
fn body(content: Content) -> s3s::Body {
    match content {
        Content { first, rest: None } => s3s::Body::from(first),
        content => s3s::Body::http_body_unsync(Body::from_stream(content.into_stream())),
    }
}

/// The headers of an answer. `None` if a value is not printable ASCII: such values are encoded (RFC 2047), and `s3s` does
/// that.
fn written(output: &HeadObjectOutput) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(24);
    let texts = [
        (header::ACCEPT_RANGES, &output.accept_ranges),
        (header::CACHE_CONTROL, &output.cache_control),
        (header::CONTENT_DISPOSITION, &output.content_disposition),
        (header::CONTENT_ENCODING, &output.content_encoding),
        (header::CONTENT_LANGUAGE, &output.content_language),
        (header::CONTENT_RANGE, &output.content_range),
        (header::CONTENT_TYPE, &output.content_type),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            headers.insert(name, text(value)?);
        }
    }
    headers.extend(output.content_length.map(|length| (header::CONTENT_LENGTH, length.into())));
    if let Some(etag) = &output.e_tag {
        headers.insert(header::ETAG, etag.to_http_header().ok()?);
    }
    for (name, time) in [(header::EXPIRES, &output.expires), (header::LAST_MODIFIED, &output.last_modified)] {
        if let Some(time) = time {
            headers.insert(name, date(time)?);
        }
    }
    for (name, value) in output.metadata.iter().flatten() {
        let name = HeaderName::try_from(format!("x-amz-meta-{name}")).ok()?;
        headers.insert(name, text(value)?);
    }
    Some(headers)
}

fn text(value: &str) -> Option<HeaderValue> {
    let is_plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    HeaderValue::from_str(value).ok().filter(|_| is_plain)
}

fn date(time: &Timestamp) -> Option<HeaderValue> {
    let mut text = Vec::with_capacity(29);
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use s3s::{
        S3, S3Result,
        dto::{ETag, HeadObjectInput},
        service::S3ServiceBuilder,
    };

    use super::*;

    /// Answers every HeadObject so.
    struct Fixed(HeadObjectOutput);

    #[async_trait::async_trait]
    impl S3 for Fixed {
        async fn head_object(&self, _: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
            Ok(S3Response::new(self.0.clone()))
        }
    }

    async fn written_by_s3s(output: HeadObjectOutput) -> HeaderMap {
        let request = http::Request::head("http://localhost/bucket/key").body(s3s::Body::empty()).unwrap();
        let answer = S3ServiceBuilder::new(Fixed(output)).build().call(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_parts().0.headers
    }

    fn full() -> HeadObjectOutput {
        let some = |text: &str| Some(text.to_owned());
        HeadObjectOutput {
            accept_ranges: some("bytes"),
            cache_control: some("no-store"),
            content_disposition: some("attachment; filename=\"a b\""),
            content_encoding: some("gzip"),
            content_language: some("de"),
            content_length: Some(1 << 40),
            content_range: some("bytes 0-1/2"),
            content_type: some("text/plain; charset=utf-8"),
            e_tag: Some(ETag::Strong("d41d8cd98f00b204e9800998ecf8427e-12".to_owned())),
            expires: Some(Timestamp::parse(TimestampFormat::HttpDate, "Wed, 21 Oct 2015 07:28:00 GMT").unwrap()),
            last_modified: Some(std::time::SystemTime::UNIX_EPOCH.into()),
            metadata: Some(HashMap::from([
                ("colour".to_owned(), "blue; =?UTF-8?B?YQ==?=".to_owned()),
                ("e".to_owned(), String::new()),
            ])),
            ..HeadObjectOutput::default()
        }
    }

    #[tokio::test]
    async fn answers_are_written_as_s3s_writes_them() {
        for output in [full(), HeadObjectOutput::default()] {
            assert_eq!(written(&output).unwrap(), written_by_s3s(output).await);
        }
    }

    #[test]
    fn what_has_rules_of_encoding_is_left_to_s3s() {
        for value in ["bl\u{e5}", "a\tb", "a\nb"] {
            let metadata = Some(HashMap::from([("colour".to_owned(), value.to_owned())]));
            assert!(written(&HeadObjectOutput { metadata, ..full() }).is_none(), "{value}");
            assert!(written(&HeadObjectOutput { content_type: Some(value.to_owned()), ..full() }).is_none(), "{value}");
        }
        let metadata = Some(HashMap::from([("not a name".to_owned(), "v".to_owned())]));
        assert!(written(&HeadObjectOutput { metadata, ..full() }).is_none());
    }
}
