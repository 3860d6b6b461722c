//! DeleteObject and DeleteObjects. As in S3, deleting an absent key succeeds.

use futures::{StreamExt, stream};
use http::Extensions;
use mantle_types::{Error, ErrorCode, NamespaceId, Result};
use s3s::{
    S3Error, S3ErrorCode, S3Response,
    dto::{
        self, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag,
        ObjectIdentifier,
    },
};

use time::OffsetDateTime;

use super::{S3Operations, conditions::Conditions, errors::Answer, operation::ONLY_VERSION};
use crate::{app::Call, ops::delete_object::DeleteCondition, store::Precondition};

/// Most keys of one DeleteObjects, as in S3.
const DELETE_KEYS_MAX: usize = 1000;
/// How many keys are deleted at once.
const DELETES_AT_ONCE: usize = 8;

/// The condition of one key of a DeleteObjects.
fn condition_of(object: &ObjectIdentifier) -> Result<DeleteCondition> {
    if object.version_id.as_ref().is_some_and(|version| version != ONLY_VERSION) {
        return Err(Error::new(ErrorCode::NotImplemented, "versions are not offered"));
    }
    let precondition = match &object.e_tag {
        None => Precondition::None,
        Some(ETag::Strong(any)) if any == "*" => Precondition::Present,
        Some(ETag::Strong(etag)) => Precondition::Etag(etag.clone()),
        Some(ETag::Weak(_)) => return Err(ErrorCode::PreconditionFailed.into()),
    };
    let size = object.size.map(u64::try_from).transpose();
    let size = size.map_err(|_| Error::new(ErrorCode::InvalidArgument, "a size is not a number of bytes"))?;
    let modified = object.last_modified_time.clone().map(|time| OffsetDateTime::from(time).unix_timestamp());
    Ok(DeleteCondition { precondition, size, modified })
}

impl S3Operations {
    async fn delete_key(&self, call: &Call, bucket: String, key: String, condition: DeleteCondition) -> Result<()> {
        // AWS answers 404 to If-Match alone.
        let may_be_absent = condition.precondition == Precondition::None;
        let deleted = self.mutate(call, |gateway, call| async move {
            if key.ends_with('/') {
                return gateway.delete_marker(&call, &bucket, &key, &condition).await;
            }
            gateway.delete_object(&call, &bucket, &key, &condition).await
        });
        match deleted.await {
            Err(e) if may_be_absent && matches!(e.code(), ErrorCode::NotFound | ErrorCode::ParentIsObject) => Ok(()),
            other => other,
        }
    }

    pub(super) async fn delete_object(
        &self,
        call: &Call,
        input: DeleteObjectInput,
        extensions: Extensions,
    ) -> Answer<DeleteObjectOutput> {
        let condition = extensions.get::<Conditions>().map(Conditions::of_delete).transpose()?.unwrap_or_default();
        self.delete_key(call, input.bucket, input.key, condition).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(super) async fn delete_objects(&self, call: &Call, input: DeleteObjectsInput) -> Answer<DeleteObjectsOutput> {
        let DeleteObjectsInput { bucket, delete: batch, .. } = input;
        if batch.objects.len() > DELETE_KEYS_MAX {
            return Err(S3Error::with_message(S3ErrorCode::MalformedXML, "at most 1000 keys are allowed").into());
        }
        self.gateway.head_namespace(call, &bucket).await?;
        let quiet = batch.quiet.unwrap_or_default();
        let bucket = &bucket;
        let one = async |object: ObjectIdentifier| {
            // Each key is a request of its own, under an id derived from the batch's.
            let call = Call { request: call.step(NamespaceId(0), &object.key, 0).request, ..call.clone() };
            let condition = condition_of(&object);
            let key = object.key;
            let answer = match condition {
                Ok(condition) => self.delete_key(&call, bucket.clone(), key.clone(), condition).await,
                Err(error) => Err(error),
            };
            (key, answer)
        };
        let answers: Vec<(String, Result<()>)> =
            stream::iter(batch.objects).map(one).buffered(DELETES_AT_ONCE).collect().await;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, answer) in answers {
            match answer {
                Ok(()) if quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(e) => errors.push(dto::Error {
                    code: Some(e.code().row().s3.to_owned()),
                    key: Some(key),
                    message: Some(e.detail().to_owned()),
                    version_id: None,
                }),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: (!deleted.is_empty()).then_some(deleted),
            errors: (!errors.is_empty()).then_some(errors),
            request_charged: None,
        }))
    }
}
