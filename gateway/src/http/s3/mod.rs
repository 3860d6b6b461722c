//! S3, through the `s3s` crate: it verifies signatures and checks documents, this module maps operations to use cases.
//! What is not offered is refused as NotImplemented: operations that `S3` below does not override by the trait's defaults,
//! unknown subresources and parameters by the route (see [`route`]).

mod buckets;
mod conditions;
mod delete;
mod entry;
mod errors;
mod get;
mod listing;
mod metadata;
mod put;
mod route;

use std::sync::Arc;

use axum::{Router, extract::Request, http::header};
use s3s::{
    S3, S3Request, S3Response, S3Result,
    config::{S3Config, StaticConfigProvider},
    dto::{
        CreateBucketInput, CreateBucketOutput, DeleteBucketInput, DeleteBucketOutput, DeleteObjectInput,
        DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, GetBucketLocationInput, GetBucketLocationOutput,
        GetBucketVersioningInput, GetBucketVersioningOutput, GetObjectInput, GetObjectOutput, HeadBucketInput,
        HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput, ListObjectsInput,
        ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, PostObjectInput, PostObjectOutput, PutObjectInput,
        PutObjectOutput,
    },
    service::{S3Service, S3ServiceBuilder},
    validation::NameValidation,
};

use self::errors::not_offered;
use super::{App, request_context::RequestContext};
use crate::{
    app::{Call, Gateway},
    auth::{Credentials, SecretKeys},
    config::Config,
};

/// The S3 operations.
struct S3Operations {
    gateway: Arc<Gateway>,
    credentials: Arc<Credentials>,
    region: String,
    owner_name: String,
}

/// Leaves bucket names to the use cases, whose errors are in the error table, but for what PostgreSQL cannot be asked, and lets signed native calls (`/v1/…`) pass.
struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, name: &str) -> bool {
        !name.is_empty() && !name.contains('\0')
    }
}

/// Builds the service. `native` answers calls of the native API that are signed in S3's way.
pub(super) fn service(app: &App, config: &Config, native: Router) -> S3Service {
    let mut builder = S3ServiceBuilder::new(S3Operations {
        gateway: app.gateway.clone(),
        credentials: app.credentials.clone(),
        region: config.region.clone(),
        owner_name: config.owner_name.clone(),
    });
    let mut settings = S3Config::default();
    settings.xml_max_body_size = config.limits.document_bytes_max;
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(settings))));
    builder.set_auth(SecretKeys(app.credentials.clone()));
    builder.set_validation(AnyName);
    builder.set_route(route::Route {
        native,
        credentials: app.credentials.clone(),
        document_bytes_max: config.limits.document_bytes_max as u64,
    });
    builder.build()
}

/// Does the request carry a signature in its header? (Presigned native calls are not offered.)
pub(super) fn is_signed(request: &Request) -> bool {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    header.is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256"))
}

/// A request that passed authentication: who calls, and the trail of the request.
struct Authenticated {
    call: Call,
    tracked: RequestContext,
}

impl Authenticated {
    /// Turns an error into S3's.
    fn refuse(&self, error: &mantle_types::Error) -> s3s::S3Error {
        errors::s3_error(error, self.tracked.id())
    }
}

impl S3Operations {
    fn authenticate<T>(&self, request: &S3Request<T>, verb: &'static str) -> S3Result<Authenticated> {
        let tracked = request
            .extensions
            .get::<RequestContext>()
            .cloned()
            .unwrap_or_else(|| RequestContext::begin(&request.headers));
        tracked.set_verb(verb);
        let refuse = |error: mantle_types::Error| errors::s3_error(&error, tracked.id());
        let access_key = request.credentials.as_ref().map(|credentials| credentials.access_key.as_str());
        let caller = self.credentials.by_access_key(access_key.unwrap_or_default()).map_err(refuse)?;
        let call = tracked.call(caller).map_err(refuse)?;
        Ok(Authenticated { call, tracked })
    }
}

type Request3<T> = S3Request<T>;
type Response3<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl S3 for S3Operations {
    async fn list_buckets(&self, request: Request3<ListBucketsInput>) -> Response3<ListBucketsOutput> {
        self.list_buckets(request).await.map(S3Response::new)
    }

    async fn create_bucket(&self, request: Request3<CreateBucketInput>) -> Response3<CreateBucketOutput> {
        self.create_bucket(request).await.map(S3Response::new)
    }

    async fn head_bucket(&self, request: Request3<HeadBucketInput>) -> Response3<HeadBucketOutput> {
        self.head_bucket(request).await.map(S3Response::new)
    }

    async fn delete_bucket(&self, request: Request3<DeleteBucketInput>) -> Response3<DeleteBucketOutput> {
        self.delete_bucket(request).await.map(|()| S3Response::new(DeleteBucketOutput {}))
    }

    async fn get_bucket_location(
        &self,
        request: Request3<GetBucketLocationInput>,
    ) -> Response3<GetBucketLocationOutput> {
        self.get_bucket_location(request).await.map(S3Response::new)
    }

    async fn get_bucket_versioning(
        &self,
        request: Request3<GetBucketVersioningInput>,
    ) -> Response3<GetBucketVersioningOutput> {
        self.get_bucket_versioning(request).await.map(S3Response::new)
    }

    async fn put_object(&self, request: Request3<PutObjectInput>) -> Response3<PutObjectOutput> {
        self.put_object(request).await.map(S3Response::new)
    }

    /// The trait's default would make a form upload a PutObject.
    async fn post_object(&self, _request: Request3<PostObjectInput>) -> Response3<PostObjectOutput> {
        Err(not_offered("form uploads are not offered"))
    }

    async fn get_object(&self, request: Request3<GetObjectInput>) -> Response3<GetObjectOutput> {
        self.get_object(request).await
    }

    async fn head_object(&self, request: Request3<HeadObjectInput>) -> Response3<HeadObjectOutput> {
        self.head_object(request).await
    }

    async fn delete_object(&self, request: Request3<DeleteObjectInput>) -> Response3<DeleteObjectOutput> {
        self.delete_object(request).await.map(S3Response::new)
    }

    async fn delete_objects(&self, request: Request3<DeleteObjectsInput>) -> Response3<DeleteObjectsOutput> {
        self.delete_objects(request).await.map(S3Response::new)
    }

    async fn list_objects(&self, request: Request3<ListObjectsInput>) -> Response3<ListObjectsOutput> {
        self.list_objects(request).await.map(S3Response::new)
    }

    async fn list_objects_v2(&self, request: Request3<ListObjectsV2Input>) -> Response3<ListObjectsV2Output> {
        self.list_objects_v2(request).await.map(S3Response::new)
    }
}
