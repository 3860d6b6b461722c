//! Directories as a plain map, and the walk that a lookup stands for: the oracle's side of `index/`.

use std::collections::{BTreeMap, BTreeSet};

use mantle_types::{Caller, DirectoryId, PartitionId, Permission, message::DirectoryRecord, permission::Access};

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
    /// Do all components exist, and may the caller search all of them but the last?
    pub is_found: bool,
    /// May the caller not search the directory that it came to?
    pub is_denied: bool,
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
