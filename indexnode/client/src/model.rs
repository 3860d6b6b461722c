//! What calls take and answer, in the project's own types.

use std::sync::Arc;

use mantle_types::{Caller, DirectoryId, Epoch, Error, NamespaceId, PartitionId, Permission, RequestKey};
use smallvec::SmallVec;

/// Status of one replica, as on the wire.
pub type Status = crate::proto::StatusResponse;

/// Under what the caller of a lookup works: what it reads and changes in PostgreSQL is of this. A replica that serves anything
/// else refuses (P5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The group's epoch; 0 for none.
    pub epoch: Epoch,
    /// The histories of the PostgreSQL nodes; those not named are not compared.
    pub lineages: Arc<[crate::proto::Lineage]>,
}

impl From<Epoch> for Basis {
    fn from(epoch: Epoch) -> Self {
        Self { epoch, ..Self::default() }
    }
}

/// One path to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The namespace's name.
    pub namespace: Arc<str>,
    /// A directory's path: components from the root's child down, `/` between two; empty for the root.
    path: String,
    /// Who asks.
    pub caller: Arc<Caller>,
}

impl Query {
    /// A query from borrowed parts: components from the root's child down, none for the root. Each is a checked name: not
    /// empty, and without a slash.
    pub fn new<'a>(
        namespace: impl Into<Arc<str>>,
        components: impl IntoIterator<Item = &'a str>,
        caller: impl Into<Arc<Caller>>,
    ) -> Self {
        let mut path = String::new();
        for component in components {
            debug_assert!(!component.is_empty() && !component.contains('/'), "{component:?} is no name");
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(component);
        }
        Self { namespace: namespace.into(), path, caller: caller.into() }
    }

    /// The path, with `/` between components.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Queries under one basis, as they are put to one replica or another. (Mostly one: kept without a list of its own.)
#[derive(Debug)]
pub(crate) struct Ask {
    pub basis: Basis,
    pub queries: SmallVec<[Query; 1]>,
}

/// The answers to an [`Ask`], in the order of its queries.
pub(crate) type Resolutions = SmallVec<[Resolution; 1]>;

/// Where a path led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// `Ok`: all components exist. `not_found`: the first [`depth`](Self::depth) of them do, and the other fields describe
    /// the deepest. `access_denied`: a directory on the way may not be searched. `namespace_not_found`.
    pub outcome: Result<(), Error>,
    /// The namespace.
    pub ns: NamespaceId,
    /// The directory reached.
    pub id: DirectoryId,
    /// How many components were found.
    pub depth: usize,
    /// The parent of `id`.
    pub parent_id: DirectoryId,
    /// The permission of `id`.
    pub permission: Permission,
    /// The record version of `id`.
    pub version: u64,
    /// A directory on the way is being renamed: PostgreSQL has to say which place holds.
    pub crossed_lock: bool,
}

/// A directory to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenameRequest {
    /// The client's key. `ns` may be 0: the name decides.
    pub request: RequestKey,
    /// The namespace's name.
    pub namespace: String,
    /// Components of the directory to move; at least one.
    pub source: Vec<String>,
    /// Components of its new path, the new name last; at least one, but for a removal, which has none.
    pub destination: Vec<String>,
    /// Who asks.
    pub caller: Caller,
    /// How long the lock may be held before the leader aborts the attempt, in milliseconds.
    pub lock_ms: u32,
    /// May an empty directory at the destination be replaced?
    pub overwrite: bool,
    /// Move it out of every path, to be emptied in the trash.
    pub remove: bool,
}

/// What `mantle.rename_directory` needs to know of a locked source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedRename {
    /// The group that prepared it, as the client names it.
    pub group: u32,
    /// The attempt: log index of the prepare.
    pub attempt: u64,
    /// The epoch that the rename's transaction checks.
    pub epoch: Epoch,
    /// The namespace.
    pub ns: NamespaceId,
    /// Where the source is.
    pub source_pid: PartitionId,
    /// The directory that is locked.
    pub source_id: DirectoryId,
    /// Its record version.
    pub source_version: u64,
    /// Where it is to go.
    pub destination_pid: PartitionId,
    /// The directory there that is to be replaced, if any.
    pub victim: Option<DirectoryId>,
    /// That the group has prepared this; `None` of a database that asks for none.
    pub proof: Option<Vec<u8>>,
}
