//! The Invalidator: RemovalList, PrefixTree, and the modification counter of the timestamp rule. The parent module explains how
//! they work together.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use mantle_types::DirectoryId;
use parking_lot::{Mutex, MutexGuard};

use super::{
    cached_prefix::CachedPrefix,
    prefix_tree::{NODE_BYTES, PrefixTree},
    settings::{Invalidation, LookupSettings},
    signature::Signature,
};

/// Nodes of PrefixTree that one step removes: about 10 µs, for which a fill or apply may wait. (Smaller in tests, so that small
/// trees take several steps too.)
const PURGE_NODES: usize = if cfg!(test) { 2 } else { 32 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The entry is cached.
    Filled,
    /// Another lookup cached it first.
    Present,
    /// Something was modified since the lookup.
    Outdated,
    /// The cache is full.
    Full,
}

/// RemovalList.
#[derive(Clone, Default)]
pub(super) struct Removals {
    ids: HashSet<DirectoryId>,
    /// Of the ids. It may have bits of directories that have left.
    signature: Signature,
}

impl Removals {
    fn add(&mut self, id: DirectoryId) {
        self.ids.insert(id);
        self.signature.add(id);
    }

    fn remove_all(&mut self, ids: &HashSet<DirectoryId>) {
        self.ids.retain(|id| !ids.contains(id));
        self.signature = Signature::of(self.ids.iter().copied());
    }
}

/// RemovalList as a lookup read it.
pub(super) enum RemovalSnapshot {
    /// Nothing is being modified.
    None,
    Some(Arc<Removals>),
    /// All directories.
    All,
}

impl RemovalSnapshot {
    /// Tells whether one of the directories is in the list. Mostly their signature tells that none is.
    pub(super) fn contain_any(&self, signature: Signature, mut ids: impl Iterator<Item = DirectoryId>) -> bool {
        match self {
            Self::None => false,
            Self::Some(listed) => signature.may_meet(listed.signature) && ids.any(|id| listed.ids.contains(&id)),
            Self::All => true,
        }
    }
}

/// The rules that keep lookups from stale prefixes. Only tests switch one off, to prove that they notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub timestamp: bool,
    pub removal_list: bool,
    pub purge: bool,
    pub listed_first: bool,
}

impl Rules {
    pub(super) const ALL: Self = Self { timestamp: true, removal_list: true, purge: true, listed_first: true };
}

pub(super) struct Invalidator {
    invalidation: Invalidation,
    /// Number of modifications. Changes under the index's write guard only.
    modifications: AtomicU64,
    /// Length of RemovalList, which lookups read first.
    pending: AtomicUsize,
    /// Lookups share it while it does not change.
    removals: Mutex<Arc<Removals>>,
    tree: Mutex<Tree>,
    rules: Rules,
}

struct Tree {
    prefixes: PrefixTree,
    entries: usize,
    bytes: usize,
}

impl Invalidator {
    pub(super) fn new(settings: &LookupSettings, rules: Rules) -> Self {
        Self {
            invalidation: settings.invalidation,
            modifications: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            removals: Mutex::default(),
            tree: Mutex::new(Tree { prefixes: PrefixTree::new(), entries: 0, bytes: 0 }),
            rules,
        }
    }

    /// Tells whether modified directories enter RemovalList before the change is published.
    pub(super) fn lists_first(&self) -> bool {
        self.rules.listed_first
    }

    pub(super) fn timestamp(&self) -> u64 {
        self.modifications.load(Ordering::Acquire)
    }

    /// Reads RemovalList under the index's read guard. The result stays valid under the guard: nothing is added meanwhile, and
    /// a directory that leaves the list has no entries.
    pub(super) fn removals(&self) -> RemovalSnapshot {
        if self.pending.load(Ordering::Acquire) == 0 || !self.rules.removal_list {
            return RemovalSnapshot::None;
        }
        let removals = self.removals.lock();
        if removals.ids.contains(&DirectoryId::SUPER_ROOT) {
            return RemovalSnapshot::All;
        }
        RemovalSnapshot::Some(removals.clone())
    }

    /// Puts directories into RemovalList, under the index's write guard. Tells whether there is something to purge.
    pub(super) fn invalidate(&self, directories: &[DirectoryId]) -> bool {
        if directories.is_empty() {
            return false;
        }
        // The counter comes first: a fill that misses the new value was earlier, so PrefixTree has its directories.
        self.modifications.fetch_add(1, Ordering::AcqRel);
        let tree = self.tree.lock();
        let mut removals = self.removals.lock();
        for id in directories {
            if tree.prefixes.contains(*id) {
                let id = if self.invalidation == Invalidation::All { DirectoryId::SUPER_ROOT } else { *id };
                Arc::make_mut(&mut removals).add(id);
            }
        }
        self.pending.store(removals.ids.len(), Ordering::Release);
        !removals.ids.is_empty()
    }

    /// Calls `insert` to cache an entry, unless it is outdated, already present, or does not fit.
    pub(super) fn admit(
        &self,
        entry: CachedPrefix,
        timestamp: u64,
        bytes_max: usize,
        insert: impl FnOnce(CachedPrefix),
    ) -> Admission {
        let mut tree = self.tree.lock();
        let is_outdated = self.timestamp() != timestamp && self.rules.timestamp;
        if is_outdated || self.removals().contain_any(entry.signature(), entry.ids()) {
            return Admission::Outdated;
        }
        if tree.prefixes.has_entry(entry.id()) {
            return Admission::Present;
        }
        let ids: Vec<_> = entry.ids().collect();
        let nodes = tree.prefixes.missing(&[DirectoryId::SUPER_ROOT]) + tree.prefixes.missing(&ids);
        let bytes = entry.bytes() + nodes * NODE_BYTES;
        if tree.bytes + bytes > bytes_max {
            return Admission::Full;
        }
        tree.prefixes.insert(&ids, entry.hash());
        tree.entries += 1;
        tree.bytes += bytes;
        insert(entry);
        Admission::Filled
    }

    /// Removes the entries through the directories in RemovalList, then takes these out of the list. Returns the number of
    /// entries. `remove` removes one and returns its bytes.
    pub(super) fn purge(&self, mut remove: impl FnMut(u64, DirectoryId) -> usize) -> u64 {
        let listed = self.removals.lock().clone();
        let mut count = 0;
        for id in listed.ids.iter().filter(|_| self.rules.purge) {
            loop {
                let mut tree = self.tree.lock();
                let Tree { prefixes, entries, bytes } = &mut *tree;
                let (nodes, is_gone) = prefixes.remove(*id, PURGE_NODES, |hash, id| {
                    *bytes -= remove(hash, id);
                    *entries -= 1;
                    count += 1;
                });
                *bytes = bytes.saturating_sub(nodes * NODE_BYTES);
                // Fair, because apply may wait for this lock.
                MutexGuard::unlock_fair(tree);
                if is_gone {
                    break;
                }
            }
        }
        // A directory modified again meanwhile has no entries either: none are admitted while it is in the list.
        let mut removals = self.removals.lock();
        Arc::make_mut(&mut removals).remove_all(&listed.ids);
        self.pending.store(removals.ids.len(), Ordering::Release);
        count
    }

    /// Number of entries, and bytes of them and of PrefixTree.
    pub(super) fn size(&self) -> (usize, usize) {
        let tree = self.tree.lock();
        (tree.entries, tree.bytes)
    }
}
