//! Checks the index's invariants by brute force.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mantle_types::DirectoryId;

use crate::index::{Index, digest::record_hash, locks::Locks, record::directory_of, table::IndexTable, tree::Tree};

impl Index {
    /// Asserts that all parts of the index agree with each other.
    pub(super) fn invariants(&self) {
        self.locks.invariants();
        for tree in self.serving.iter().chain(&self.rebuild) {
            tree.invariants();
        }
        for (source, lsn) in &self.catch_up {
            let tree = self.serving.as_ref().expect("only a tree can catch up");
            let source = tree.sources.get(source).expect("only with a source of its own");
            assert!(source.applied < *lsn, "an index that caught up serves");
        }
        assert!(
            self.rebuild.is_none() || self.locks.iter().next().is_none(),
            "locks are dropped when a rebuild begins"
        );
    }
}

impl Tree {
    fn invariants(&self) {
        self.table.invariants();
        for id in self.removals.removed.keys() {
            assert!(self.table.get(*id).is_none(), "directory {id} is present and removed");
        }
        for (source, commit_lsn) in &self.partial {
            assert!(self.applied_lsn(*source) < *commit_lsn, "a transaction that is applied is not begun any more");
        }
    }
}

impl Locks {
    fn invariants(&self) {
        let mut sources = HashMap::default();
        let mut places: BTreeMap<_, BTreeMap<_, u32>> = BTreeMap::new();
        for lock in self.iter() {
            assert_eq!(self.get(&lock.request), Some(lock));
            assert!(sources.insert(lock.source_id, lock.request).is_none(), "{} is locked twice", lock.source_id);
            for (pid, name) in [&lock.source, &lock.destination] {
                assert!(self.covers(*pid, name, None));
                *places.entry(*pid).or_default().entry(name.clone()).or_default() += 1;
            }
        }
        let sorted = |names: &HashMap<String, u32, _>| names.iter().map(|(name, n)| (name.clone(), *n)).collect();
        let listed = self.places.iter().map(|(pid, names)| (*pid, sorted(names))).collect();
        assert_eq!((&sources, places), (&self.sources, listed));
    }
}

impl IndexTable {
    /// Child counts of directories that are not in the table.
    pub(super) fn absent_children(&self) -> BTreeMap<DirectoryId, u32> {
        self.absent_parents.iter().map(|(id, children)| (*id, *children)).collect()
    }

    fn invariants(&self) {
        let mut ids = BTreeSet::new();
        let mut occupied = BTreeMap::new();
        let mut displaced = BTreeSet::new();
        let digest = self.records().fold(0u64, |sum, (record, _)| sum.wrapping_add(record_hash(&record)));
        assert_eq!(self.digest(), digest, "the digest is kept while records change");
        for (record, is_displaced) in self.records() {
            assert!(ids.insert(record.id), "id {} has two cells", record.id);
            let found = self.get(record.id).expect("a listed id is found");
            assert_eq!((found.pid, found.version), (record.pid, record.version));
            if is_displaced {
                displaced.insert((record.pid, record.name, record.id));
            } else {
                let other = occupied.insert((record.pid, record.name), record.id);
                assert!(other.is_none(), "a place has two occupants");
            }
        }
        for (pid, name, id) in &displaced {
            let occupant = occupied.get(&(*pid, *name)).expect("a claimed place is occupied");
            assert_ne!(occupant, id);
        }
        assert!(self.displaced.iter().map(|(pid, name, id)| (*pid, &**name, *id)).eq(displaced.iter().copied()));
        let mut children: BTreeMap<_, u32> = BTreeMap::new();
        for ((pid, name), id) in &occupied {
            assert_eq!(self.lookup(*pid, name).map(|directory| directory.id), Some(*id), "the maps disagree on {id}");
            *children.entry(directory_of(*pid)).or_default() += 1;
        }
        for id in &ids {
            let count = self.get(*id).map(|directory| directory.children);
            assert_eq!(count, Some(children.remove(id).unwrap_or(0)), "child count of {id}");
        }
        assert_eq!(self.absent_children(), children);
        let permissions: u32 = self.permissions.rows.iter().map(|row| row.directories).sum();
        let counts = (self.places.len(), self.ids.len(), permissions as usize);
        assert_eq!(counts, (occupied.len(), ids.len(), ids.len()), "places, ids, directories with a permission");
    }
}
