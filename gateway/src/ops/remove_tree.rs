//! remove_tree: moves a directory with everything below it into the trash, which a worker in the database empties.

use mantle_types::{DirectoryId, Error, ErrorCode, Result, limits::CHECKED_DIRECTORIES_MAX, name::Path};
use uuid::Uuid;

use super::{
    directory_move::{DirectoryMove, operation_id},
    locate::{Purpose, Reached},
};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::Operation,
};

/// Directories that are read at a time.
const DIRECTORIES_AT_ONCE: usize = 1000;

impl Gateway {
    /// Removes a directory with everything below it; answers the operation that empties it.
    pub async fn remove_tree(&self, call: &Call, namespace: &str, key: &str) -> Result<Operation> {
        let source = &Path::parse(key)?;
        if source.is_root() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root is removed with its namespace"));
        }
        let hash = RequestHash::new("remove_tree", namespace, &source.components().join("/")).finish();
        let change = DirectoryMove { call, namespace, hash, source, destination: None, overwrite: false };
        let id = self.answer_once(call, namespace, hash, |written| written.id, self.move_directory(&change)).await?;
        self.operation(call, operation_id(call, id)).await
    }

    /// The directory and all directories below it, for the index to check that the caller could remove each. None if the
    /// caller owns the namespace, or the directory is not there.
    ///
    /// # Errors
    /// `AccessDenied` at the first directory that the caller could not empty, so that nothing is told of what is behind it;
    /// `TreeTooLarge`.
    pub(super) async fn directories_to_remove(
        &self,
        call: &Call,
        namespace: &str,
        source: &Path<'_>,
    ) -> Result<Vec<DirectoryId>> {
        let caller = &call.caller;
        let paths: [&[&str]; 2] = [&[], source.components()];
        let mut found = self.search_many(caller, namespace, &paths, Purpose::DirectoryChange).await?.into_iter();
        let (Some(root), Some(top)) = (found.next(), found.next()) else { return Err(ErrorCode::Internal.into()) };
        let (Reached::All(root), Reached::All(top)) = (root?, top?) else { return Ok(Vec::new()) };
        if root.permission.is_owned_by(caller) {
            return Ok(Vec::new());
        }
        let denied = || Error::new(ErrorCode::AccessDenied, "the caller may not remove everything below the directory");
        if !top.permission.may_empty(caller) {
            return Err(denied());
        }
        let (mut all, mut level) = (vec![top.id], vec![top.id]);
        while !level.is_empty() {
            let mut next = Vec::new();
            for some in level.chunks(DIRECTORIES_AT_ONCE) {
                let below = self.store.directories_below(some).await?;
                if !below.iter().all(|(_, permission)| permission.may_empty(caller)) {
                    return Err(denied());
                }
                next.extend(below.into_iter().map(|(id, _)| id));
                if all.len() + next.len() > CHECKED_DIRECTORIES_MAX {
                    let why = format!(
                        "more than {CHECKED_DIRECTORIES_MAX} directories are below the directory: remove it in parts, or let the \
                         namespace's owner remove it"
                    );
                    return Err(Error::new(ErrorCode::TreeTooLarge, why));
                }
            }
            all.extend_from_slice(&next);
            level = next;
        }
        Ok(all)
    }

    /// A background operation. Only the caller that began it finds it, and uid 0.
    pub async fn operation(&self, call: &Call, id: Uuid) -> Result<Operation> {
        let found = self.store.operation(call.caller.uid, id).await?;
        found.ok_or_else(|| Error::new(ErrorCode::NotFound, "there is no such operation"))
    }
}
