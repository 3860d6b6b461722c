//! put_object: stores the bytes, then the metadata, then removes the replaced bytes. A crash in between leaves bytes
//! that no metadata names; the sweeper removes these. Missing parents are made.

use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use mantle_types::{Error, ErrorCode, Result, name::Path, permission::Access};
use serde_json::Value;

use super::{
    locate::{Located, Purpose, Reached},
    restarts::Restarts,
};
use crate::{
    app::{Call, Gateway, OBJECT_MODE},
    data::{Expected, Stored, UploadError},
    hash::RequestHash,
    store::{LeasedPartition, NewObject, Precondition, accepted},
};

/// The metadata that does not follow from the bytes.
#[derive(Clone, Debug, Default)]
pub struct PutObject {
    pub content_type: Option<String>,
    pub user_metadata: Option<Value>,
    pub precondition: Precondition,
}

/// Stored bytes, and how far the parents' path existed before.
pub struct Received {
    pub stored: Stored,
    reached: Option<Reached>,
}

pub(super) fn object_path(key: &str) -> Result<Path<'_>> {
    let path = Path::parse(key)?;
    if path.is_directory() {
        return Err(Error::new(ErrorCode::InvalidArgument, "a key that ends in a slash names a directory"));
    }
    Ok(path)
}

impl Gateway {
    /// Stores the bytes of an object. May be cancelled: nothing is visible yet.
    pub async fn receive_object<S, E>(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        body: S,
        expected: Expected,
    ) -> Result<Received, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = object_path(key).map_err(UploadError::Store)?;
        let parents = path.split_last().map(|(_, parents)| parents).unwrap_or_default();
        // Resolved before the body is read, so that a client that waits for `100 Continue` gets a refusal first. With a
        // client's request id the recorded answer comes before resolving (P19), and finding it takes the body's hash.
        let reached = match call.client_key {
            true => None,
            false => {
                let found = self.search(&call.caller, namespace, parents, Purpose::Lookup).await;
                let reached = found.map_err(UploadError::Store)?;
                self.refuse_object(&reached, parents).await.map_err(UploadError::Store)?;
                let (Reached::All(directory) | Reached::Part { deepest: directory, .. }) = reached;
                match (reached, path.split_last()) {
                    (Reached::All(_), Some((name, _))) => self.check_put(call, &directory, name).await,
                    _ => directory.check_change(&call.caller),
                }
                .map_err(UploadError::Store)?;
                Some(reached)
            }
        };
        let stored = self.store_bytes(body, expected).await?;
        Ok(Received { stored, reached })
    }

    /// Makes the bytes an object. If cancelled, it may leave bytes to the sweeper.
    pub async fn put_object(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        put: PutObject,
        received: Received,
    ) -> Result<()> {
        let (Received { stored, reached }, precondition) = (received, put.precondition.clone());
        let answer = self.commit_object(call, namespace, key, put, &stored, reached).await;
        if let Err(error) = &answer
            && !matches!(error.code(), ErrorCode::UnknownOutcome | ErrorCode::AwaitTimeout)
        {
            self.data.discard(&stored).await;
        }
        match answer {
            Err(error) => Err(self.explain_failure(call, namespace, key, &precondition, error).await),
            done => done,
        }
    }

    /// A condition on an object that does not exist is `not_found`, as in S3.
    pub(super) async fn explain_failure(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        precondition: &Precondition,
        error: Error,
    ) -> Error {
        let names_object = matches!(precondition, Precondition::Present | Precondition::Etag(_));
        if error.code() != ErrorCode::PreconditionFailed || !names_object {
            return error;
        }
        match self.head_object(call, namespace, key).await {
            Err(absent) if absent.code() == ErrorCode::NotFound => absent,
            _ => error,
        }
    }

    async fn commit_object(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        put: PutObject,
        stored: &Stored,
        mut reached: Option<Reached>,
    ) -> Result<()> {
        let path = object_path(key)?;
        let Some((name, parents)) = path.split_last() else { return Err(ErrorCode::InvalidArgument.into()) };
        let hash = RequestHash::new("put_object", namespace, key)
            .optional(put.content_type.as_deref())
            .optional(put.user_metadata.as_ref().map(Value::to_string))
            .optional(put.precondition.as_sql())
            .part(stored.size.to_le_bytes())
            .part(&stored.checksums.md5)
            .finish();
        if self.replayed(call, namespace, hash).await?.is_some() {
            // The earlier attempt stored the same bytes under its own locator.
            self.data.discard(stored).await;
            return Ok(());
        }
        let mut restarts = Restarts::default();
        loop {
            let parent = self.make_parents(call, namespace, parents, reached.take()).await?;
            self.check_put(call, &parent.directory, name).await?;
            self.admit_key(parent.directory.ns, &path).await?;
            let partition = self.before_swept(stored, parent.directory.leased_partition())?;
            let claim = call.claim(parent.directory.ns, hash);
            let answer = self
                .with_new_id(|id| {
                    let new = NewObject {
                        name: name.to_owned(),
                        id,
                        permission: call.permission(OBJECT_MODE),
                        size: stored.size,
                        etag: stored.checksums.md5.clone(),
                        content_type: put.content_type.clone(),
                        user_metadata: put.user_metadata.clone(),
                        locator: stored.locator.clone(),
                        precondition: put.precondition.clone(),
                    };
                    self.store.put_object.submit(claim, &call.caller, partition, new)
                })
                .await;
            match answer.and_then(accepted) {
                Ok(written) => {
                    // A replayed answer may be this attempt's own, if its connection broke. If it is an earlier one's,
                    // the sweeper finds these bytes.
                    self.delete_replaced(&written).await;
                    return match &parent.made {
                        Some((key, made)) => self.index.await_written(namespace, *key, made).await,
                        None => Ok(()),
                    };
                }
                Err(e) if e.code() == ErrorCode::IsDirectory => {
                    let directory = parent.directory;
                    match self.prune_ghost(directory.ns, directory.pid(), name).await? {
                        true => restarts.again().await?,
                        false => return Err(e),
                    }
                }
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }

    /// An error if the caller may surely not put an object of this name: neither make one nor replace the one that is there.
    /// The verb decides, under its latch.
    pub(super) async fn check_put(&self, call: &Call, directory: &Located, name: &str) -> Result<()> {
        let Err(refusal) = directory.check_change(&call.caller) else { return Ok(()) };
        directory.check(&call.caller, Access::Search)?;
        match self.store.entry(directory.ns, directory.pid(), vec![name.to_owned()]).await? {
            Some(object) if directory.permission.may_replace(&call.caller, &object.permission) => Ok(()),
            _ => Err(refusal),
        }
    }

    /// The partition with a lease that ends before the sweeper may take the bytes for unused (P51): a quarter of the grace
    /// is left for waits in PostgreSQL. An error if the bytes are too old.
    pub(super) fn before_swept(&self, stored: &Stored, partition: LeasedPartition) -> Result<LeasedPartition> {
        let grace = Duration::from_millis(self.limits.orphan_grace_ms);
        if stored.written.age() > grace / 2 {
            let why = "the bytes arrived too long before the change; send the request again";
            return Err(Error::new(ErrorCode::LeaseExpired, why));
        }
        Ok(partition.for_at_most(grace / 4))
    }
}
