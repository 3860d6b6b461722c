//! Arguments and answers of the client's calls, in the project's own types.

use std::sync::Arc;

use mantle_types::{Caller, DirectoryId, Epoch, Error, GroupId, NamespaceId, PartitionId, Permission, RequestKey};
use smallvec::SmallVec;

/// Status of one replica, as on the wire.
pub type Status = crate::proto::StatusResponse;

/// The state of PostgreSQL under which the caller of a lookup works: epoch, systems and timelines. A replica with another one
/// refuses (P5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupContext {
    /// The group's epoch; 0 if the caller knows none.
    pub epoch: Epoch,
    /// Systems and timelines of the PostgreSQL nodes; nodes that are not named are not compared.
    pub lineages: Arc<[crate::proto::Lineage]>,
}

impl From<Epoch> for LookupContext {
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
    /// The caller whose permissions count.
    pub caller: Arc<Caller>,
}

impl Query {
    /// A query. `components` go from the root's child down, none for the root; each has to be a checked name.
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

/// Queries under one context, sent to one replica after the other. Usually one query, so it is stored inline.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub context: LookupContext,
    pub queries: SmallVec<[Query; 1]>,
    /// Their misses have to be final.
    pub settles: bool,
}

/// The answers to a [`Lookup`], in the order of its queries.
pub(crate) type Resolutions = SmallVec<[Resolution; 1]>;

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Resolution {
    /// `Ok`: all components exist. `not_found`: only the first [`depth`](Self::depth) do, and the other fields describe the
    /// deepest. `access_denied`: a directory on the path may not be searched. `namespace_not_found`.
    pub outcome: Result<(), Error>,
    pub ns: NamespaceId,
    /// The directory reached. `parent_id`, `permission` and `version` are those of this directory.
    pub id: DirectoryId,
    /// How many components were found.
    pub depth: usize,
    pub parent_id: DirectoryId,
    pub permission: Permission,
    pub version: u64,
    /// A directory on the path is being renamed: only PostgreSQL knows which path is valid.
    pub crossed_lock: bool,
    /// The answer has everything that PostgreSQL showed when it was asked for: what is not found is not there (P58).
    pub is_settled: bool,
}

/// A request to move or remove a directory. The fields are those of `PrepareRenameRequest` in `index.proto`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RenameRequest {
    pub request: RequestKey,
    pub namespace: String,
    pub source: Vec<String>,
    pub destination: Vec<String>,
    pub caller: Caller,
    pub lock_ms: u32,
    pub overwrite: bool,
    pub remove: bool,
    pub below: Vec<DirectoryId>,
}

/// A prepared rename, as `mantle.rename_directory` takes it. The fields are those of `PrepareRenameResponse` in `index.proto`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PreparedRename {
    /// The group that prepared it, as the client named it.
    pub group: GroupId,
    pub attempt: u64,
    pub epoch: Epoch,
    pub ns: NamespaceId,
    pub source_pid: PartitionId,
    pub source_id: DirectoryId,
    pub source_version: u64,
    pub destination_pid: PartitionId,
    pub replaced: Option<DirectoryId>,
    pub proof: Option<Vec<u8>>,
    /// `None`: the index is of an older release, which does not say it.
    pub source_parent: Option<Permission>,
    /// `None` also for a removal.
    pub destination_parent: Option<Permission>,
}
