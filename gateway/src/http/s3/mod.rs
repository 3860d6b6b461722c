//! S3, through the `s3s` crate. `s3s` verifies signatures and documents; this module maps operations to use cases. What
//! `s3s` would ignore is refused before: [`authentication`] checks the form of a signature, [`operation`] parameters and
//! headers.

mod attributes;
mod authentication;
mod buckets;
mod checksums;
mod chunked;
mod conditions;
mod copy;
mod copy_source;
mod delete;
mod document;
mod entry;
mod errors;
mod framing;
mod get;
mod headers;
#[cfg(test)]
mod hostile;
mod listing;
mod listing_document;
mod metadata;
mod multipart;
mod operation;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod plain;
mod presigned;
mod put;
mod rename;
mod route;
mod tagging;
mod unset;
mod xml;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Uri, header},
};
use mantle_types::{Caller, Error, ErrorCode};
use s3s::{
    S3, S3Error, S3Request, S3Response, S3Result,
    config::{S3Config, StaticConfigProvider},
    dto,
    host::{S3Host, VirtualHost},
    service::{S3Service, S3ServiceBuilder},
    validation::NameValidation,
};
use uuid::Uuid;

use self::errors::{Answer, s3_error};
use super::{
    App, header_text,
    hosts::{Hosts, Style},
    request_context::RequestContext,
};
use crate::{
    app::{Call, Gateway},
    auth::SecretKeys,
    config::Config,
    disconnect::run_detached,
};

/// The owner of the bucket, as ListBuckets answers it.
const EXPECTED_OWNER: &str = "x-amz-expected-bucket-owner";

/// Of the service that verifies signatures: [`route`] takes every request.
struct NoOperations;

impl S3 for NoOperations {}

#[derive(Clone)]
struct S3Operations {
    gateway: Arc<Gateway>,
    region: Arc<str>,
    owner_name: Arc<str>,
}

/// Accepts nearly all bucket names, because the use cases check them, with errors of the error table. Also, signed
/// calls of the native API (`/v1/…`) look like calls on a bucket. PostgreSQL cannot take NUL.
struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, name: &str) -> bool {
        !name.is_empty() && !name.contains('\0')
    }
}

/// Reads the bucket from the host's name, as the dispatcher has.
struct HostNames(Arc<Hosts>);

impl S3Host for HostNames {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        match self.0.style(host) {
            Some(Style::Path) => Ok(VirtualHost::new(host)),
            Some(Style::Virtual(bucket)) => Ok(VirtualHost::new(host).with_bucket(bucket)),
            None => Err(s3s::s3_error!(InvalidRequest, "The host is not one of this service's names.")),
        }
    }
}

/// Builds the service. `native` answers calls of the native API with an S3 signature.
pub(super) fn service(app: &App, config: &Config, hosts: Arc<Hosts>, native: Router) -> S3Service {
    let mut settings = S3Config::default();
    settings.xml_max_body_size = config.limits.document_bytes_max;
    let settings = Arc::new(StaticConfigProvider::new(Arc::new(settings)));
    let operations = S3Operations {
        gateway: app.gateway.clone(),
        region: config.region.as_str().into(),
        owner_name: config.owner_name.as_str().into(),
    };
    let mut dispatch = S3ServiceBuilder::new(operations.clone());
    dispatch.set_config(settings.clone());
    dispatch.set_validation(AnyName);
    dispatch.set_host(HostNames(hosts.clone()));
    let mut verifying = S3ServiceBuilder::new(NoOperations);
    verifying.set_config(settings);
    verifying.set_auth(SecretKeys(app.credentials.clone()));
    verifying.set_validation(AnyName);
    verifying.set_host(HostNames(hosts));
    verifying.set_route(route::Route {
        native,
        credentials: app.credentials.clone(),
        dispatch: dispatch.build(),
        operations,
        document_bytes_max: config.limits.document_bytes_max,
    });
    verifying.build()
}

/// A request as `s3s` takes it, or the answer to one that is refused before.
#[expect(clippy::result_large_err, reason = "both are a whole HTTP message")]
pub(super) fn prepare(
    request: Request,
    region: &str,
    id: Uuid,
) -> Result<http::Request<s3s::Body>, http::Response<s3s::Body>> {
    let (mut parts, body) = request.into_parts();
    headers::join_repeated(&mut parts.headers);
    let checked = authentication::check(&parts, region).and_then(|()| presigned::add_headers(&mut parts));
    match checked {
        Ok(()) => {
            let body = chunked::withhold(&mut parts, body);
            Ok(http::Request::from_parts(parts, s3s::Body::http_body_unsync(body)))
        }
        Err(error) => Err(response(error, id)),
    }
}

/// The answer to a request that names an unknown host.
pub(super) fn refused(error: &mantle_types::Error, id: Uuid) -> http::Response<Body> {
    response(s3_error(error, id), id).map(Body::new)
}

fn response(mut error: S3Error, id: Uuid) -> http::Response<s3s::Body> {
    error.set_request_id(id.to_string());
    error.to_http_response().unwrap_or_else(|cause| {
        tracing::error!(?cause, "an error document cannot be written");
        let mut empty = http::Response::new(s3s::Body::empty());
        *empty.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        empty
    })
}

/// S3's words for errors for which `s3s` has none. Tools show them.
const WORDS: [(&str, &str); 2] = [
    (
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
    ),
    ("MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema"),
];

/// The answer, with a message if it is an error without one.
pub(super) fn explained(mut answer: http::Response<s3s::Body>) -> http::Response<s3s::Body> {
    let document = answer.body().bytes().filter(|_| answer.status().is_client_error());
    let text = document.as_deref().and_then(|document| std::str::from_utf8(document).ok());
    let Some(text) = text.filter(|text| !text.contains("<Message>")) else { return answer };
    let explained = WORDS.iter().find_map(|(code, message)| {
        let code = format!("<Code>{code}</Code>");
        text.contains(&code).then(|| text.replacen(&code, &format!("{code}<Message>{message}</Message>"), 1))
    });
    if let Some(explained) = explained {
        answer.headers_mut().insert(header::CONTENT_LENGTH, explained.len().into());
        *answer.body_mut() = s3s::Body::from(explained);
    }
    answer
}

/// Whether the request has an S3 signature in its header. The gateway does not offer presigned native calls.
pub(super) fn is_signed(request: &Request) -> bool {
    header_text(request.headers(), header::AUTHORIZATION).is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256"))
}

impl S3Operations {
    /// The call of the caller whom [`route`] found.
    fn authenticate<T>(request: &S3Request<T>, context: &RequestContext) -> mantle_types::Result<Call> {
        let caller = request.extensions.get::<Caller>().cloned();
        context.call(caller.ok_or(ErrorCode::Unauthenticated)?)
    }

    /// An error if the client expects another owner of the bucket than it has.
    async fn check_owner(
        &self,
        caller: &Caller,
        uri: &Uri,
        headers: &HeaderMap,
        style: Option<&Style>,
    ) -> mantle_types::Result<()> {
        let expected = headers.get(EXPECTED_OWNER);
        match expected.and_then(|_| operation::bucket(uri, style)) {
            Some(bucket) => self.check_owner_of(caller, &bucket, expected).await,
            None => Ok(()),
        }
    }

    /// The same of any bucket. A caller who may not use the bucket gets the same answer for every expected owner.
    async fn check_owner_of(
        &self,
        caller: &Caller,
        bucket: &str,
        expected: Option<&HeaderValue>,
    ) -> mantle_types::Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        match self.gateway.owner_of_namespace(caller, bucket).await? {
            // Each operation says itself that there is no such bucket.
            None => Ok(()),
            Some(owner) if expected.to_str().is_ok_and(|expected| expected == owner.to_string()) => Ok(()),
            Some(_) => Err(Error::new(ErrorCode::AccessDenied, "the bucket belongs to another owner than expected")),
        }
    }

    /// Runs a mutation to its end, even when the client disconnects.
    async fn mutate<T: Send + 'static, E, Work>(
        &self,
        call: &Call,
        mutation: impl FnOnce(Arc<Gateway>, Call) -> Work,
    ) -> Result<T, E>
    where
        E: From<Error> + Send + 'static,
        Work: Future<Output = Result<T, E>> + Send + 'static,
    {
        run_detached(mutation(self.gateway.clone(), call.clone())).await
    }
}

/// Each operation authenticates the request and calls the inherent method of the same name, with the input and the
/// named parts of the request.
macro_rules! operations {
    ($($verb:ident: $input:ident $(with $part:ident)* -> $output:ident;)*) => {
        /// The names of the operations, in metrics.
        pub(super) const VERBS: &[&str] = &[$(stringify!($verb)),*];

        #[async_trait::async_trait]
        impl S3 for S3Operations {
            $(
                async fn $verb(&self, request: S3Request<dto::$input>) -> S3Result<S3Response<dto::$output>> {
                    let context = RequestContext::of(&request.extensions, &request.headers);
                    context.set_verb(stringify!($verb));
                    let call = Self::authenticate(&request, &context).map_err(|e| s3_error(&e, context.id()))?;
                    let answer: Answer<dto::$output> = self.$verb(&call, request.input $(, request.$part)*).await;
                    answer.map_err(|refusal| refusal.into_s3(context.id()))
                }
            )*

            /// The trait's default would make a form upload a PutObject.
            async fn post_object(
                &self,
                _request: S3Request<dto::PostObjectInput>,
            ) -> S3Result<S3Response<dto::PostObjectOutput>> {
                Err(errors::not_offered("form uploads are not offered"))
            }
        }
    };
}

operations! {
    list_buckets: ListBucketsInput -> ListBucketsOutput;
    create_bucket: CreateBucketInput -> CreateBucketOutput;
    head_bucket: HeadBucketInput -> HeadBucketOutput;
    delete_bucket: DeleteBucketInput -> DeleteBucketOutput;
    get_bucket_location: GetBucketLocationInput -> GetBucketLocationOutput;
    get_bucket_versioning: GetBucketVersioningInput -> GetBucketVersioningOutput;
    put_object: PutObjectInput with headers with extensions -> PutObjectOutput;
    copy_object: CopyObjectInput with headers with extensions -> CopyObjectOutput;
    get_object: GetObjectInput with extensions -> GetObjectOutput;
    head_object: HeadObjectInput with extensions -> HeadObjectOutput;
    create_multipart_upload: CreateMultipartUploadInput -> CreateMultipartUploadOutput;
    upload_part: UploadPartInput with headers with extensions -> UploadPartOutput;
    upload_part_copy: UploadPartCopyInput with headers with extensions -> UploadPartCopyOutput;
    list_parts: ListPartsInput -> ListPartsOutput;
    list_multipart_uploads: ListMultipartUploadsInput -> ListMultipartUploadsOutput;
    abort_multipart_upload: AbortMultipartUploadInput -> AbortMultipartUploadOutput;
    delete_object: DeleteObjectInput with extensions -> DeleteObjectOutput;
    delete_objects: DeleteObjectsInput -> DeleteObjectsOutput;
    get_object_tagging: GetObjectTaggingInput -> GetObjectTaggingOutput;
    put_object_tagging: PutObjectTaggingInput -> PutObjectTaggingOutput;
    delete_object_tagging: DeleteObjectTaggingInput -> DeleteObjectTaggingOutput;
    get_bucket_tagging: GetBucketTaggingInput -> GetBucketTaggingOutput;
    put_bucket_tagging: PutBucketTaggingInput -> PutBucketTaggingOutput;
    delete_bucket_tagging: DeleteBucketTaggingInput -> DeleteBucketTaggingOutput;
    get_object_attributes: GetObjectAttributesInput -> GetObjectAttributesOutput;
    list_object_versions: ListObjectVersionsInput -> ListObjectVersionsOutput;
    list_objects: ListObjectsInput -> ListObjectsOutput;
    list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output;
}
