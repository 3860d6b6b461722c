//! S3, through the `s3s` crate. `s3s` verifies signatures and documents; this module maps operations to use cases. The
//! gateway refuses other features as NotImplemented: the `S3` trait's defaults refuse other operations, and
//! [`route`] refuses unknown subresources and parameters.

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
    dto,
    service::{S3Service, S3ServiceBuilder},
    validation::NameValidation,
};

use self::errors::{Answer, s3_error};
use super::{App, header_text, request_context::RequestContext};
use crate::{
    app::{Call, Gateway},
    auth::{Credentials, SecretKeys},
    config::Config,
    disconnect::run_detached,
};

struct S3Operations {
    gateway: Arc<Gateway>,
    credentials: Arc<Credentials>,
    region: String,
    owner_name: String,
}

/// Accepts nearly all bucket names, because the use cases check them, with errors of the error table. Also, signed
/// calls of the native API (`/v1/…`) look like calls on a bucket. PostgreSQL cannot take NUL.
struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, name: &str) -> bool {
        !name.is_empty() && !name.contains('\0')
    }
}

/// Builds the service. `native` answers calls of the native API with an S3 signature.
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

/// Whether the request has an S3 signature in its header. The gateway does not offer presigned native calls.
pub(super) fn is_signed(request: &Request) -> bool {
    header_text(request.headers(), header::AUTHORIZATION).is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256"))
}

impl S3Operations {
    fn authenticate<T>(&self, request: &S3Request<T>, context: &RequestContext) -> mantle_types::Result<Call> {
        let access_key = request.credentials.as_ref().map(|credentials| credentials.access_key.as_str());
        context.call(self.credentials.by_access_key(access_key.unwrap_or_default())?)
    }

    /// Runs a mutation to its end, even when the client disconnects.
    async fn mutate<T: Send + 'static, Work>(
        &self,
        call: &Call,
        mutation: impl FnOnce(Arc<Gateway>, Call) -> Work,
    ) -> mantle_types::Result<T>
    where
        Work: Future<Output = mantle_types::Result<T>> + Send + 'static,
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
                    let call = self.authenticate(&request, &context).map_err(|e| s3_error(&e, context.id()))?;
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
    put_object: PutObjectInput with headers with trailing_headers -> PutObjectOutput;
    get_object: GetObjectInput -> GetObjectOutput;
    head_object: HeadObjectInput -> HeadObjectOutput;
    delete_object: DeleteObjectInput -> DeleteObjectOutput;
    delete_objects: DeleteObjectsInput -> DeleteObjectsOutput;
    list_objects: ListObjectsInput -> ListObjectsOutput;
    list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output;
}
