//! Handles a request after `s3s` has verified its signature. A native call goes to the native API. Any other request is
//! checked here, and goes to a second service of `s3s`, which reads it and calls the operation. Between the two
//! services a request can be changed without breaking its signature: parts that `s3s` would misread are removed.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, header},
    response::IntoResponse,
};
use mantle_types::{Caller, Error, ErrorCode};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, route::S3Route, s3_error, service::S3Service};

use super::{
    S3Operations, checksums, chunked,
    conditions::{self, Conditions},
    copy,
    document::{self, Element},
    errors::{self, Refusal},
    framing::Framing,
    listing_document,
    multipart::Target,
    operation::{self, Level, Operation, level},
    plain, unset,
};
use crate::{
    app::Call,
    auth::Credentials,
    data::Trailer,
    http::{header_text, hosts::Style, is_native, native, problem::Failure, request_context::RequestContext},
    store::Precondition,
};

/// The operation whose document and answer [`multipart`] reads and writes.
const COMPLETE: &str = "CompleteMultipartUpload";

fn is_virtual(extensions: &Extensions) -> bool {
    matches!(extensions.get(), Some(Style::Virtual(_)))
}

pub(super) struct Route {
    pub(super) native: Router,
    pub(super) credentials: Arc<Credentials>,
    /// Reads requests and calls operations, without looking at signatures.
    pub(super) dispatch: S3Service,
    /// For operations that `s3s` does not know.
    pub(super) operations: S3Operations,
    pub(super) document_bytes_max: usize,
}

/// The error of a call whose document is, or may be, too large.
fn oversized(uri: &Uri, headers: &HeaderMap, in_host: bool, bytes_max: usize) -> Option<S3Error> {
    if level(uri.path(), in_host) == Level::Object {
        return None;
    }
    if !headers.contains_key(header::CONTENT_LENGTH) {
        return headers.contains_key(header::TRANSFER_ENCODING).then(|| s3_error!(MissingContentLength));
    }
    let length = header_text(headers, header::CONTENT_LENGTH).and_then(|text| text.parse::<usize>().ok());
    let is_over = length.is_none_or(|length| length > bytes_max);
    is_over.then(|| s3_error!(MaxMessageLengthExceeded, "The document is over this service's limit."))
}

/// The target without the parameters of a signature, which would be verified again, and without the part of a read, which
/// [`Conditions`] has.
fn without_signature(uri: &Uri, is_read: bool) -> Uri {
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        let is_of_signature = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
        !(pair.is_empty() || is_of_signature || is_read && name == "partNumber")
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    let target = if query.is_empty() { uri.path().to_owned() } else { format!("{}?{query}", uri.path()) };
    // A part of a valid target is valid.
    target.parse().unwrap_or_else(|_| uri.clone())
}

fn parameter(uri: &Uri, wanted: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
}

fn converted(response: Response<Body>) -> S3Response<s3s::Body> {
    let (parts, body) = response.into_parts();
    let mut converted = S3Response::with_status(s3s::Body::http_body_unsync(body), parts.status);
    converted.headers = parts.headers;
    converted.extensions = parts.extensions;
    converted
}

impl Route {
    async fn native(&self, request: S3Request<s3s::Body>, caller: Caller) -> S3Response<s3s::Body> {
        let mut call = Request::new(Body::new(request.input));
        *call.method_mut() = request.method;
        *call.uri_mut() = request.uri;
        *call.headers_mut() = request.headers;
        *call.extensions_mut() = request.extensions;
        call.extensions_mut().insert(caller);
        converted(native(&self.native, call).await)
    }

    /// Checks a request.
    fn check(&self, request: &S3Request<s3s::Body>) -> S3Result<(&'static Operation, Conditions)> {
        let in_host = is_virtual(&request.extensions);
        let operation = operation::check(&request.method, &request.uri, &request.headers, in_host)?;
        if let Some(error) = oversized(&request.uri, &request.headers, in_host, self.document_bytes_max) {
            return Err(error);
        }
        let part = parameter(&request.uri, "partNumber").filter(|_| operation.is_read());
        Ok((operation, Conditions::read(&request.headers, part.as_deref())?))
    }

    /// Answers an operation that `s3s` does not know, or that is about a setting which is never set.
    async fn own(
        &self,
        operation: &'static str,
        call: Call,
        request: &S3Request<s3s::Body>,
        conditions: &Conditions,
        document: &[Element],
    ) -> Result<S3Response<s3s::Body>, Refusal> {
        RequestContext::of(&request.extensions, &request.headers).set_verb(if operation == "RenameObject" {
            "rename_object"
        } else {
            "unset"
        });
        let (operations, gateway) = (&self.operations, &self.operations.gateway);
        let (bucket, key) = operation::target(&request.uri, request.extensions.get());
        if operation == "RenameObject" {
            let overwrites = match conditions.of_put()? {
                Precondition::None => true,
                Precondition::Absent => false,
                _ => return Err(errors::not_offered("RenameObject is offered with If-None-Match: * only").into()),
            };
            let key = key.unwrap_or_default();
            operations.rename_object(call, &bucket, key, &request.headers, overwrites).await?;
            return Ok(S3Response::new(s3s::Body::empty()));
        }
        let owner = match key {
            Some(key) => gateway.head_object(&call, &bucket, &key).await?.permission.owner,
            None => {
                gateway.head_namespace(&call, &bucket).await?;
                gateway.store.namespace(&bucket).await?.map_or(call.caller.uid, |namespace| namespace.owner)
            }
        };
        Ok(operations.unset(operation, owner, &request.headers, document)?)
    }

    /// The elements of a request's document, which is compared with its digests; none if the operation takes none.
    async fn elements(
        &self,
        operation: &Operation,
        request: &S3Request<s3s::Body>,
        body: s3s::Body,
    ) -> S3Result<Vec<Element>> {
        let Some(elements) = operation.document() else { return Ok(Vec::new()) };
        let expected = checksums::announced(&request.headers, request.extensions.get::<Trailer>().cloned())?;
        let framing = Framing::of(&request.headers);
        let read = document::read(body, self.document_bytes_max, expected, framing).await?;
        document::elements(&read, elements)
    }

    async fn s3(&self, mut request: S3Request<s3s::Body>, caller: Caller) -> S3Result<S3Response<s3s::Body>> {
        let (operation, conditions) = self.check(&request)?;
        let context = RequestContext::of(&request.extensions, &request.headers);
        let refused = |error: Refusal| error.into_s3(context.id());
        let style = request.extensions.get();
        let owned = self.operations.check_owner(&caller, &request.uri, &request.headers, style).await;
        owned.map_err(|error| refused(error.into()))?;
        if unset::is_unset(operation.name) || operation.name == "RenameObject" {
            let call = context.call(caller).map_err(|error| refused(error.into()))?;
            let body = std::mem::take(&mut request.input);
            let document = self.elements(operation, &request, body).await?;
            return self.own(operation.name, call, &request, &conditions, &document).await.map_err(refused);
        }
        if let Some(input) = listing_document::plain(operation, &request) {
            let call = context.call(caller).map_err(|error| refused(error.into()))?;
            context.set_verb("list_objects_v2");
            return self.operations.list_plain(&call, input).await.map_err(refused);
        }
        if plain::is_plain(operation, &request) {
            let call = context.call(caller.clone()).map_err(|error| refused(error.into()))?;
            let answer = self.operations.plain_read(&call, operation, &request, &conditions).await;
            match answer.map_err(refused) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) => return with_condition(error, &conditions),
            }
        }
        let S3Request { mut input, method, uri, mut headers, mut extensions, .. } = request;
        if let Some(elements) = operation.document() {
            let expected = match operation.name {
                COMPLETE => checksums::of_document(&headers, extensions.get::<Trailer>().cloned())?,
                _ => checksums::announced(&headers, extensions.get::<Trailer>().cloned())?,
            };
            if operation.demands_digest() && !expected.is_any() {
                let missing = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*";
                return Err(errors::bad_request("InvalidRequest", missing));
            }
            let framing = Framing::of(&headers);
            let read = document::read(input, self.document_bytes_max, expected, framing).await?;
            if operation.name == COMPLETE {
                let elements = document::elements(&read, elements)?;
                let call = context.call(caller).map_err(|error| refused(error.into()))?;
                context.set_verb("complete_multipart_upload");
                let (bucket, key) = operation::target(&uri, extensions.get());
                let upload = parameter(&uri, operation::UPLOAD_ID).unwrap_or_default();
                let target = Target { bucket, key: key.unwrap_or_default(), upload };
                let completed =
                    self.operations.complete_multipart_upload(call, target, &headers, &conditions, &elements);
                return completed.await.map_err(refused).or_else(|error| with_condition(error, &conditions));
            }
            let plain = document::plain(&read, elements)?;
            headers.insert(header::CONTENT_LENGTH, plain.len().into());
            input = s3s::Body::from(plain);
        }
        for name in conditions::HEADERS.into_iter().chain([header::AUTHORIZATION]) {
            headers.remove(name);
        }
        let failed = conditions.clone();
        extensions.insert(copy::take_conditions(&mut headers)?);
        extensions.insert(caller);
        extensions.insert(conditions);
        let mut call = Request::new(input);
        *call.method_mut() = method;
        *call.uri_mut() = without_signature(&uri, operation.is_read());
        *call.headers_mut() = headers;
        *call.extensions_mut() = extensions;
        let answer = self.dispatch.call(call).await.map_err(|cause| {
            tracing::error!(?cause, "the S3 dispatch failed");
            s3_error!(InternalError)
        })?;
        Ok(corrected(answer, operation, failed.first_name()))
    }
}

/// The answer of `s3s`, changed where S3 answers otherwise. `condition`: the first of the request.
fn corrected(
    answer: Response<s3s::Body>,
    operation: &Operation,
    condition: Option<&'static str>,
) -> S3Response<s3s::Body> {
    let (parts, body) = answer.into_parts();
    let mut converted = S3Response::with_status(body, parts.status);
    converted.headers = parts.headers;
    converted.extensions = parts.extensions;
    // `s3s` answers HEAD with 200 in any case.
    if operation.is_read() && parts.status.is_success() && converted.headers.contains_key(header::CONTENT_RANGE) {
        converted.status = Some(StatusCode::PARTIAL_CONTENT);
    }
    if operation.name == "PutBucketTagging" && parts.status == StatusCode::OK {
        converted.status = Some(StatusCode::NO_CONTENT);
    }
    // Its etag alone has no quotes in S3.
    if operation.name == "GetObjectAttributes" {
        rewrite(&mut converted, |text| text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>"));
    }
    if let Some(misnamed) = converted.extensions.remove() {
        rewrite(&mut converted, |text| checksums::rename(text, misnamed));
    }
    if parts.status == StatusCode::PRECONDITION_FAILED
        && let Some(condition) = condition
    {
        name_condition(&mut converted, condition);
    }
    converted
}

/// The answer of a condition that failed; any other error stays one.
fn with_condition(error: S3Error, conditions: &Conditions) -> S3Result<S3Response<s3s::Body>> {
    let name = conditions.first_name().filter(|_| *error.code() == S3ErrorCode::PreconditionFailed);
    let Some(name) = name else { return Err(error) };
    let written = error.to_http_response().map_err(|_| s3_error!(InternalError))?;
    let (parts, body) = written.into_parts();
    let mut answer = S3Response::with_status(body, parts.status);
    answer.headers = parts.headers;
    name_condition(&mut answer, name);
    Ok(answer)
}

/// Adds the condition that failed to an error document, as S3 does.
fn name_condition(answer: &mut S3Response<s3s::Body>, condition: &str) {
    let with = format!("<Condition>{condition}</Condition></Error>");
    rewrite(answer, |text| text.replacen("</Error>", &with, 1));
}

/// Changes the document of an answer where `s3s` writes another one than S3.
fn rewrite(answer: &mut S3Response<s3s::Body>, change: impl FnOnce(&str) -> String) {
    let Some(document) = answer.output.bytes() else { return };
    let Ok(text) = std::str::from_utf8(&document) else { return };
    let changed = change(text);
    answer.headers.insert(header::CONTENT_LENGTH, changed.len().into());
    answer.output = s3s::Body::from(changed);
}

#[async_trait::async_trait]
impl S3Route for Route {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        true
    }

    async fn call(&self, mut request: S3Request<s3s::Body>) -> S3Result<S3Response<s3s::Body>> {
        let access_key = request.credentials.as_ref().map(|c| c.access_key.clone()).unwrap_or_default();
        let caller = self.credentials.by_access_key(&access_key).map_err(|_| s3_error!(InvalidAccessKeyId))?;
        let restored = chunked::restore(&mut request);
        if !is_virtual(&request.extensions) && is_native(request.uri.path()) {
            return Ok(match restored.and_then(|()| checksums::refuse_all(&request.headers)) {
                Ok(()) => self.native(request, caller).await,
                Err(error) => {
                    let why = error.message().unwrap_or_default().to_owned();
                    converted(Failure(Error::new(ErrorCode::InvalidArgument, why)).into_response())
                }
            });
        }
        let context = request.extensions.get::<RequestContext>().cloned();
        let answer = async {
            restored?;
            self.s3(request, caller).await
        };
        answer.await.map_err(|mut error| {
            if let Some(context) = context {
                context.set_verb("not_offered");
                error.set_request_id(context.id().to_string());
            }
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_bounded_and_objects_are_not() {
        let code = |target: &str, name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            oversized(&target.parse().unwrap(), &headers, false, 100).map(|error| error.code().as_str().to_owned())
        };
        assert_eq!(code("/b?delete", "content-length", "100"), None);
        assert_eq!(code("/b/k", "content-length", "101"), None);
        assert_eq!(code("/b", "x-other", "1"), None);
        for (name, value, wanted) in [
            ("content-length", "101", "MaxMessageLengthExceeded"),
            ("content-length", "x", "MaxMessageLengthExceeded"),
            ("transfer-encoding", "chunked", "MissingContentLength"),
        ] {
            assert_eq!(code("/b?delete", name, value).as_deref(), Some(wanted), "{name} {value}");
        }
    }

    #[test]
    fn the_dispatch_sees_no_signature() {
        for (target, left) in [
            ("/b/k", "/b/k"),
            ("/b/k%2F?X-Amz-Signature=1&x-amz-acl=private", "/b/k%2F"),
            ("/b?list-type=2&X-Amz-Date=1&prefix=x-amz-a", "/b?list-type=2&prefix=x-amz-a"),
            ("/b/k?partNumber=1&response-expires=0", "/b/k?response-expires=0"),
        ] {
            assert_eq!(without_signature(&target.parse().unwrap(), true), left);
        }
        let of_part = Uri::from_static("/b/k?partNumber=7");
        assert_eq!(without_signature(&of_part, false), of_part);
        assert_eq!(parameter(&of_part, "partNumber").as_deref(), Some("7"));
    }
}
