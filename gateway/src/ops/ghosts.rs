//! Directories that hold nothing any more. For S3 an implicit directory ends with its last key, but the worker removes it some
//! time later. Until then it must not keep an object from taking its name, so a call that finds it removes it (P54).

use std::time::{Duration, Instant};

use mantle_types::{DirectoryId, Error, ErrorCode, NamespaceId, PartitionId, Result};

use super::directory_name;
use crate::{
    app::Gateway,
    store::{Pruned, pause},
};

/// How long one request removes directories. A call removes some hundreds.
const WAIT: Duration = Duration::from_secs(5);

impl Gateway {
    /// Removes the implicit directory of a name with those below it; `false` if it holds a key, or was made by request.
    pub(super) async fn prune_ghost(&self, ns: NamespaceId, parent: PartitionId, name: &str) -> Result<bool> {
        match self.store.entry(ns, parent, vec![directory_name(name)]).await? {
            Some(entry) if entry.explicit => Ok(false),
            Some(entry) => self.prune_ghosts(parent, entry.id.as_directory(), false).await,
            None => Ok(true),
        }
    }

    /// Removes a directory with those below it, or only those below it; `false` if it holds a key.
    pub(super) async fn prune_ghosts(&self, at: PartitionId, id: DirectoryId, keeps: bool) -> Result<bool> {
        let deadline = Instant::now() + WAIT;
        for attempt in 0.. {
            match self.store.prune_tree(at, id, keeps).await? {
                Pruned::Gone => return Ok(true),
                Pruned::Kept => return Ok(false),
                Pruned::More if Instant::now() > deadline => break,
                Pruned::More => pause(attempt.min(2)).await,
            }
        }
        Err(Error::new(ErrorCode::Locked, "many empty directories are being removed; send the request again"))
    }
}
