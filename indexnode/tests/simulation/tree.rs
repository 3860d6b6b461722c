//! Directories as a plain map, and the walk that a lookup stands for: the oracle's side of `index/`.

use std::collections::{BTreeMap, BTreeSet};

use mantle_types::{DirectoryId, PartitionId, Permission, message::DirectoryRecord};

use crate::postgres::{NAMESPACE, ROOT};

/// Directories by id and by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    records: BTreeMap<DirectoryId, DirectoryRecord>,
    places: BTreeMap<(PartitionId, String), DirectoryId>,
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Do all components exist?
    pub is_found: bool,
    /// The deepest directory that does.
    pub id: DirectoryId,
    /// How deep that is.
    pub depth: usize,
    /// Its record version.
    pub version: u64,
    /// Its permission.
    pub permission: Permission,
}

impl Tree {
    /// A directory.
    pub fn get(&self, id: DirectoryId) -> Option<&DirectoryRecord> {
        self.records.get(&id)
    }

    /// What is at a place.
    pub fn lookup(&self, pid: PartitionId, name: &str) -> Option<&DirectoryRecord> {
        self.places.get(&(pid, name.to_owned())).and_then(|id| self.get(*id))
    }

    /// All directories, by id.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &DirectoryRecord> {
        self.records.values()
    }

    /// Is anything in it?
    pub fn has_children(&self, id: DirectoryId) -> bool {
        let pid = id.sole_partition();
        self.places.range((pid, String::new())..).next().is_some_and(|((found, _), _)| *found == pid)
    }

    /// Puts a directory where its record says.
    pub fn put(&mut self, record: DirectoryRecord) {
        self.remove(record.id);
        self.places.insert((record.pid, record.name.clone()), record.id);
        self.records.insert(record.id, record);
    }

    /// Takes one out.
    pub fn remove(&mut self, id: DirectoryId) {
        if let Some(old) = self.records.remove(&id) {
            self.places.remove(&(old.pid, old.name));
        }
    }

    /// Walks a path as far as it exists.
    pub fn walk(&self, path: &[String]) -> Walk {
        let root = self.lookup(DirectoryId::SUPER_ROOT.sole_partition(), NAMESPACE);
        let mut here = root.expect("the namespace is never removed");
        let mut depth = 0;
        while let Some(next) = path.get(depth).and_then(|name| self.lookup(here.id.sole_partition(), name)) {
            here = next;
            depth += 1;
        }
        Walk { is_found: depth == path.len(), id: here.id, depth, version: here.version, permission: here.permission }
    }

    /// The path of a directory; `None` when its ancestors do not lead to the root.
    pub fn path(&self, id: DirectoryId) -> Option<Vec<String>> {
        let mut path = Vec::new();
        let mut seen = BTreeSet::new();
        let mut here = self.get(id)?;
        while here.id != ROOT {
            if !seen.insert(here.id) {
                return None;
            }
            path.push(here.name.clone());
            here = self.get(DirectoryId(here.pid.0))?;
        }
        path.reverse();
        Some(path)
    }
}
