//! Directory rename: the index's leader resolves both paths and locks the source, one transaction moves the entry, and the
//! change's arrival in the index ends it. Its cost does not depend on what is below the directory. Invariant: a lock is
//! released here only when the transaction is known not to have committed; otherwise the leader settles it.

use mantle_index_client::RenameRequest;
use mantle_types::{Error, ErrorCode, NamespaceId, RequestKey, Result, name::Path};

use super::{
    directory_name,
    locate::{Purpose, Reached, whole},
    locked::{Tried, Tries, refused},
};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    index::PreparedRename,
    store::{Leased, RenameDirectory, Signed},
};

/// What to move where.
#[derive(Clone, Debug)]
pub struct Rename {
    /// Key of the directory (trailing slash) or object.
    pub source: String,
    /// Its new key, of the same kind.
    pub destination: String,
    /// Replace what is there: an object, or an empty directory?
    pub overwrite: bool,
}

impl Gateway {
    /// Moves a directory or an object; answers its id, which stays.
    pub async fn rename(&self, call: &Call, namespace: &str, rename: &Rename) -> Result<i64> {
        let (source, destination) = (Path::parse(&rename.source)?, Path::parse(&rename.destination)?);
        if source.is_root() || destination.is_root() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root of a namespace is not renamed"));
        }
        if source.is_directory() != destination.is_directory() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "source and destination must both end in a slash (a directory) or both not (an object)",
            ));
        }
        let hash = RequestHash::new("rename", namespace, &rename.source)
            .part(&rename.destination)
            .part([u8::from(rename.overwrite)])
            .finish();
        if let Some(id) = self.replayed(call, namespace, hash).await? {
            return Ok(id);
        }
        if !source.is_directory() {
            return self.rename_object(call, namespace, &source, &destination, rename.overwrite, hash).await;
        }
        let mut tries = Tries::default();
        loop {
            let tried = self.try_rename(call, namespace, &source, &destination, rename.overwrite, hash).await?;
            if let Some(id) = tries.judge(self, namespace, tried).await? {
                return Ok(id);
            }
        }
    }

    async fn try_rename(
        &self,
        call: &Call,
        namespace: &str,
        source: &Path<'_>,
        destination: &Path<'_>,
        overwrite: bool,
        hash: i64,
    ) -> Result<Tried> {
        let owned = |path: &Path<'_>| path.components().iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let request = RenameRequest {
            request: RequestKey { principal: call.caller.uid, ns: NamespaceId(0), id: call.request },
            namespace: namespace.to_owned(),
            source: owned(source),
            destination: owned(destination),
            caller: call.caller.clone(),
            lock_ms: self.limits.rename_lock_ms,
            overwrite,
            remove: false,
        };
        let moment = self.index.moment(namespace).await?;
        let prepared = match self.index.prepare_rename(request).await {
            Ok(prepared) => prepared,
            Err(e) if matches!(e.code(), ErrorCode::NotFound | ErrorCode::NamespaceNotFound) => {
                return self.is_missing(call, namespace, source, destination, e).await;
            }
            Err(e) if e.code() == ErrorCode::AttemptSuperseded => {
                // An earlier attempt under this key has committed; its answer is recorded.
                let recorded = self.store.replay(call.signed(0, hash), namespace).await?;
                let Some((ns, written)) = recorded else { return Ok(Tried::Again(e)) };
                self.index.await_written(namespace, call.key(&call.signed(ns, hash)), &written).await?;
                return Ok(Tried::Done(written.id));
            }
            Err(e) => return refused(e),
        };
        let signed = call.signed(prepared.ns.as_i64(), hash);
        let from = self.store.leased(&moment, prepared.source_pid.0 as i64);
        self.move_locked(call, (namespace, signed), (source, from), destination, &prepared).await
    }

    async fn move_locked(
        &self,
        call: &Call,
        (namespace, signed): (&str, Signed),
        (source, from): (&Path<'_>, Leased),
        destination: &Path<'_>,
        prepared: &PreparedRename,
    ) -> Result<Tried> {
        let last = |path: &Path<'_>| path.split_last().map(|(name, _)| directory_name(name)).unwrap_or_default();
        let (source_name, destination_name) = (last(source), last(destination));
        let key = call.key(&signed);
        let awaited = self.index.await_soon(namespace, key);
        let moved = self
            .store
            .rename_directory(
                signed,
                RenameDirectory {
                    source: from,
                    source_name: &source_name,
                    source_id: prepared.source_id.as_i64(),
                    destination_pid: prepared.destination_pid.0 as i64,
                    destination_name: &destination_name,
                    victim_id: prepared.victim.map_or(0, |victim| victim.as_i64()),
                    group: prepared.group,
                    epoch: prepared.epoch.0,
                    attempt: prepared.attempt,
                    proof: prepared.proof.as_deref(),
                },
            )
            .await;
        match moved {
            Ok(written) => {
                awaited.written(&written).await?;
                Ok(Tried::Done(written.id))
            }
            Err(e) if e.code() == ErrorCode::UnknownOutcome => Err(e),
            Err(e) => {
                self.index.release_rename(key, prepared).await;
                match e.code() {
                    // Rebuilt, or another group serves the namespace now.
                    ErrorCode::StaleEpoch => self.index.renew().await.map(|()| Tried::Again(e)),
                    ErrorCode::AttemptSuperseded | ErrorCode::SourceChanged | ErrorCode::NotPrepared => {
                        Ok(Tried::Again(e))
                    }
                    code if self.is_outdated(code).await => Ok(Tried::Again(e)),
                    _ => Err(e),
                }
            }
        }
    }

    /// The index does not know a directory of the rename: PostgreSQL decides whether it exists, in which case the index
    /// is a moment behind.
    async fn is_missing(
        &self,
        call: &Call,
        namespace: &str,
        source: &Path<'_>,
        destination: &Path<'_>,
        miss: Error,
    ) -> Result<Tried> {
        let Some((_, target)) = destination.split_last() else { return Err(miss) };
        let paths = [source.components(), target];
        let found = self.search_many(&call.caller, namespace, &paths, Purpose::DirectoryChange).await?;
        for (reached, (path, is_parent)) in found.into_iter().zip([(paths[0], false), (paths[1], true)]) {
            if let reached @ Reached::Part { .. } = reached? {
                return Err(whole(reached, path, is_parent).err().unwrap_or(miss));
            }
        }
        refused(miss)
    }
}
