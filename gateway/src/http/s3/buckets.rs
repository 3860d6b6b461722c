//! Buckets are namespaces.

use s3s::{
    S3Request, S3Result,
    dto::{
        Bucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
        GetBucketLocationInput, GetBucketLocationOutput, GetBucketVersioningInput, GetBucketVersioningOutput,
        HeadBucketInput, HeadBucketOutput, ListBucketsInput, ListBucketsOutput, Owner,
    },
};

use super::{S3Operations, entry::timestamp};
use crate::disconnect::run_detached;

/// The region whose location constraint S3 leaves empty.
const CLASSIC_REGION: &str = "us-east-1";

impl S3Operations {
    pub(super) async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> S3Result<ListBucketsOutput> {
        let authenticated = self.authenticate(&request, "list_buckets")?;
        let mut all = self.gateway.list_namespaces(&authenticated.call).await.map_err(|e| authenticated.refuse(&e))?;
        let input = request.input;
        all.retain(|namespace| {
            input.prefix.as_ref().is_none_or(|prefix| namespace.name.starts_with(prefix))
                && input.continuation_token.as_ref().is_none_or(|after| namespace.name > *after)
        });
        let limit = input.max_buckets.and_then(|max| usize::try_from(max).ok()).filter(|max| *max > 0);
        let truncated = limit.is_some_and(|limit| all.len() > limit);
        all.truncate(limit.unwrap_or(usize::MAX));
        let continuation_token = all.last().filter(|_| truncated).map(|last| last.name.clone());
        let bucket = |namespace: crate::store::Namespace| Bucket {
            name: Some(namespace.name),
            creation_date: Some(timestamp(namespace.created)),
            bucket_region: None,
        };
        Ok(ListBucketsOutput {
            buckets: Some(all.into_iter().map(bucket).collect()),
            continuation_token,
            owner: Some(self.owner(authenticated.call.caller.uid)),
            prefix: input.prefix,
        })
    }

    pub(super) async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<CreateBucketOutput> {
        let authenticated = self.authenticate(&request, "create_bucket")?;
        let name = request.input.bucket;
        let location = format!("/{name}");
        let (gateway, call) = (self.gateway.clone(), authenticated.call.clone());
        let created = run_detached(async move { gateway.create_namespace(&call, &name, None).await }).await;
        created.map_err(|e| authenticated.refuse(&e))?;
        Ok(CreateBucketOutput { location: Some(location) })
    }

    pub(super) async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<HeadBucketOutput> {
        let authenticated = self.authenticate(&request, "head_bucket")?;
        let found = self.gateway.head_namespace(&authenticated.call, &request.input.bucket).await;
        found.map_err(|e| authenticated.refuse(&e))?;
        Ok(HeadBucketOutput { bucket_region: Some(self.region.clone()), ..HeadBucketOutput::default() })
    }

    pub(super) async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> S3Result<()> {
        let authenticated = self.authenticate(&request, "delete_bucket")?;
        let (gateway, call) = (self.gateway.clone(), authenticated.call.clone());
        let removed = run_detached(async move { gateway.delete_namespace(&call, &request.input.bucket).await }).await;
        removed.map_err(|e| authenticated.refuse(&e))
    }

    pub(super) async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<GetBucketLocationOutput> {
        let authenticated = self.authenticate(&request, "get_bucket_location")?;
        let found = self.gateway.head_namespace(&authenticated.call, &request.input.bucket).await;
        found.map_err(|e| authenticated.refuse(&e))?;
        let constraint = (self.region != CLASSIC_REGION).then(|| BucketLocationConstraint::from(self.region.clone()));
        Ok(GetBucketLocationOutput { location_constraint: constraint })
    }

    /// Buckets are never versioned.
    pub(super) async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<GetBucketVersioningOutput> {
        let authenticated = self.authenticate(&request, "get_bucket_versioning")?;
        let found = self.gateway.head_namespace(&authenticated.call, &request.input.bucket).await;
        found.map_err(|e| authenticated.refuse(&e))?;
        Ok(GetBucketVersioningOutput::default())
    }

    pub(super) fn owner(&self, uid: u32) -> Owner {
        Owner { display_name: Some(self.owner_name.clone()), id: Some(uid.to_string()) }
    }
}
