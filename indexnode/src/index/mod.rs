//! The directory index in memory, built by applying the entries of the Raft log. A pure core: state in, result out; no clock,
//! no I/O, no async (`tests/imports.rs` checks it). Only log entries change the state, through [`Index::apply`] or
//! [`Index::apply_part`], so every replica reaches the same one.
//!
//! From the bottom up: `arena`, `cell`, `record` (a directory in memory); `hashing`, `bucket_table`, `sharded_table`, `table`
//! (find it by id and by place); `locks`, `removals`, `last_seen`, `namespaces`, `tree` (the state); `resolve`, `prepare` (read
//! it); `apply` (changes it); `snapshot`.
//!
//! Randomness only seeds the hash tables at construction. Neither the state nor the digest depends on it.
//!
//! IndexTable and the lock bit come from Mantle (SOSP '25). The code that enforces P1 to P4, P20, P21 and P23 cites
//! them.

mod apply;
mod arena;
mod before_images;
mod bucket_table;
mod cell;
pub mod command;
mod digest;
mod hashing;
pub mod last_seen;
mod locks;
mod log_entry;
mod namespaces;
mod path;
mod permissions;
mod prepare;
mod record;
mod removals;
mod resolve;
mod seed;
mod sharded_table;
mod snapshot;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

use std::collections::BTreeMap;

use mantle_types::{
    Caller, DirectoryId, Epoch, ErrorCode, Lsn, NamespaceId, PartitionId, Permission, RequestKey,
    limits::PATH_DEPTH_MAX, message::DirectoryRecord,
};

pub use digest::mix;
pub use log_entry::LogEntry;
pub use path::Path;
pub use resolve::{Descent, Prefix, Resolution};
pub use seed::{Seed, fresh_seed};
pub use snapshot::{Part, SnapshotWriter};

use command::{NamespaceState, Source, SourceId};
use last_seen::LastSeen;
use locks::{Lock, Locks};
use namespaces::Namespaces;
use record::{Directory, directory_of};
use tree::Tree;

/// Most horizons that wait for their sources at a time.
const HORIZONS_MAX: usize = 16;

/// The index of one group.
pub struct Index {
    seed: Seed,
    epoch: Epoch,
    /// The tree that lookups read.
    serving: Option<Tree>,
    /// After a rebuild: lookups wait until each source is applied up to where the old tree was.
    catch_up: BTreeMap<SourceId, Lsn>,
    /// The tree that an unfinished rebuild fills.
    rebuild: Option<Tree>,
    locks: Locks,
}

/// Number of parts in which a caller can iterate over the index ([`Index::slice`]).
pub const SLICES: usize = sharded_table::SHARDS;

/// A directory, as its row in PostgreSQL has it. The name is without the trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Entry {
    pub id: DirectoryId,
    pub pid: PartitionId,
    pub name: String,
    pub version: u64,
}

/// Effects of applying a command that callers wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Requests whose change is applied now.
    pub finished: Vec<RequestKey>,
    /// Released locks: request and attempt.
    pub unlocked: Vec<(RequestKey, u64)>,
    /// Directories that left their place, changed their permission, or are locked now: those that a prepared rename is going to
    /// move or to replace. Cached results for paths through them are invalid. [`DirectoryId::SUPER_ROOT`] stands for all
    /// directories.
    pub modified: Vec<DirectoryId>,
}

/// A held lock, for the leader's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LockInfo {
    pub request: RequestKey,
    pub attempt: u64,
    /// The directory to be renamed.
    pub source_id: DirectoryId,
    /// How long the leader waits before it may abort the attempt, in milliseconds.
    pub lock_ms: u32,
}

impl From<&Lock> for LockInfo {
    fn from(lock: &Lock) -> Self {
        Self { request: lock.request, attempt: lock.attempt, source_id: lock.source_id, lock_ms: lock.lock_ms }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::with_seed(fresh_seed())
    }
}

impl Index {
    /// An index of epoch 0 that holds and serves nothing, with a given seed for its hash tables; by default it is random.
    pub fn with_seed(seed: Seed) -> Self {
        Self { seed, epoch: Epoch(0), serving: None, catch_up: BTreeMap::new(), rebuild: None, locks: Locks::default() }
    }

    /// Moves the whole state out. The index keeps its epoch, and holds and serves nothing.
    pub fn take(&mut self) -> Self {
        let emptied = Self { epoch: self.epoch, ..Self::with_seed(self.seed.clone()) };
        std::mem::replace(self, emptied)
    }

    /// Resolves a path to an existing directory. `components`: from the root's child down, none for the root.
    pub fn resolve(&self, namespace: &str, components: &[&str], caller: &Caller) -> Resolution {
        self.walk(namespace, components.iter().copied(), caller, |_| {})
    }

    /// Resolves a path, and calls `visit` for every directory on the path, the root first.
    pub fn resolve_visiting(
        &self,
        namespace: &str,
        path: Path<'_>,
        caller: &Caller,
        mut visit: impl FnMut(DirectoryId, Permission),
    ) -> Resolution {
        self.walk(namespace, path.components(), caller, |directory| visit(directory.id, directory.permission))
    }

    fn walk<'c>(
        &self,
        namespace: &str,
        components: impl IntoIterator<Item = &'c str>,
        caller: &Caller,
        visit: impl FnMut(&Directory),
    ) -> Resolution {
        match self.served() {
            Some(tree) => resolve::walk(&tree.table, &self.locks, namespace, components, caller, visit),
            None => Resolution::unresolved(ErrorCode::IndexUnavailable),
        }
    }

    /// The tree that lookups may read.
    fn served(&self) -> Option<&Tree> {
        self.serving.as_ref().filter(|_| self.catch_up.is_empty())
    }

    /// Prepares a walk of `path`, which is not empty, below a known prefix. `caller` may search every directory of the prefix.
    /// The walk ends as [`resolve`](Self::resolve) of the whole path would, as long as no directory of the prefix is in
    /// [`Effects::modified`]. It does not read the table yet.
    pub fn descent<'a>(&self, prefix: Prefix, path: Path<'a>, caller: &'a Caller) -> Descent<'a> {
        Descent::new(prefix, path, caller)
    }

    /// Walks all to their ends, if the index serves lookups.
    pub fn descend_all(&self, walks: &mut [Descent<'_>]) {
        if let Some(tree) = self.served() {
            resolve::descend_all(&tree.table, &self.locks, walks);
        }
    }

    /// The epoch with which the last rebuild began, or the last recovery (P48).
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Tells whether lookups are answered: a rebuild is complete, and the tree has caught up with the one that it replaced.
    pub fn is_serving(&self) -> bool {
        self.served().is_some()
    }

    /// The positions that the sources have to reach before lookups are answered: everything that committed below has to be
    /// applied.
    pub fn behind(&self) -> Vec<(SourceId, Lsn)> {
        self.catch_up.iter().map(|(source, lsn)| (*source, Lsn(lsn.0.saturating_add(1)))).collect()
    }

    /// Tells whether a rebuild is unfinished.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuild.is_some()
    }

    /// Tells whether a rebuild is complete; the tree may still have to catch up.
    pub fn is_built(&self) -> bool {
        self.serving.is_some()
    }

    /// The sources of the served tree, ordered by id.
    pub fn sources(&self) -> impl Iterator<Item = (SourceId, Source)> {
        self.serving.iter().flat_map(|tree| tree.sources.iter().map(|(id, source)| (*id, *source)))
    }

    /// One source of the served tree.
    pub fn source(&self, source: SourceId) -> Option<Source> {
        self.serving.as_ref().and_then(|tree| tree.sources.get(&source).copied())
    }

    /// No commit of the source above this LSN is applied, not even in part.
    pub fn reached_lsn(&self, source: SourceId) -> Lsn {
        self.serving.as_ref().map_or(Lsn::INVALID, |tree| tree.reached_lsn(source))
    }

    /// What the stream of a source brought last; `None` if that is not known.
    pub fn last_seen(&self, source: SourceId) -> Option<LastSeen> {
        self.serving.as_ref().and_then(|tree| tree.last_seen.get(&source).copied())
    }

    /// Tells whether a [`Command::Horizon`](command::Command::Horizon) would let removals be forgotten (several sources only).
    pub fn needs_horizon(&self) -> bool {
        let needs = |tree: &Tree| {
            let removals = &tree.removals;
            tree.sources.len() > 1 && !removals.removed.is_empty() && removals.horizons.len() < HORIZONS_MAX
        };
        self.serving.as_ref().is_some_and(needs)
    }

    /// The held locks, ordered by request.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.locks.iter().map(LockInfo::from).collect()
    }

    /// The lock that a request holds, if any.
    pub fn lock_of(&self, request: &RequestKey) -> Option<LockInfo> {
        self.locks.get(request).map(LockInfo::from)
    }

    /// What the group may do with a namespace. `None`: the group does not have it.
    pub fn namespace_state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        self.serving.as_ref().and_then(|tree| tree.namespace_state(ns))
    }

    /// Tells whether lookups in this namespace must be refused. They need not if the group has none of its directories.
    pub fn refuses_lookups(&self, ns: NamespaceId) -> bool {
        let Some(namespaces) = self.serving.as_ref().and_then(|tree| tree.namespaces.as_ref()) else { return false };
        !namespaces.all_serve() && namespaces.state(ns).is_some_and(|state| !state.answers())
    }

    /// Tells whether the group has all namespaces.
    pub fn has_all_namespaces(&self) -> bool {
        self.serving.as_ref().is_none_or(|tree| tree.namespaces.is_none())
    }

    /// The group's namespaces. `None`: all.
    pub fn namespaces(&self) -> Option<Vec<(NamespaceId, NamespaceState)>> {
        let namespaces = self.serving.as_ref()?.namespaces.as_ref()?;
        Some(namespaces.iter().map(|(ns, state, ..)| (ns, state)).collect())
    }

    /// The namespaces that move into the group or out of it.
    pub fn unserved_namespaces(&self) -> Vec<(NamespaceId, NamespaceState)> {
        let namespaces = self.serving.as_ref().and_then(|tree| tree.namespaces.as_ref());
        namespaces.map(Namespaces::unserved).unwrap_or_default()
    }

    /// The highest known ancestor of a directory: a namespace's root, or a directory whose parent is not in the index.
    pub fn topmost_ancestor(&self, id: DirectoryId) -> DirectoryId {
        let Some(tree) = &self.serving else { return id };
        let mut top = id;
        // Bounded: the streams of several sources may form a cycle for a moment.
        for _ in 0..=PATH_DEPTH_MAX {
            match tree.table.get(top) {
                Some(directory) if directory.pid != DirectoryId::SUPER_ROOT.sole_partition() => {
                    top = directory_of(directory.pid);
                }
                _ => break,
            }
        }
        top
    }

    /// Number of directories in the served tree, namespace roots included.
    pub fn directories(&self) -> usize {
        self.serving.as_ref().map_or(0, |tree| tree.table.len())
    }

    /// The ids of one part of the served tree, numbered below [`SLICES`].
    pub fn slice(&self, slice: usize) -> impl Iterator<Item = DirectoryId> {
        self.serving.iter().flat_map(move |tree| tree.table.ids_of_shard(slice))
    }

    /// One directory of the served tree.
    pub fn entry(&self, id: DirectoryId) -> Option<Entry> {
        let record = self.serving.as_ref()?.table.record_of(id)?;
        Some(Entry { id, pid: record.pid, name: record.name.to_owned(), version: record.version })
    }

    /// The record of a directory of the served tree. Its namespace is not stored: `ns` is 0.
    pub fn record(&self, id: DirectoryId) -> Option<DirectoryRecord> {
        self.serving.as_ref()?.table.record_of(id).map(|record| record.to_message())
    }

    /// The records of all served directories that a path leads to, ordered by id. The namespace is not stored: `ns` is 0.
    pub fn visible_records(&self) -> Vec<DirectoryRecord> {
        let records = self.serving.iter().flat_map(|tree| tree.table.records());
        let visible = records.filter(|(_, is_displaced)| !is_displaced);
        let mut records: Vec<_> = visible.map(|(record, _)| record.to_message()).collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// Memory of the tables in bytes, an unfinished rebuild included.
    pub fn heap_bytes(&self) -> usize {
        self.serving.iter().chain(&self.rebuild).map(|tree| tree.table.heap_bytes()).sum()
    }

    /// The part of [`heap_bytes`](Self::heap_bytes) that is mapped from the system, not allocated.
    pub fn mapped_bytes(&self) -> usize {
        self.serving.iter().chain(&self.rebuild).map(|tree| tree.table.mapped_bytes()).sum()
    }

    /// Hash over `(pid, name, id, version, permission)` of all served directories, independent of their order. It is kept while
    /// they change, so that this costs nothing.
    pub fn digest(&self) -> u64 {
        self.serving.as_ref().map_or(0, |tree| tree.table.digest())
    }
}
