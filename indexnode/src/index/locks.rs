//! Locks of prepared directory renames (P20, P23).
//!
//! Invariants: at most one lock a request key and one a source directory; the two maps below hold exactly the sources
//! and the two places of every lock. A lock lives until its effect is applied, its attempt is released (the abort record
//! is in PostgreSQL), or a rebuild begins under a raised epoch.

use std::collections::{BTreeMap, HashMap};

use mantle_types::{DirectoryId, PartitionId, RequestKey};
use serde::{Deserialize, Serialize};

/// A place in the index.
pub(super) type Place = (PartitionId, String);

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lock {
    pub request: RequestKey,
    pub attempt: u64,
    pub source_id: DirectoryId,
    pub source: Place,
    pub destination: Place,
    pub lock_ms: u32,
    /// Of a rename across nodes: has the source's half been applied, and the destination's (P2)?
    pub parts_applied: (bool, bool),
}

#[derive(Default)]
pub(super) struct Locks {
    by_request: BTreeMap<RequestKey, Lock>,
    sources: HashMap<DirectoryId, RequestKey>,
    /// The names that locks name under a partition, once for each time (a place may be one lock's source, where nothing
    /// is any more, and another's destination).
    places: HashMap<PartitionId, Vec<String>>,
}

impl Locks {
    pub(super) fn get(&self, request: &RequestKey) -> Option<&Lock> {
        self.by_request.get(request)
    }

    /// Half of the change that a lock is held for is applied, in the directory of its source or of its destination. Are both?
    pub(super) fn apply_part(&mut self, request: &RequestKey, pid: PartitionId) -> bool {
        let Some(lock) = self.by_request.get_mut(request) else { return false };
        lock.parts_applied.0 |= pid == lock.source.0;
        lock.parts_applied.1 |= pid == lock.destination.0;
        lock.parts_applied == (true, true)
    }

    /// In the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.by_request.values()
    }

    /// Is no lock held?
    pub(super) fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// Is this place named by a lock, or the directory there locked?
    pub(super) fn covers(&self, pid: PartitionId, name: &str, occupant: Option<DirectoryId>) -> bool {
        if self.is_empty() {
            return false;
        }
        occupant.is_some_and(|id| self.sources.contains_key(&id))
            || self.places.get(&pid).is_some_and(|names| names.iter().any(|n| n == name))
    }

    /// Takes a lock; false, and nothing changes, when the request holds one or the source is locked.
    pub(super) fn insert(&mut self, lock: Lock) -> bool {
        if self.by_request.contains_key(&lock.request) || self.sources.contains_key(&lock.source_id) {
            return false;
        }
        self.sources.insert(lock.source_id, lock.request);
        for (pid, name) in [&lock.source, &lock.destination] {
            self.places.entry(*pid).or_default().push(name.clone());
        }
        self.by_request.insert(lock.request, lock);
        true
    }

    /// Gives back the lock of a request, whatever its attempt.
    pub(super) fn remove(&mut self, request: &RequestKey) -> Option<Lock> {
        let lock = self.by_request.remove(request)?;
        self.sources.remove(&lock.source_id);
        for (pid, name) in [&lock.source, &lock.destination] {
            let names = self.places.get_mut(pid).expect("both places of a lock are listed");
            let at = names.iter().position(|n| n == name).expect("both places of a lock are listed");
            names.swap_remove(at);
            if names.is_empty() {
                self.places.remove(pid);
            }
        }
        Some(lock)
    }

    /// What the two maps hold, names in order: to be compared with the locks.
    pub(super) fn maps(&self) -> (HashMap<DirectoryId, RequestKey>, BTreeMap<PartitionId, Vec<String>>) {
        let mut places: BTreeMap<_, _> = self.places.iter().map(|(pid, names)| (*pid, names.clone())).collect();
        places.values_mut().for_each(|names| names.sort());
        (self.sources.clone(), places)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Lock> {
        std::mem::take(self).by_request.into_values()
    }
}
