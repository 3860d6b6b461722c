//! One copy of the directory tree and the positions it has come to: what serves, or what a rebuild fills.
//!
//! Invariant: the table holds, per id, the record of the highest version that was applied, or none when that was the
//! removal. Streams of several sources converge however they interleave, because nothing else decides.

use std::collections::BTreeMap;

use mantle_types::{
    DirectoryId, Lsn, NamespaceId,
    limits::NAME_BYTES_MAX,
    message::{DirectoryOp, DirectoryRecord},
};

use crate::failpoints::{self, Failpoint};

use super::{
    command::{NamespaceState, Source, SourceId, SourceStart},
    namespaces::Namespaces,
    record::Record,
    removals::{Horizon, Removal, Removals},
    seed::Seed,
    table::IndexTable,
};

pub(super) struct Tree {
    pub table: IndexTable,
    pub removals: Removals,
    /// The namespaces that it is of; `None`: all.
    pub namespaces: Option<Namespaces>,
    /// What feeds it. Set when its copy is complete.
    pub sources: BTreeMap<SourceId, Source>,
    /// Of which transaction of a source some is applied and not all: where its commit record begins, above what is applied.
    pub partial: BTreeMap<SourceId, Lsn>,
}

impl Tree {
    pub(super) fn new(seed: Seed) -> Self {
        Self {
            table: IndexTable::new(seed),
            removals: Removals::default(),
            namespaces: None,
            sources: BTreeMap::new(),
            partial: BTreeMap::new(),
        }
    }

    pub(super) fn applied_lsn(&self, source: SourceId) -> Lsn {
        self.sources.get(&source).map_or(Lsn::INVALID, |source| source.applied)
    }

    /// Nothing of what committed above is applied, not even in part.
    pub(super) fn reached_lsn(&self, source: SourceId) -> Lsn {
        self.applied_lsn(source).max(self.partial.get(&source).copied().unwrap_or(Lsn::INVALID))
    }

    /// A part of a transaction is applied.
    pub(super) fn mark_partial(&mut self, source: SourceId, commit_lsn: Lsn) {
        let partial = self.partial.entry(source).or_default();
        *partial = commit_lsn.max(*partial);
    }

    pub(super) fn begin_streams(&mut self, starts: &[SourceStart]) {
        let source = |start: &SourceStart| {
            let applied = just_below(start.consistent_point);
            (start.source, Source { lineage: start.lineage, applied, copied: start.copied })
        };
        self.sources = starts.iter().map(source).collect();
    }

    /// All commits of a source at or below `lsn` are applied. Positions of a source never go back.
    pub(super) fn advance(&mut self, source: SourceId, lsn: Lsn) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.applied = source.applied.max(lsn);
        }
        let applied = self.applied_lsn(source);
        self.partial.retain(|of, partial| *of != source || *partial > applied);
    }

    /// Removals up to log index `after` may be forgotten past these positions.
    pub(super) fn set_horizon(&mut self, after: u64, positions: Vec<(SourceId, Lsn)>) {
        self.removals.horizons.push_back(Horizon { after, positions });
    }

    /// What the group may do with a namespace; `None`: it does not have it.
    pub(super) fn namespace_state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        match &self.namespaces {
            None => Some(NamespaceState::Serving),
            Some(namespaces) => namespaces.state(ns),
        }
    }

    /// Drops removals that nobody can contradict any more. A transaction of which a part was applied may come again from its
    /// beginning, with an older record of what that part removed.
    pub(super) fn forget_removals(&mut self) {
        if self.partial.is_empty() && !self.namespaces.as_ref().is_some_and(Namespaces::is_copying) {
            self.removals.forget(&self.sources);
        }
    }

    /// An operation of a namespace that the group has. `is_copied`: a copy has, or will have, what the source committed
    /// then, but perhaps of a directory that another source removed: removals alone count.
    pub(super) fn apply_op(&mut self, log_index: u64, op: &DirectoryOp, is_copied: bool, state: NamespaceState) {
        match op {
            DirectoryOp::Put { .. } if is_copied => {}
            DirectoryOp::Put { record, .. }
                if state == NamespaceState::Leaving && self.table.get(record.id).is_none() => {}
            DirectoryOp::Put { record, .. } => self.put(record),
            DirectoryOp::Remove { record, .. } => self.remove(log_index, record),
            DirectoryOp::Done { .. } | DirectoryOp::Half { .. } => {}
        }
    }

    /// The highest version wins. A record that no reader could ask for (it cannot come from a checked writer) is left
    /// out: a lookup then misses and PostgreSQL answers.
    pub(super) fn put(&mut self, r: &DirectoryRecord) {
        if r.id == DirectoryId::SUPER_ROOT || r.name.len() > NAME_BYTES_MAX {
            return;
        }
        let is_older = self.known_version(r.id).is_some_and(|known| r.version <= known);
        if is_older && !failpoints::is_hit(Failpoint::ApplyAnyVersion) {
            return;
        }
        self.removals.removed.remove(&r.id);
        self.table.put(&Record::from(r));
    }

    /// A removal also wins over a record of its own version, whichever comes first.
    fn remove(&mut self, log_index: u64, r: &DirectoryRecord) {
        let is_older = self.known_version(r.id).is_some_and(|known| r.version < known);
        if is_older && !failpoints::is_hit(Failpoint::ApplyAnyVersion) {
            return;
        }
        self.table.remove(r.id);
        self.removals.removed.insert(r.id, Removal { version: r.version, log_index });
    }

    /// Of the record or the removal that was applied last.
    pub(super) fn known_version(&self, id: DirectoryId) -> Option<u64> {
        self.table.get(id).map(|directory| directory.version).or_else(|| self.removals.version(id))
    }
}

/// The highest commit LSN below a position.
pub(super) fn just_below(position: Lsn) -> Lsn {
    Lsn(position.0.saturating_sub(1))
}
