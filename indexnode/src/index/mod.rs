//! The directory index: what the Raft log makes of the change stream. A pure core: state in, result out; no clock, no
//! I/O, no async; [`Index::apply`] is the only function that changes it, so every replica comes to the same state.
//!
//! Randomness only seeds hash tables at construction; neither the state nor the digest depends on it.
//!
//! Source: Mantle (SOSP '25) for IndexTable and lock bit; P1–P4, P20, P21, P23 are restated where they act.

mod apply;
mod arena;
mod before_images;
mod bucket_table;
mod cell;
pub mod command;
mod digest;
mod hashing;
mod invariants;
mod locks;
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

pub use apply::LogEntry;
pub use path::Path;
pub use resolve::{Descent, Prefix, Resolution};
pub use seed::{Seed, fresh_seed};
pub use snapshot::{Part, SnapshotWriter};

use command::{NamespaceState, Source, SourceId};
use locks::{Lock, Locks};
use tree::Tree;

/// Horizons that wait for their sources; more are not asked for.
const HORIZONS_MAX: usize = 16;

/// The index of one group.
pub struct Index {
    seed: Seed,
    epoch: Epoch,
    /// What lookups read.
    serving: Option<Tree>,
    /// After an online rebuild: lookups wait until the new tree has come as far as the old one was in each source.
    catch_up: BTreeMap<SourceId, Lsn>,
    /// What an unfinished rebuild fills.
    rebuild: Option<Tree>,
    locks: Locks,
}

/// The index can be gone through in so many parts.
pub const SLICES: usize = sharded_table::SHARDS;

/// A directory as PostgreSQL knows it too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The directory.
    pub id: DirectoryId,
    /// Where it is.
    pub pid: PartitionId,
    /// The name, without the trailing slash.
    pub name: String,
    /// Record version.
    pub version: u64,
}

/// What applying a command did that somebody may wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Requests whose change is now applied.
    pub finished: Vec<RequestKey>,
    /// Locks given back: request and attempt.
    pub unlocked: Vec<(RequestKey, u64)>,
    /// Directories that left their place or changed their permission: whatever was derived from paths through them no
    /// longer holds. [`DirectoryId::SUPER_ROOT`]: all of them.
    pub modified: Vec<DirectoryId>,
}

/// A held lock, for the leader's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Whose.
    pub request: RequestKey,
    /// Log index of its prepare.
    pub attempt: u64,
    /// The directory that is being renamed.
    pub source_id: DirectoryId,
    /// How long it is held before the leader may abort the attempt.
    pub lock_ms: u32,
}

impl From<&Lock> for LockInfo {
    fn from(lock: &Lock) -> Self {
        Self { request: lock.request, attempt: lock.attempt, source_id: lock.source_id, lock_ms: lock.lock_ms }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    /// An index of epoch 0 that holds and serves nothing; its hash tables get a fresh seed.
    pub fn new() -> Self {
        Self::with_seed(fresh_seed())
    }

    /// The same, with a given seed.
    pub fn with_seed(seed: Seed) -> Self {
        Self { seed, epoch: Epoch(0), serving: None, catch_up: BTreeMap::new(), rebuild: None, locks: Locks::default() }
    }

    /// Takes everything out; what stays has the epoch, and holds and serves nothing.
    pub fn take(&mut self) -> Self {
        let emptied = Self { epoch: self.epoch, ..Self::with_seed(self.seed.clone()) };
        std::mem::replace(self, emptied)
    }

    /// Resolves a path: `components` from the root's child down, none for the root. Existing directories only.
    pub fn resolve(&self, namespace: &str, components: &[&str], caller: &Caller) -> Resolution {
        match &self.serving {
            Some(tree) if self.catch_up.is_empty() => {
                resolve::walk(&tree.table, &self.locks, namespace, components.iter().copied(), caller, |_| {})
            }
            _ => Resolution::unresolved(ErrorCode::IndexUnavailable),
        }
    }

    /// The same, telling `passed` of every directory that the walk comes to, the root first.
    pub fn resolve_visiting(
        &self,
        namespace: &str,
        path: Path<'_>,
        caller: &Caller,
        mut visit: impl FnMut(DirectoryId, Permission),
    ) -> Resolution {
        match &self.serving {
            Some(tree) if self.catch_up.is_empty() => {
                resolve::walk(&tree.table, &self.locks, namespace, path.components(), caller, |directory| {
                    visit(directory.id, directory.permission)
                })
            }
            _ => Resolution::unresolved(ErrorCode::IndexUnavailable),
        }
    }

    /// A walk below a prefix that is known to lead to its last directory, all of which `caller` may search. It ends as
    /// [`resolve`](Self::resolve) of the whole path would, as long as no directory of the prefix was modified
    /// ([`Effects`]). `path`: not the root's. Nothing of the table is read yet.
    pub fn descent<'a>(
        &self,
        prefix: Prefix<'_, impl Iterator<Item = DirectoryId> + Clone>,
        path: Path<'a>,
        caller: &'a Caller,
    ) -> Descent<'a> {
        Descent::new(&self.locks, prefix, path, caller)
    }

    /// Walks all to their ends, if lookups are answered.
    pub fn descend_all(&self, walks: &mut [Descent<'_>]) {
        if let Some(tree) = self.serving.as_ref().filter(|_| self.catch_up.is_empty()) {
            resolve::descend_all(&tree.table, &self.locks, walks);
        }
    }

    /// The epoch that the last rebuild began with.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Are lookups answered? Once a rebuild completed, and after another one only when it has caught up with what was
    /// served before.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some() && self.catch_up.is_empty()
    }

    /// Is a rebuild unfinished?
    pub fn is_rebuilding(&self) -> bool {
        self.rebuild.is_some()
    }

    /// Is there a tree, though it may have to catch up?
    pub fn is_built(&self) -> bool {
        self.serving.is_some()
    }

    /// What feeds the served tree, in the order of the ids.
    pub fn sources(&self) -> impl Iterator<Item = (SourceId, Source)> {
        self.serving.iter().flat_map(|tree| tree.sources.iter().map(|(id, source)| (*id, *source)))
    }

    /// One of them.
    pub fn source(&self, source: SourceId) -> Option<Source> {
        self.serving.as_ref().and_then(|tree| tree.sources.get(&source).copied())
    }

    /// All commits of the source at or below this are applied.
    pub fn applied_lsn(&self, source: SourceId) -> Lsn {
        self.serving.as_ref().map_or(Lsn::INVALID, |tree| tree.applied_lsn(source))
    }

    /// Nothing that the source committed above this is applied, not even a part of a transaction.
    pub fn reached_lsn(&self, source: SourceId) -> Lsn {
        self.serving.as_ref().map_or(Lsn::INVALID, |tree| tree.reached_lsn(source))
    }

    /// Are removed directories remembered, because of several sources, that a horizon would let be forgotten?
    pub fn needs_horizon(&self) -> bool {
        let needs = |tree: &Tree| {
            let removals = &tree.removals;
            tree.sources.len() > 1 && !removals.removed.is_empty() && removals.horizons.len() < HORIZONS_MAX
        };
        self.serving.as_ref().is_some_and(needs)
    }

    /// The locks held, in the order of their keys.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.locks.iter().map(LockInfo::from).collect()
    }

    /// The lock that a request holds.
    pub fn lock_of(&self, request: &RequestKey) -> Option<LockInfo> {
        self.locks.get(request).map(LockInfo::from)
    }

    /// What the group may do with a namespace; `None`: it does not have it.
    pub fn namespace_state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        self.serving.as_ref().and_then(|tree| tree.namespace_state(ns))
    }

    /// Must lookups in this namespace be refused, whatever they found? Not if it has no directory here at all.
    pub fn refuses_lookups(&self, ns: NamespaceId) -> bool {
        let Some(namespaces) = self.serving.as_ref().and_then(|tree| tree.namespaces.as_ref()) else { return false };
        !namespaces.all_serve() && namespaces.state(ns).is_some_and(|state| !state.answers())
    }

    /// Does the group have whatever namespace there is?
    pub fn has_all_namespaces(&self) -> bool {
        self.serving.as_ref().is_none_or(|tree| tree.namespaces.is_none())
    }

    /// The group's namespaces; `None` when it has all.
    pub fn namespaces(&self) -> Option<Vec<(NamespaceId, NamespaceState)>> {
        let namespaces = self.serving.as_ref()?.namespaces.as_ref()?;
        Some(namespaces.iter().map(|(ns, state, ..)| (ns, state)).collect())
    }

    /// Those of them that are on their way in or out.
    pub fn moving_namespaces(&self) -> Vec<(NamespaceId, NamespaceState)> {
        let mut all = match self.serving.as_ref().and_then(|tree| tree.namespaces.as_ref()) {
            Some(namespaces) if !namespaces.all_serve() => self.namespaces().unwrap_or_default(),
            _ => return Vec::new(),
        };
        all.retain(|(_, state)| *state != NamespaceState::Serving);
        all
    }

    /// The directory at the top of the tree that a directory is in, as far as it is known here: a namespace's root, or one
    /// that hangs unresolved.
    pub fn topmost_ancestor(&self, id: DirectoryId) -> DirectoryId {
        let Some(tree) = &self.serving else { return id };
        let mut top = id;
        // Bounded: the streams of several sources may close a cycle for a moment.
        for _ in 0..=PATH_DEPTH_MAX {
            match tree.table.get(top) {
                Some(directory) if directory.pid != DirectoryId::SUPER_ROOT.sole_partition() => {
                    top = record::directory_of(directory.pid);
                }
                _ => break,
            }
        }
        top
    }

    /// Directories in the served tree, namespace roots included.
    pub fn directories(&self) -> usize {
        self.serving.as_ref().map_or(0, |tree| tree.table.len())
    }

    /// The ids of one of [`SLICES`] parts of the served tree.
    pub fn slice(&self, slice: usize) -> impl Iterator<Item = DirectoryId> {
        self.serving.iter().flat_map(move |tree| tree.table.ids_of_shard(slice))
    }

    /// A directory of the served tree.
    pub fn entry(&self, id: DirectoryId) -> Option<Entry> {
        let record = self.serving.as_ref()?.table.record_of(id)?;
        Some(Entry { id, pid: record.pid, name: record.name.to_owned(), version: record.version })
    }

    /// All that is known of a directory of the served tree; the namespace is not kept with it.
    pub fn record(&self, id: DirectoryId) -> Option<DirectoryRecord> {
        self.serving.as_ref()?.table.record_of(id).map(|record| record.to_message())
    }

    /// Bytes of memory that the tables hold, an unfinished rebuild included.
    pub fn heap_bytes(&self) -> usize {
        self.serving.iter().chain(&self.rebuild).map(|tree| tree.table.heap_bytes()).sum()
    }

    /// Those of them that come from the system, not from the allocator.
    pub fn mapped_bytes(&self) -> usize {
        self.serving.iter().chain(&self.rebuild).map(|tree| tree.table.mapped_bytes()).sum()
    }

    /// Hash over `(pid, name, id, version, permission)` of every directory served, whatever their order. Reads the whole
    /// table.
    pub fn digest(&self) -> u64 {
        self.serving.as_ref().map_or(0, |tree| tree.table.digest())
    }
}
