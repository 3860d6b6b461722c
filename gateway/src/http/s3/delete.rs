//! DeleteObject and DeleteObjects. Deleting what is not there succeeds, as in S3.

use futures::{StreamExt, stream};
use mantle_types::{Error, ErrorCode, NamespaceId, Result};
use s3s::{
    S3Error, S3ErrorCode, S3Request, S3Result,
    dto::{
        DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ObjectIdentifier,
    },
};
use std::sync::Arc;

use super::{S3Operations, errors::not_offered};
use crate::{
    app::{Call, Gateway},
    disconnect::run_detached,
};

/// Most keys of one DeleteObjects, as in S3.
const DELETE_KEYS_MAX: usize = 1000;
/// How many of them are deleted at once.
const DELETES_AT_ONCE: usize = 8;

async fn delete(gateway: Arc<Gateway>, call: Call, bucket: String, key: String) -> Result<()> {
    let answer = run_detached(async move {
        match key.ends_with('/') {
            true => gateway.delete_marker(&call, &bucket, &key).await,
            false => gateway.delete_object(&call, &bucket, &key).await,
        }
    });
    match answer.await {
        Err(e) if matches!(e.code(), ErrorCode::NotFound | ErrorCode::ParentIsObject) => Ok(()),
        other => other,
    }
}

impl S3Operations {
    pub(super) async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let authenticated = self.authenticate(&request, "delete_object")?;
        let input = request.input;
        if input.version_id.is_some() || input.if_match.is_some() || input.if_match_size.is_some() {
            return Err(not_offered("versions and conditions on deletes are not offered"));
        }
        let deleted = delete(self.gateway.clone(), authenticated.call.clone(), input.bucket, input.key).await;
        deleted.map_err(|e| authenticated.refuse(&e))?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> S3Result<DeleteObjectsOutput> {
        let authenticated = self.authenticate(&request, "delete_objects")?;
        let DeleteObjectsInput { bucket, delete: batch, .. } = request.input;
        if batch.objects.len() > DELETE_KEYS_MAX {
            return Err(S3Error::with_message(S3ErrorCode::MalformedXML, "at most 1000 keys are allowed"));
        }
        self.gateway.head_namespace(&authenticated.call, &bucket).await.map_err(|e| authenticated.refuse(&e))?;
        let quiet = batch.quiet.unwrap_or_default();
        let one = |object: ObjectIdentifier| {
            // Each key is a request of its own under an id derived from the batch's.
            let (claim, hash) = (authenticated.call.step(NamespaceId(0), &object.key, 0), object.key.clone());
            let call = Call { request: claim.request, ..authenticated.call.clone() };
            let (gateway, bucket) = (self.gateway.clone(), bucket.clone());
            async move {
                if object.version_id.is_some() || object.e_tag.is_some() || object.size.is_some() {
                    let why =
                        Error::new(ErrorCode::NotImplemented, "versions and conditions on deletes are not offered");
                    return (hash, Err(why));
                }
                let answer = delete(gateway, call, bucket, object.key).await;
                (hash, answer)
            }
        };
        let answers: Vec<(String, Result<()>)> =
            stream::iter(batch.objects).map(one).buffered(DELETES_AT_ONCE).collect().await;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, answer) in answers {
            match answer {
                Ok(()) if quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(e) => errors.push(s3s::dto::Error {
                    code: Some(e.code().row().s3.to_owned()),
                    key: Some(key),
                    message: Some(e.detail().to_owned()),
                    version_id: None,
                }),
            }
        }
        Ok(DeleteObjectsOutput {
            deleted: (!deleted.is_empty()).then_some(deleted),
            errors: (!errors.is_empty()).then_some(errors),
            request_charged: None,
        })
    }
}
