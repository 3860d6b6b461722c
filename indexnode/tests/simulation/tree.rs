//! The oracle for `index/`: directories as plain maps, and the walk that a lookup should make.

use std::collections::{BTreeMap, BTreeSet};

use mantle_types::{Caller, DirectoryId, PartitionId, Permission, message::DirectoryRecord, permission::Access};

use crate::postgres::{NAMESPACE, ROOT};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    records: BTreeMap<DirectoryId, DirectoryRecord>,
    places: BTreeMap<(PartitionId, String), DirectoryId>,
}

/// The expected result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// All components exist, and the caller may search all of them except the last.
    pub is_found: bool,
    /// The caller may not search the directory that the walk reached.
    pub is_denied: bool,
    /// The deepest directory that the walk reached.
    pub id: DirectoryId,
    pub depth: usize,
    pub version: u64,
    pub permission: Permission,
}

impl Tree {
    pub fn get(&self, id: DirectoryId) -> Option<&DirectoryRecord> {
        self.records.get(&id)
    }

    pub fn lookup(&self, pid: PartitionId, name: &str) -> Option<&DirectoryRecord> {
        self.places.get(&(pid, name.to_owned())).and_then(|id| self.get(*id))
    }

    /// All directories, ordered by id.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &DirectoryRecord> {
        self.records.values()
    }

    /// Tells whether a directory has child directories.
    pub fn has_children(&self, id: DirectoryId) -> bool {
        let pid = id.sole_partition();
        self.places.range((pid, String::new())..).next().is_some_and(|((found, _), _)| *found == pid)
    }

    /// Puts a directory at the place in its record.
    pub fn put(&mut self, record: DirectoryRecord) {
        self.remove(record.id);
        self.places.insert((record.pid, record.name.clone()), record.id);
        self.records.insert(record.id, record);
    }

    pub fn remove(&mut self, id: DirectoryId) {
        if let Some(old) = self.records.remove(&id) {
            self.places.remove(&(old.pid, old.name));
        }
    }

    /// Walks a path as far as it exists and the caller may search it.
    pub fn walk(&self, path: &[String], caller: &Caller) -> Walk {
        let root = self.lookup(DirectoryId::SUPER_ROOT.sole_partition(), NAMESPACE);
        let mut here = root.expect("the namespace is never removed");
        let (mut depth, mut is_denied) = (0, false);
        while let Some(name) = path.get(depth) {
            is_denied = !here.permission.allows(caller, Access::Search);
            match self.lookup(here.id.sole_partition(), name).filter(|_| !is_denied) {
                Some(next) => here = next,
                None => break,
            }
            depth += 1;
        }
        let (is_found, permission) = (depth == path.len(), here.permission);
        Walk { is_found, is_denied, id: here.id, depth, version: here.version, permission }
    }

    /// The path of a directory. `None` if its ancestors do not lead to the root.
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
