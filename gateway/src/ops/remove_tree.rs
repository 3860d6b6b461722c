//! Removal of a directory with all that is below it: like a rename, into a trash that no path leads to. The index's leader
//! resolves and locks the directory, one transaction moves it, and the change's arrival in the index ends the call; a worker
//! in the database empties it afterwards. Invariant, as for renames: a lock is released here only when the transaction is
//! known not to have committed.

use mantle_index_client::RenameRequest;
use mantle_types::{Error, ErrorCode, NamespaceId, RequestKey, Result, name::Path, request::derive_request_id};
use uuid::Uuid;

use super::{
    directory_name,
    locate::{Purpose, Reached, whole},
    locked::{Tried, Tries, refused},
};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    index::PreparedRename,
    store::{Leased, Operation, RemoveTree, Written},
};

impl Gateway {
    /// Removes a directory with all that is below it; answers the operation that empties it.
    pub async fn remove_tree(&self, call: &Call, namespace: &str, key: &str) -> Result<Operation> {
        let path = Path::parse(key)?;
        if path.is_root() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root goes with its namespace"));
        }
        let hash = RequestHash::new("remove_tree", namespace, &path.components().join("/")).finish();
        if let Some(id) = self.replayed(call, namespace, hash).await? {
            return self.operation(call, operation_id(call, id)).await;
        }
        let mut tries = Tries::default();
        loop {
            let tried = self.try_remove_tree(call, namespace, &path, hash).await?;
            if let Some(id) = tries.judge(self, namespace, tried).await? {
                return self.operation(call, operation_id(call, id)).await;
            }
        }
    }

    /// A background operation, for whoever began it.
    pub async fn operation(&self, call: &Call, id: Uuid) -> Result<Operation> {
        let found = self.store.operation(call.caller.uid, id).await?;
        found.ok_or_else(|| Error::new(ErrorCode::NotFound, "there is no such operation"))
    }

    async fn try_remove_tree(&self, call: &Call, namespace: &str, path: &Path<'_>, hash: i64) -> Result<Tried> {
        let request = RenameRequest {
            request: RequestKey { principal: call.caller.uid, ns: NamespaceId(0), id: call.request },
            namespace: namespace.to_owned(),
            source: path.components().iter().map(|c| (*c).to_owned()).collect(),
            destination: Vec::new(),
            caller: call.caller.clone(),
            lock_ms: self.limits.rename_lock_ms,
            overwrite: false,
            remove: true,
        };
        let moment = self.index.moment(namespace).await?;
        let prepared = match self.index.prepare_rename(request).await {
            Ok(prepared) => prepared,
            Err(e) if matches!(e.code(), ErrorCode::NotFound | ErrorCode::NamespaceNotFound) => {
                // PostgreSQL decides whether it exists, in which case the index is a moment behind.
                let reached = self.search(&call.caller, namespace, path.components(), Purpose::DirectoryChange).await?;
                return match reached {
                    Reached::All(_) => refused(e),
                    part => Err(whole(part, path.components(), false).err().unwrap_or(e)),
                };
            }
            Err(e) if e.code() == ErrorCode::AttemptSuperseded => {
                // An earlier attempt under this key has committed; its answer is recorded.
                let recorded = self.store.replay(call.signed(0, hash), namespace).await?;
                let Some((ns, written)) = recorded else { return Ok(Tried::Again(e)) };
                return self.acknowledge_removal(call, (namespace, ns), hash, &written).await;
            }
            Err(e) => return refused(e),
        };
        let from = self.store.leased(&moment, prepared.source_pid.0 as i64);
        self.remove_locked(call, (namespace, path), from, hash, &prepared).await
    }

    async fn acknowledge_removal(
        &self,
        call: &Call,
        (namespace, ns): (&str, i64),
        hash: i64,
        written: &Written,
    ) -> Result<Tried> {
        self.index.await_written(namespace, call.key(&call.signed(ns, hash)), written).await?;
        Ok(Tried::Done(written.id))
    }

    async fn remove_locked(
        &self,
        call: &Call,
        (namespace, path): (&str, &Path<'_>),
        source: Leased,
        hash: i64,
        prepared: &PreparedRename,
    ) -> Result<Tried> {
        let signed = call.signed(prepared.ns.as_i64(), hash);
        let name = path.split_last().map(|(name, _)| directory_name(name)).unwrap_or_default();
        let removal = RemoveTree {
            source,
            source_name: &name,
            source_id: prepared.source_id.as_i64(),
            group: prepared.group,
            epoch: prepared.epoch.0,
            attempt: prepared.attempt,
            proof: prepared.proof.as_deref(),
            operation: operation_id(call, prepared.source_id.as_i64()),
        };
        match self.store.remove_tree(signed, removal).await {
            Ok(written) => self.acknowledge_removal(call, (namespace, signed.ns), hash, &written).await,
            Err(e) if e.code() == ErrorCode::UnknownOutcome => Err(e),
            Err(e) => {
                self.index.release_rename(call.key(&signed), prepared).await;
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
}

/// A retry names the same operation; nothing else does, whatever its request id: no two removals are of one directory.
fn operation_id(call: &Call, directory: i64) -> Uuid {
    derive_request_id(call.request, &format!("operation/{}/{directory}", call.caller.uid))
}
