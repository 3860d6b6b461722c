//! Buckets are namespaces.

use s3s::{
    S3Response,
    dto::{
        Bucket, BucketLocationConstraint, CreateBucketConfiguration, CreateBucketInput, CreateBucketOutput,
        DeleteBucketInput, DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput,
        GetBucketVersioningInput, GetBucketVersioningOutput, HeadBucketInput, HeadBucketOutput, ListBucketsInput,
        ListBucketsOutput, Owner,
    },
};

use super::{
    S3Operations,
    entry::timestamp,
    errors::{Answer, Refusal, bad_request},
};
use crate::{app::Call, ops::namespaces::NewNamespace};

/// Most buckets of a page that a client may ask for, as in S3.
const BUCKETS_MAX: i32 = 10_000;
/// The region whose location constraint S3 leaves empty.
const CLASSIC_REGION: &str = "us-east-1";

impl S3Operations {
    pub(super) async fn list_buckets(&self, call: &Call, input: ListBucketsInput) -> Answer<ListBucketsOutput> {
        if input.max_buckets.is_some_and(|max| !(1..=BUCKETS_MAX).contains(&max)) {
            let why = format!("max-buckets must be an integer between 1 and {BUCKETS_MAX}");
            return Err(bad_request("InvalidArgument", why).into());
        }
        let mut all = self.gateway.list_namespaces(call).await?;
        all.retain(|namespace| {
            input.prefix.as_ref().is_none_or(|prefix| namespace.name.starts_with(prefix))
                && input.continuation_token.as_ref().is_none_or(|after| namespace.name > *after)
        });
        let limit = input.max_buckets.and_then(|max| usize::try_from(max).ok());
        let truncated = limit.is_some_and(|limit| all.len() > limit);
        all.truncate(limit.unwrap_or(usize::MAX));
        let continuation_token = all.last().filter(|_| truncated).map(|last| last.name.clone());
        let bucket = |namespace: crate::store::Namespace| Bucket {
            name: Some(namespace.name),
            creation_date: Some(timestamp(namespace.created)),
            bucket_region: None,
        };
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(all.into_iter().map(bucket).collect()),
            continuation_token,
            owner: Some(self.owner(call.caller.uid)),
            prefix: input.prefix,
        }))
    }

    pub(super) async fn create_bucket(&self, call: &Call, input: CreateBucketInput) -> Answer<CreateBucketOutput> {
        self.check_location(input.create_bucket_configuration.as_ref())?;
        let name = input.bucket;
        let location = format!("/{name}");
        let new = NewNamespace::default();
        self.mutate(call, |gateway, call| async move { gateway.create_namespace(&call, &name, &new).await }).await?;
        Ok(S3Response::new(CreateBucketOutput { location: Some(location) }))
    }

    /// A bucket can only be made in this service's region.
    fn check_location(&self, asked: Option<&CreateBucketConfiguration>) -> Result<(), Refusal> {
        let asked = asked.and_then(|asked| asked.location_constraint.as_ref()).map(|region| region.as_str());
        match asked.filter(|region| **region != *self.region) {
            None | Some("") => Ok(()),
            Some(region) => {
                let message = format!("The specified location-constraint is not valid: `{region}`");
                Err(bad_request("InvalidLocationConstraint", message).into())
            }
        }
    }

    pub(super) async fn head_bucket(&self, call: &Call, input: HeadBucketInput) -> Answer<HeadBucketOutput> {
        self.gateway.head_namespace(call, &input.bucket).await?;
        let bucket_region = Some(self.region.to_string());
        Ok(S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() }))
    }

    pub(super) async fn delete_bucket(&self, call: &Call, input: DeleteBucketInput) -> Answer<DeleteBucketOutput> {
        let name = input.bucket;
        self.mutate(call, |gateway, call| async move { gateway.delete_namespace(&call, &name).await }).await?;
        Ok(S3Response::new(DeleteBucketOutput {}))
    }

    pub(super) async fn get_bucket_location(
        &self,
        call: &Call,
        input: GetBucketLocationInput,
    ) -> Answer<GetBucketLocationOutput> {
        self.gateway.head_namespace(call, &input.bucket).await?;
        let constraint =
            (*self.region != *CLASSIC_REGION).then(|| BucketLocationConstraint::from(self.region.to_string()));
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint: constraint }))
    }

    /// Buckets are never versioned.
    pub(super) async fn get_bucket_versioning(
        &self,
        call: &Call,
        input: GetBucketVersioningInput,
    ) -> Answer<GetBucketVersioningOutput> {
        self.gateway.head_namespace(call, &input.bucket).await?;
        Ok(S3Response::new(GetBucketVersioningOutput::default()))
    }

    pub(super) fn owner(&self, uid: u32) -> Owner {
        Owner { display_name: Some(self.owner_name.to_string()), id: Some(uid.to_string()) }
    }
}
