//! Locks of prepared directory renames (P20, P23).
//!
//! While any lock is held, every lookup asks about each component that it walks. So the answer costs two probes of hash tables,
//! however many locks there are and however many of them are in one directory.
//!
//! Invariants: a request key has at most one lock, and so has a source directory. The two maps below hold exactly the source
//! and the two places of every lock. A lock lives until the rename is applied, its attempt is released (the abort record is in
//! PostgreSQL), or a rebuild begins under a raised epoch.

use std::collections::{BTreeMap, HashMap};

use foldhash::quality::RandomState;

use mantle_types::{DirectoryId, PartitionId, RequestKey};
use serde::{Deserialize, Serialize};

/// Parent partition and name.
pub(super) type Place = (PartitionId, String);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lock {
    pub request: RequestKey,
    pub attempt: u64,
    pub source_id: DirectoryId,
    pub source: Place,
    pub destination: Place,
    pub lock_ms: u32,
    /// For a rename across nodes: whether its source part is applied, and its destination part (P2).
    pub parts_applied: (bool, bool),
}

#[derive(Default)]
pub(super) struct Locks {
    by_request: BTreeMap<RequestKey, Lock>,
    pub(super) sources: HashMap<DirectoryId, RequestKey, RandomState>,
    /// The locked names in each partition, with the number of locks that name them: a place that is one lock's source can be
    /// empty by now, and another lock's destination.
    pub(super) places: HashMap<PartitionId, HashMap<String, u32, RandomState>, RandomState>,
}

impl Locks {
    pub(super) fn get(&self, request: &RequestKey) -> Option<&Lock> {
        self.by_request.get(request)
    }

    /// Notes that one part of a rename is applied in partition `pid`. Tells whether both parts are.
    pub(super) fn apply_part(&mut self, request: &RequestKey, pid: PartitionId) -> bool {
        let Some(lock) = self.by_request.get_mut(request) else { return false };
        lock.parts_applied.0 |= pid == lock.source.0;
        lock.parts_applied.1 |= pid == lock.destination.0;
        lock.parts_applied == (true, true)
    }

    /// All locks, ordered by request.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.by_request.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_request.is_empty()
    }

    /// Tells whether a lock names this place, or its occupant is locked.
    pub(super) fn covers(&self, pid: PartitionId, name: &str, occupant: Option<DirectoryId>) -> bool {
        if self.is_empty() {
            return false;
        }
        occupant.is_some_and(|id| self.sources.contains_key(&id))
            || self.places.get(&pid).is_some_and(|names| names.contains_key(name))
    }

    /// Takes a lock. Returns false, and changes nothing, if the request holds one or the source is locked.
    pub(super) fn insert(&mut self, lock: Lock) -> bool {
        if self.by_request.contains_key(&lock.request) || self.sources.contains_key(&lock.source_id) {
            return false;
        }
        self.sources.insert(lock.source_id, lock.request);
        for (pid, name) in [&lock.source, &lock.destination] {
            *self.places.entry(*pid).or_default().entry(name.clone()).or_default() += 1;
        }
        self.by_request.insert(lock.request, lock);
        true
    }

    /// Releases the lock of a request, whatever its attempt.
    pub(super) fn remove(&mut self, request: &RequestKey) -> Option<Lock> {
        let lock = self.by_request.remove(request)?;
        self.sources.remove(&lock.source_id);
        for (pid, name) in [&lock.source, &lock.destination] {
            let names = self.places.get_mut(pid).expect("both places of a lock are listed");
            let locks = names.get_mut(name).expect("both places of a lock are listed");
            *locks -= 1;
            if *locks == 0 {
                names.remove(name);
            }
            if names.is_empty() {
                self.places.remove(pid);
            }
        }
        Some(lock)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Lock> {
        std::mem::take(self).by_request.into_values()
    }
}
