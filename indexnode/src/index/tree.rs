//! One copy of the directory tree and the positions it has come to: what serves, or what a rebuild fills.
//!
//! Invariant: the table holds, per id, the record of the highest version that was applied, or none when that was the
//! removal. Streams of several sources converge however they interleave, because nothing else decides.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::RandomState,
};

use mantle_types::{
    DirectoryId, Lsn,
    limits::NAME_BYTES_MAX,
    message::{DirectoryOp, DirectoryRecord},
};

use super::{
    command::SourceId,
    removed::{Horizon, Removal, Removed},
    table::{IndexTable, Record},
};

pub(super) struct Tree {
    /// `(system_identifier, timeline)` of the PostgreSQL it was copied from.
    pub system: (u64, u32),
    pub table: IndexTable,
    pub removed: Removed,
    /// Per source: all commits at or below are applied.
    pub sources: BTreeMap<SourceId, Lsn>,
}

impl Tree {
    pub(super) fn new(seed: RandomState, system: (u64, u32)) -> Self {
        Self { system, table: IndexTable::new(seed), removed: Removed::default(), sources: BTreeMap::new() }
    }

    pub(super) fn applied_lsn(&self, source: SourceId) -> Lsn {
        self.sources.get(&source).copied().unwrap_or(Lsn::INVALID)
    }

    /// All commits of a source at or below `lsn` are applied. Positions of a source never go back.
    pub(super) fn advance(&mut self, source: SourceId, lsn: Lsn) {
        match self.sources.entry(source) {
            Entry::Vacant(entry) => {
                entry.insert(lsn);
            }
            Entry::Occupied(mut entry) => {
                let lsn = lsn.max(*entry.get());
                entry.insert(lsn);
            }
        }
    }

    /// The sources are these; and removals up to log index `after` may be forgotten past these positions.
    pub(super) fn set_horizon(&mut self, after: u64, positions: Vec<(SourceId, Lsn)>) {
        let applied = |source| (source, self.applied_lsn(source));
        self.sources = positions.iter().map(|(source, _)| applied(*source)).collect();
        self.removed.horizons.push_back(Horizon { after, positions });
    }

    pub(super) fn apply_op(&mut self, log_index: u64, op: &DirectoryOp) {
        match op {
            DirectoryOp::Put { record, .. } => self.put(record),
            DirectoryOp::Remove { record, .. } => self.remove(log_index, record),
            DirectoryOp::Done { .. } => {}
        }
    }

    /// The highest version wins. A record that no reader could ask for (it cannot come from a checked writer) is left
    /// out: a lookup then misses and PostgreSQL answers.
    pub(super) fn put(&mut self, r: &DirectoryRecord) {
        if r.id == DirectoryId::SUPER_ROOT || r.name.len() > NAME_BYTES_MAX {
            return;
        }
        if self.known_version(r.id).is_some_and(|known| r.version <= known) {
            return;
        }
        self.removed.removals.remove(&r.id);
        self.table.put(&Record { pid: r.pid, name: &r.name, id: r.id, version: r.version, permission: r.permission });
    }

    /// A removal also wins over a record of its own version, whichever comes first.
    fn remove(&mut self, log_index: u64, r: &DirectoryRecord) {
        if self.known_version(r.id).is_some_and(|known| r.version < known) {
            return;
        }
        self.table.remove(r.id);
        self.removed.removals.insert(r.id, Removal { version: r.version, log_index });
    }

    /// Of the record or the removal that was applied last.
    pub(super) fn known_version(&self, id: DirectoryId) -> Option<u64> {
        self.table.get(id).map(|directory| directory.version).or_else(|| self.removed.version(id))
    }
}
