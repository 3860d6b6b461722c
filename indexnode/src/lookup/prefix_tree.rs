//! PrefixTree: the directories of all cached prefixes as a tree, to find all entries below a directory.
//!
//! A node is a directory, identified by its id. Invariant: a node has an entry or children. Its parent is the directory above
//! it in every entry below; they agree, because an entry is admitted only while none of its directories is being modified.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::RandomState,
};

use mantle_types::DirectoryId;

/// A directory and its links in the list of siblings. [`NONE`] ends a list.
struct Node {
    parent: DirectoryId,
    first_child: DirectoryId,
    next: DirectoryId,
    previous: DirectoryId,
    /// Hash of the entry that leads to this directory, if any.
    entry: Option<u64>,
}

const NONE: DirectoryId = DirectoryId(u64::MAX);
/// Memory of a node in bytes, its share of the hash table included.
pub(super) const NODE_BYTES: usize = (size_of::<(DirectoryId, Node)>() + 1) * 8 / 7;

pub(super) struct PrefixTree {
    nodes: HashMap<DirectoryId, Node, RandomState>,
}

impl PrefixTree {
    pub(super) fn new() -> Self {
        Self { nodes: HashMap::default() }
    }

    pub(super) fn contains(&self, id: DirectoryId) -> bool {
        self.nodes.contains_key(&id)
    }

    pub(super) fn has_entry(&self, id: DirectoryId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.entry.is_some())
    }

    /// Number of these directories without a node.
    pub(super) fn missing(&self, ids: &[DirectoryId]) -> usize {
        ids.iter().filter(|id| !self.contains(**id)).count()
    }

    /// Adds the directories of an entry's prefix, the top one first.
    pub(super) fn insert(&mut self, ids: &[DirectoryId], hash: u64) {
        let mut parent = DirectoryId::SUPER_ROOT;
        self.ensure(parent, NONE);
        for id in ids {
            self.ensure(*id, parent);
            parent = *id;
        }
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.entry = Some(hash);
        }
    }

    fn ensure(&mut self, id: DirectoryId, parent: DirectoryId) {
        let next = self.nodes.get(&parent).map_or(NONE, |node| node.first_child);
        let Entry::Vacant(vacant) = self.nodes.entry(id) else { return };
        vacant.insert(Node { parent, first_child: NONE, next, previous: NONE, entry: None });
        if let Some(next) = self.nodes.get_mut(&next) {
            next.previous = id;
        }
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.first_child = id;
        }
    }

    /// Removes at most `nodes_max` nodes of a directory's subtree, leaves first, and calls `removed` for each entry; then
    /// removes the ancestors without entry and children. Returns the number of removed nodes, and whether the subtree is gone.
    pub(super) fn remove(
        &mut self,
        id: DirectoryId,
        nodes_max: usize,
        mut removed: impl FnMut(u64, DirectoryId),
    ) -> (usize, bool) {
        let mut count = 0;
        let mut here = id;
        while let Some(node) = self.nodes.get(&here) {
            if node.first_child != NONE {
                here = node.first_child;
                continue;
            }
            let (parent, entry) = (node.parent, node.entry);
            let is_inside = here != id;
            if !is_inside || count < nodes_max {
                entry.into_iter().for_each(|hash| removed(hash, here));
                self.unlink(here);
                count += 1;
            }
            if !is_inside {
                return (count + self.prune(parent), true);
            }
            if count >= nodes_max {
                return (count, false);
            }
            here = parent;
        }
        (count, true)
    }

    /// Removes a node without entry and children, and then its ancestors that become such.
    fn prune(&mut self, mut id: DirectoryId) -> usize {
        let mut count = 0;
        while let Some(node) = self.nodes.get(&id) {
            if node.first_child != NONE || node.entry.is_some() {
                break;
            }
            let parent = node.parent;
            self.unlink(id);
            count += 1;
            id = parent;
        }
        count
    }

    fn unlink(&mut self, id: DirectoryId) {
        let Some(node) = self.nodes.remove(&id) else { return };
        if let Some(next) = self.nodes.get_mut(&node.next) {
            next.previous = node.previous;
        }
        match self.nodes.get_mut(&node.previous) {
            Some(previous) => previous.next = node.next,
            None => {
                if let Some(parent) = self.nodes.get_mut(&node.parent) {
                    parent.first_child = node.next;
                }
            }
        }
        if self.nodes.is_empty() {
            self.nodes.shrink_to_fit();
        }
    }
}
