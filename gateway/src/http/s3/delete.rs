//! DeleteObject and DeleteObjects. As in S3, deleting an absent key succeeds.

use futures::{StreamExt, stream};
use mantle_types::{Error, ErrorCode, NamespaceId, Result};
use s3s::{
    S3Error, S3ErrorCode, S3Response,
    dto::{
        self, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
        ObjectIdentifier,
    },
};

use super::{S3Operations, errors::Answer, operation::ONLY_VERSION};
use crate::app::Call;

/// Most keys of one DeleteObjects, as in S3.
const DELETE_KEYS_MAX: usize = 1000;
/// How many keys are deleted at once.
const DELETES_AT_ONCE: usize = 8;
const CONDITIONS: &str = "versions and conditions on deletes are not offered";

impl S3Operations {
    async fn delete_key(&self, call: &Call, bucket: String, key: String) -> Result<()> {
        let deleted = self.mutate(call, |gateway, call| async move {
            if key.ends_with('/') {
                return gateway.delete_marker(&call, &bucket, &key).await;
            }
            gateway.delete_object(&call, &bucket, &key).await
        });
        match deleted.await {
            Err(e) if matches!(e.code(), ErrorCode::NotFound | ErrorCode::ParentIsObject) => Ok(()),
            other => other,
        }
    }

    pub(super) async fn delete_object(&self, call: &Call, input: DeleteObjectInput) -> Answer<DeleteObjectOutput> {
        self.delete_key(call, input.bucket, input.key).await?;
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
            let key = object.key;
            let answer = match object.version_id.as_ref().is_some_and(|version| version != ONLY_VERSION)
                || object.e_tag.is_some()
                || object.size.is_some()
                || object.last_modified_time.is_some()
            {
                true => Err(Error::new(ErrorCode::NotImplemented, CONDITIONS)),
                false => self.delete_key(&call, bucket.clone(), key.clone()).await,
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
