//! Moves a directory: to another path (rename), or into the trash, where no path leads (remove_tree). The index's
//! leader resolves the paths and locks the source, one transaction moves the entry, and the change's arrival in the
//! index ends the call. The cost does not depend on the entries below the directory: if their keys become larger, up to
//! 1,000 of them are read, and more only if keys may become too large (`growth.rs`). Invariant: this module releases a
//! lock only when the transaction is known not to have committed; otherwise the leader releases it.

use mantle_index_client::RenameRequest;
use mantle_types::{
    DirectoryId, EntryId, Error, ErrorCode, NamespaceId, Result, name::Path, request::derive_request_id,
};
use uuid::Uuid;

use super::{
    directory_name,
    locate::{Purpose, Reached},
    restarts::RESTARTS_MAX,
};
use crate::{
    app::{Call, Gateway},
    index::PreparedRename,
    key_sizes::KeySize,
    store::{LeasedPartition, Prepare, RemoveTree, RenameDirectory, RequestClaim, Written, pause},
};

pub(super) struct DirectoryMove<'a> {
    pub(super) call: &'a Call,
    pub(super) namespace: &'a str,
    pub(super) hash: i64,
    pub(super) source: &'a Path<'a>,
    /// `None` is the trash.
    pub(super) destination: Option<&'a Path<'a>>,
    pub(super) overwrite: bool,
}

enum Outcome {
    Done(EntryId),
    /// The cause passes, such as another rename's lock.
    Retry(Error),
    /// The index refused, as far as it knows the tree.
    Refused(Error),
    /// Keys below this directory might become too large.
    Grows(NamespaceId, DirectoryId),
}

/// By how much keys become larger.
#[derive(Clone, Copy)]
struct Growth {
    added: KeySize,
    /// The directory that was measured: no key below it becomes too large.
    measured: Option<DirectoryId>,
}

impl DirectoryMove<'_> {
    fn request(&self, lock_ms: u32, below: Vec<DirectoryId>) -> RenameRequest {
        let owned = |path: &Path<'_>| path.components().iter().map(|c| (*c).to_owned()).collect();
        RenameRequest {
            request: self.call.claim(NamespaceId(0), self.hash).key(),
            namespace: self.namespace.to_owned(),
            source: owned(self.source),
            destination: self.destination.map(owned).unwrap_or_default(),
            caller: self.call.caller.clone(),
            lock_ms,
            overwrite: self.overwrite,
            remove: self.destination.is_none(),
            below,
        }
    }
}

impl Gateway {
    pub(super) async fn move_directory(&self, change: &DirectoryMove<'_>) -> Result<EntryId> {
        let mut restarts = 0;
        // The index has everything that was committed when the move began.
        let mut is_current = false;
        let mut is_free = false;
        let mut growth = self.growth(change).await;
        loop {
            match self.try_move(change, &mut growth).await? {
                Outcome::Done(id) => return Ok(id),
                Outcome::Grows(ns, moved) => {
                    if let (Some(destination), Some(growth)) = (change.destination, &mut growth) {
                        self.key_sizes.note_refused(change.namespace, growth.added);
                        self.admit_growth(ns, moved, destination).await?;
                        growth.measured = Some(moved);
                    }
                }
                Outcome::Refused(refusal) if is_current => match change.destination {
                    Some(destination) if !is_free && is_taken(&refusal) => {
                        is_free = self.free_destination(change, destination).await?;
                        if !is_free {
                            return Err(refusal);
                        }
                        self.index.catch_up(change.namespace).await?;
                    }
                    _ => return Err(refusal),
                },
                // The index may be a moment behind PostgreSQL, which may have shown the client a newer tree (P47).
                Outcome::Refused(_) => {
                    self.index.catch_up(change.namespace).await?;
                    is_current = true;
                }
                Outcome::Retry(error) if restarts == RESTARTS_MAX => return Err(error),
                Outcome::Retry(_) => {
                    pause(restarts).await;
                    restarts += 1;
                }
            }
        }
    }

    /// By how much keys would grow, and the directory if it was measured. It is measured before it is locked, because a
    /// lock that must be released again costs more. A failure is not reported yet, since the caller may lack the permission
    /// to know.
    async fn growth(&self, change: &DirectoryMove<'_>) -> Option<Growth> {
        let destination = change.destination?;
        let added = KeySize::added(change.source, destination)?;
        let measured = self.measure(change, destination, added).await.unwrap_or_default();
        Some(Growth { added, measured })
    }

    /// The directory, if no key below it becomes too large; `None` if that is left to the namespace's row.
    async fn measure(
        &self,
        change: &DirectoryMove<'_>,
        destination: &Path<'_>,
        added: KeySize,
    ) -> Result<Option<DirectoryId>> {
        let (caller, path) = (&change.call.caller, change.source.components());
        let moved = self.locate(caller, change.namespace, path, Purpose::DirectoryChange).await?;
        if self.admit_small_growth(moved.ns, moved.id, destination).await? {
            return Ok(Some(moved.id));
        }
        if !self.key_sizes.is_refused(change.namespace, added) {
            return Ok(None);
        }
        self.admit_growth(moved.ns, moved.id, destination).await?;
        Ok(Some(moved.id))
    }

    /// Removes a directory at the destination that holds nothing and was not made by request: a client does not see it.
    async fn free_destination(&self, change: &DirectoryMove<'_>, destination: &Path<'_>) -> Result<bool> {
        let Some((name, parents)) = destination.split_last() else { return Ok(false) };
        let caller = &change.call.caller;
        let parent = self.locate_parent(caller, change.namespace, parents, Purpose::DirectoryChange).await?;
        parent.check_change(caller)?;
        self.prune_ghost(parent.ns, parent.pid(), name).await
    }

    /// `growth`: what the move adds to keys, until that is admitted.
    async fn try_move(&self, change: &DirectoryMove<'_>, growth: &mut Option<Growth>) -> Result<Outcome> {
        let DirectoryMove { call, namespace, hash, .. } = *change;
        let start = self.index.resolution_start(namespace).await?;
        let below = match change.destination {
            Some(_) => Vec::new(),
            None => self.directories_to_remove(call, namespace, change.source).await?,
        };
        let prepared = match self.index.prepare_rename(change.request(self.limits.rename_lock_ms, below)).await {
            Ok(prepared) => prepared,
            Err(e) if matches!(e.code(), ErrorCode::NotFound | ErrorCode::NamespaceNotFound) => {
                return self.check_missing(change, e).await;
            }
            Err(e) if e.code() == ErrorCode::AttemptSuperseded => {
                // An earlier attempt under this request id has committed; its answer is recorded.
                return Ok(self.recorded(call, namespace, hash).await?.map_or(Outcome::Retry(e), Outcome::Done));
            }
            Err(e) => return refused(e),
        };
        let claim = call.claim(prepared.ns, hash);
        if let Some(Growth { added, measured }) = *growth
            && measured != Some(prepared.source_id)
        {
            let admitted = self.store.admit_move(prepared.ns, added.levels, added.bytes).await;
            if !matches!(admitted, Ok(true)) {
                self.index.release_rename(claim.key(), &prepared).await;
                return admitted.map(|_| Outcome::Grows(prepared.ns, prepared.source_id));
            }
            *growth = None;
        }
        let source = self.store.lease(&start, prepared.source_pid);
        let pending = self.index.begin_await(namespace, claim.key());
        match self.commit_move(change, claim, source, &prepared).await {
            Ok(written) => {
                pending.acknowledge(&written).await?;
                Ok(Outcome::Done(written.id))
            }
            Err(e) if e.code() == ErrorCode::UnknownOutcome => Err(e),
            Err(e) => {
                self.index.release_rename(claim.key(), &prepared).await;
                self.after_rollback(e).await
            }
        }
    }

    async fn commit_move(
        &self,
        change: &DirectoryMove<'_>,
        claim: RequestClaim,
        source: LeasedPartition,
        prepared: &PreparedRename,
    ) -> Result<Written> {
        let name = |path: &Path<'_>| path.split_last().map(|(name, _)| directory_name(name)).unwrap_or_default();
        let (source_name, source_id) = (&*name(change.source), prepared.source_id);
        let (epoch, attempt, proof) = (prepared.epoch, prepared.attempt, prepared.proof.as_deref());
        let prepare = Prepare { group: prepared.group, epoch, attempt, proof };
        match change.destination {
            Some(destination) => {
                let rename = RenameDirectory {
                    source,
                    source_name,
                    source_id,
                    destination_pid: prepared.destination_pid,
                    destination_name: &name(destination),
                    replaced: prepared.replaced,
                    parents: [prepared.source_parent, prepared.destination_parent],
                    prepare,
                    caller: &change.call.caller,
                };
                self.store.rename_directory(claim, rename).await
            }
            None => {
                let operation = operation_id(change.call, source_id.into());
                let caller = &change.call.caller;
                let parent = prepared.source_parent;
                let remove = RemoveTree { source, source_name, source_id, parent, prepare, operation, caller };
                self.store.remove_tree(claim, remove).await
            }
        }
    }

    async fn after_rollback(&self, error: Error) -> Result<Outcome> {
        match error.code() {
            // The index was rebuilt, or another group serves the namespace now.
            ErrorCode::StaleEpoch => self.index.renew().await.map(|()| Outcome::Retry(error)),
            ErrorCode::AttemptSuperseded | ErrorCode::SourceChanged | ErrorCode::NotPrepared => {
                Ok(Outcome::Retry(error))
            }
            code if self.is_outdated(code).await => Ok(Outcome::Retry(error)),
            _ => Err(error),
        }
    }

    /// The index does not know a directory of the move. PostgreSQL decides whether it exists and the index is late.
    async fn check_missing(&self, change: &DirectoryMove<'_>, miss: Error) -> Result<Outcome> {
        let parent = change.destination.and_then(Path::split_last).map(|(_, parent)| parent);
        let paths: Vec<&[&str]> = std::iter::once(change.source.components()).chain(parent).collect();
        let found = self.search_many(&change.call.caller, change.namespace, &paths, Purpose::DirectoryChange).await?;
        for (reached, (path, is_parent)) in found.into_iter().zip(paths.into_iter().zip([false, true])) {
            if let reached @ Reached::Part { .. } = reached? {
                return Err(self.whole(reached, path, is_parent).await.err().unwrap_or(miss));
            }
        }
        refused(miss)
    }
}

/// Whether something is at the destination.
fn is_taken(refusal: &Error) -> bool {
    matches!(refusal.code(), ErrorCode::AlreadyExists | ErrorCode::NotEmpty)
}

/// A refused prepare, by whether another attempt may succeed.
fn refused(refusal: Error) -> Result<Outcome> {
    match refusal.code() {
        ErrorCode::Locked | ErrorCode::StaleEpoch | ErrorCode::NotServed => Ok(Outcome::Retry(refusal)),
        ErrorCode::NotFound
        | ErrorCode::NamespaceNotFound
        | ErrorCode::AlreadyExists
        | ErrorCode::NotEmpty
        | ErrorCode::RenameLoop
        | ErrorCode::AccessDenied => Ok(Outcome::Refused(refusal)),
        _ => Err(refusal),
    }
}

/// A retry derives the same id. No other request does: a directory is removed once.
pub(super) fn operation_id(call: &Call, directory: EntryId) -> Uuid {
    derive_request_id(call.request, &format!("operation/{}/{directory}", call.caller.uid))
}
