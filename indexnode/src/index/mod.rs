//! The directory index: what the Raft log makes of the change stream. A pure core: state in, result out; no clock, no
//! I/O, no async; [`Index::apply`] is the only function that changes it, so every replica comes to the same state.
//!
//! Randomness only seeds hash tables at construction; neither the state nor the digest depends on it.
//!
//! Source: Mantle (SOSP '25) for IndexTable and lock bit; PROTOCOLS rules 1–4, 20, 21, 23 are restated where they act.

mod apply;
mod arena;
mod cell;
pub mod command;
mod digest;
mod invariants;
mod locks;
mod permissions;
mod prepare;
mod removed;
mod resolve;
mod shards;
mod snapshot;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

use std::hash::RandomState;

use mantle_types::{Caller, DirectoryId, Epoch, ErrorCode, Lsn, Permission, RequestKey};

pub use apply::Entry;
pub use resolve::{Descent, Prefix, Resolution};

use command::SourceId;
use locks::{Lock, Locks};
use tree::Tree;

/// The index of one group.
pub struct Index {
    seed: RandomState,
    epoch: Epoch,
    /// What lookups read.
    serving: Option<Tree>,
    /// After an online rebuild: lookups wait until the new tree has come as far as the old one was (source, LSN).
    catch_up: Option<(SourceId, Lsn)>,
    /// What an unfinished rebuild fills.
    rebuild: Option<Tree>,
    locks: Locks,
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
        Self::with_seed(RandomState::new())
    }

    /// The same, with a given seed.
    pub fn with_seed(seed: RandomState) -> Self {
        Self { seed, epoch: Epoch(0), serving: None, catch_up: None, rebuild: None, locks: Locks::default() }
    }

    /// Resolves a path: `components` from the root's child down, none for the root. Existing directories only.
    pub fn resolve(&self, namespace: &str, components: &[&str], caller: &Caller) -> Resolution {
        match &self.serving {
            Some(tree) if self.catch_up.is_none() => {
                resolve::walk(&tree.table, &self.locks, namespace, components, caller, |_| {})
            }
            _ => Resolution::nowhere(ErrorCode::IndexUnavailable),
        }
    }

    /// The same, telling `passed` of every directory that the walk comes to, the root first.
    pub fn resolve_passing(
        &self,
        namespace: &str,
        components: &[&str],
        caller: &Caller,
        mut passed: impl FnMut(DirectoryId, Permission),
    ) -> Resolution {
        match &self.serving {
            Some(tree) if self.catch_up.is_none() => {
                resolve::walk(&tree.table, &self.locks, namespace, components, caller, |directory| {
                    passed(directory.id, directory.permission)
                })
            }
            _ => Resolution::nowhere(ErrorCode::IndexUnavailable),
        }
    }

    /// A walk below a prefix that is known to lead to its last directory, all of which `caller` may search. It ends as
    /// [`resolve`](Self::resolve) of the whole path would, as long as no directory of the prefix was modified
    /// ([`Effects`]). `components`: at least one. Nothing of the table is read yet.
    pub fn descent<'a>(&self, prefix: &Prefix<'_>, components: &'a [&'a str], caller: &'a Caller) -> Descent<'a> {
        Descent::new(&self.locks, prefix, components, caller)
    }

    /// Walks all to their ends, if lookups are answered.
    pub fn descend_all(&self, walks: &mut [Descent<'_>]) {
        if let Some(tree) = self.serving.as_ref().filter(|_| self.catch_up.is_none()) {
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
        self.serving.is_some() && self.catch_up.is_none()
    }

    /// Is a rebuild unfinished?
    pub fn is_rebuilding(&self) -> bool {
        self.rebuild.is_some()
    }

    /// System identifier and timeline of the PostgreSQL that the served tree was copied from.
    pub fn system(&self) -> Option<(u64, u32)> {
        self.serving.as_ref().map(|tree| tree.system)
    }

    /// All commits of the source at or below this are applied.
    pub fn applied_lsn(&self, source: SourceId) -> Lsn {
        self.serving.as_ref().map_or(Lsn::INVALID, |tree| tree.applied_lsn(source))
    }

    /// The locks held, in the order of their keys.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.locks.iter().map(LockInfo::from).collect()
    }

    /// The lock that a request holds.
    pub fn locks_of(&self, request: &RequestKey) -> Option<LockInfo> {
        self.locks.get(request).map(LockInfo::from)
    }

    /// Directories in the served tree, namespace roots included.
    pub fn directories(&self) -> usize {
        self.serving.as_ref().map_or(0, |tree| tree.table.len())
    }

    /// Bytes of heap that the tables hold, an unfinished rebuild included.
    pub fn heap_bytes(&self) -> usize {
        self.serving.iter().chain(&self.rebuild).map(|tree| tree.table.heap_bytes()).sum()
    }

    /// Hash over `(pid, name, id, version, permission)` of every directory served, whatever their order. Reads the whole
    /// table.
    pub fn digest(&self) -> u64 {
        self.serving.as_ref().map_or(0, |tree| tree.table.digest())
    }
}
