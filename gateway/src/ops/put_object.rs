//! put_object: stores the bytes, then the metadata, then removes the replaced bytes. A crash in between leaves bytes
//! that no metadata names; they are removed later. Bytes of small objects may go into the transaction of the metadata
//! instead (P62). Missing parents are made.

use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use mantle_types::{Error, ErrorCode, NamespaceId, Permission, RequestKey, Result, name::Path, permission::Access};
use serde_json::Value;

use super::{
    locate::{Located, Purpose, Reached},
    object_bytes::{RENEWALS_MAX, extents_of},
    restarts::Restarts,
};
use crate::{
    app::{Call, Gateway, OBJECT_MODE},
    data::{Expected, Stored, UploadError},
    hash::RequestHash,
    store::{
        Coded, Doubt, LeasedPartition, NewManifest, NewObject, Precondition, RequestClaim, UploadId, Written, accepted,
    },
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

/// One call of PutObject, behind its bytes.
struct Putting<'a> {
    call: &'a Call,
    namespace: &'a str,
    key: &'a str,
    put: &'a PutObject,
    doubt: Doubt,
}

impl Putting<'_> {
    fn hash(&self, stored: &Stored) -> i64 {
        RequestHash::new("put_object", self.namespace, self.key)
            .optional(self.put.content_type.as_deref())
            .optional(self.put.user_metadata.as_ref().map(Value::to_string))
            .optional(self.put.precondition.as_sql())
            .part(stored.size.to_le_bytes())
            .part(&stored.checksums.md5)
            .finish()
    }
}

/// An object's row that was written.
struct Committed {
    /// Whether it names the bytes; `None` if that is not known.
    is_named: Option<bool>,
    /// The last of the directories that were made for it.
    made: Option<(RequestKey, Written)>,
}

/// What the object's row names: its bytes, or the manifest of many. `None` if the row brings its bytes along.
fn locator_of(stored: &Stored, manifest: Option<UploadId>) -> Option<String> {
    match manifest {
        Some(manifest) => Some(manifest.manifest()),
        None => stored.pieces.first().map(|piece| piece.locator.clone()),
    }
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
        let stored = self.store_bytes(body, expected, self.limits.inline_bytes_max).await?;
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
        let Received { mut stored, reached } = received;
        let putting = Putting { call, namespace, key, put: &put, doubt: Doubt::default() };
        match self.commit_object(&putting, &mut stored, reached).await {
            Ok(Committed { is_named, made }) => {
                match is_named {
                    Some(true) => self.data.named(stored),
                    Some(false) => self.data.discard(stored).await,
                    None => drop(stored),
                }
                match made {
                    Some((key, made)) => self.index.await_written(namespace, key, &made).await,
                    None => Ok(()),
                }
            }
            Err(error) => {
                if error.code() != ErrorCode::UnknownOutcome && putting.doubt.is_none() {
                    self.data.discard(stored).await;
                }
                Err(self.explain_failure(call, namespace, key, &put.precondition, error).await)
            }
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
        putting: &Putting<'_>,
        stored: &mut Stored,
        reached: Option<Reached>,
    ) -> Result<Committed> {
        let (call, namespace, hash) = (putting.call, putting.namespace, putting.hash(stored));
        let answered = |_: &Written| {
            // The earlier attempt stored the same bytes under its own locator; if it is not this call's own.
            Committed { is_named: putting.doubt.is_none().then_some(false), made: None }
        };
        let attempt = self.commit_new(putting, hash, stored, reached);
        self.answer_once(call, namespace, hash, answered, attempt).await
    }

    async fn commit_new(
        &self,
        putting: &Putting<'_>,
        hash: i64,
        stored: &mut Stored,
        mut reached: Option<Reached>,
    ) -> Result<Committed> {
        let Putting { call, namespace, key, .. } = *putting;
        let path = object_path(key)?;
        let Some((name, parents)) = path.split_last() else { return Err(ErrorCode::InvalidArgument.into()) };
        let (mut restarts, mut renewals, mut manifest) = (Restarts::default(), 0, None);
        loop {
            let parent = self.make_parents(call, namespace, parents, reached.take()).await?;
            self.check_put(call, &parent.directory, name).await?;
            self.admit_key(parent.directory.ns, &path).await?;
            if stored.pieces.len() > 1 && manifest.is_none() {
                let permission = call.permission(OBJECT_MODE);
                manifest = Some(self.record_manifest(permission, namespace, parent.directory.ns, stored).await?);
            }
            let claim = call.claim(parent.directory.ns, hash);
            let answer = self.submit_object(putting, claim, &parent.directory, name, stored, manifest).await;
            match answer.and_then(accepted) {
                Ok(written) => {
                    self.delete_replaced(&written).await;
                    // A replayed answer may be this attempt's own, if its connection broke. If it is an earlier one's, the sweeper
                    // finds these bytes.
                    return Ok(Committed { is_named: (!written.replayed).then_some(true), made: parent.made });
                }
                Err(e) if e.code() == ErrorCode::IsDirectory => {
                    let directory = parent.directory;
                    match self.prune_ghost(directory.ns, directory.pid(), name).await? {
                        true => restarts.again().await?,
                        false => return Err(e),
                    }
                }
                // The gateway leases its segments again when PostgreSQL was promoted or restored, for instance.
                Err(e) if e.code() == ErrorCode::StaleSegment && renewals < RENEWALS_MAX => {
                    stored.renew().await?;
                    renewals += 1;
                }
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }

    async fn submit_object(
        &self,
        putting: &Putting<'_>,
        claim: RequestClaim,
        directory: &Located,
        name: &str,
        stored: &mut Stored,
        manifest: Option<UploadId>,
    ) -> Result<Coded> {
        let Putting { call, put, doubt, .. } = putting;
        // The sweeper takes a manifest that no object names.
        let of_manifest = manifest.map(|_| Duration::from_millis(self.limits.read_grace_ms) / 2);
        let partition = self.before_swept(stored, directory.leased_partition(), of_manifest)?;
        stored.sent();
        let locator = locator_of(stored, manifest);
        self.with_new_id(|id| {
            let new = NewObject {
                name: name.to_owned(),
                id,
                permission: call.permission(OBJECT_MODE),
                size: stored.size,
                etag: stored.checksums.md5.clone(),
                content_type: put.content_type.clone(),
                user_metadata: put.user_metadata.clone(),
                locator: locator.clone(),
                inline: stored.inline.clone(),
                precondition: put.precondition.clone(),
                doubt: doubt.clone(),
            };
            self.store.put_object.submit(claim, &call.caller, partition, new)
        })
        .await
    }

    /// Records where the bytes of a large object are, before the object names the record. If the object is never put, the sweeper
    /// removes the record.
    pub(super) async fn record_manifest(
        &self,
        permission: Permission,
        namespace: &str,
        ns: NamespaceId,
        stored: &mut Stored,
    ) -> Result<UploadId> {
        let mut renewals = 0;
        loop {
            let start = self.index.resolution_start(namespace).await?;
            let extents = extents_of(stored);
            stored.sent();
            let new = NewManifest { ns, owner: permission.owner, group: permission.group, extents: &extents };
            let answer = self.with_new_id(|id| {
                let partition = self.store.lease(&start, UploadId::from(id).partition());
                self.store.create_manifest(partition, &new)
            });
            match answer.await.and_then(accepted) {
                Ok(written) => {
                    stored.settle(true);
                    return Ok(UploadId::from(written.id));
                }
                Err(e) if e.code() == ErrorCode::StaleSegment && renewals < RENEWALS_MAX => {
                    stored.renew().await?;
                    renewals += 1;
                }
                Err(e) => return Err(e),
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
    /// is left for waits in PostgreSQL. `sooner`: the lease ends so long after the resolution, if that is before. An error if the
    /// bytes are too old.
    pub(super) fn before_swept(
        &self,
        stored: &Stored,
        partition: LeasedPartition,
        sooner: Option<Duration>,
    ) -> Result<LeasedPartition> {
        let grace = Duration::from_millis(self.limits.orphan_grace_ms);
        if stored.written.age() > grace / 2 {
            let why = "the bytes arrived too long before the change; send the request again";
            return Err(Error::new(ErrorCode::LeaseExpired, why));
        }
        Ok(partition.for_at_most(sooner.unwrap_or(Duration::MAX).min(grace / 4)))
    }
}
