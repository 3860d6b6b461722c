//! One copy of the directory tree, with the position in each source up to which it is applied: the served tree, or the one
//! that a rebuild fills.
//!
//! Invariant: for each id the table holds the applied record with the highest version, or nothing if that record was
//! the removal. The result depends on nothing else, so streams of several sources converge in any interleaving.

use std::collections::BTreeMap;

use mantle_types::{
    DirectoryId, Lsn, NamespaceId,
    limits::NAME_BYTES_MAX,
    message::{DirectoryOp, DirectoryRecord},
};

use crate::failpoints::{self, Failpoint};

use super::{
    command::{NamespaceState, Source, SourceId, SourceStart, StreamTransaction},
    last_seen::{LastSeen, checksum},
    namespaces::Namespaces,
    record::Record,
    removals::{Removal, Removals},
    seed::Seed,
    table::IndexTable,
};

pub(super) struct Tree {
    pub table: IndexTable,
    pub removals: Removals,
    /// The namespaces in this tree. `None`: all.
    pub namespaces: Option<Namespaces>,
    /// The sources. Empty until the initial copy is complete.
    pub sources: BTreeMap<SourceId, Source>,
    /// Per source, the commit LSN of a transaction that is only partly applied.
    pub partial: BTreeMap<SourceId, Lsn>,
    /// What the stream of each source brought last. A snapshot of an older release did not say.
    pub last_seen: BTreeMap<SourceId, LastSeen>,
}

impl Tree {
    pub(super) fn new(seed: Seed) -> Self {
        Self {
            table: IndexTable::new(seed),
            removals: Removals::default(),
            namespaces: None,
            sources: BTreeMap::new(),
            partial: BTreeMap::new(),
            last_seen: BTreeMap::new(),
        }
    }

    pub(super) fn applied_lsn(&self, source: SourceId) -> Lsn {
        self.sources.get(&source).map_or(Lsn::INVALID, |source| source.applied)
    }

    pub(super) fn reached_lsn(&self, source: SourceId) -> Lsn {
        self.applied_lsn(source).max(self.partial.get(&source).copied().unwrap_or(Lsn::INVALID))
    }

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
        self.last_seen = starts.iter().map(|start| (start.source, LastSeen::Slot(start.consistent_point))).collect();
    }

    /// Notes the last transaction of a source's batch, of which nothing is left to apply.
    pub(super) fn see(&mut self, source: SourceId, transaction: &StreamTransaction) {
        let StreamTransaction { commit_lsn, ops } = transaction;
        let came_whole = self.partial.get(&source) != Some(commit_lsn);
        let checksum = came_whole.then(|| checksum(ops));
        self.last_seen.insert(source, LastSeen::Transaction { commit_lsn: *commit_lsn, checksum });
    }

    /// Notes that all commits of a source at or below `lsn` are applied. A source's position never goes back.
    pub(super) fn advance(&mut self, source: SourceId, lsn: Lsn) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.applied = source.applied.max(lsn);
        }
        let applied = self.applied_lsn(source);
        self.partial.retain(|of, partial| *of != source || *partial > applied);
    }

    /// What the group may do with a namespace. `None`: the group does not have it.
    pub(super) fn namespace_state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        self.namespaces.as_ref().map_or(Some(NamespaceState::Serving), |namespaces| namespaces.state(ns))
    }

    /// Drops the removals that no older message can contradict any more. While a transaction is partly applied, none is
    /// dropped: the transaction may arrive again from its beginning, with an older record of a directory that the applied part
    /// removed.
    pub(super) fn forget_removals(&mut self) {
        if self.partial.is_empty() && !self.namespaces.as_ref().is_some_and(Namespaces::is_copying) {
            self.removals.forget(&self.sources);
        }
    }

    /// Applies an operation of a namespace that the group has. With `is_copied`, only removals count: a copy has, or will have,
    /// what the source committed then, but another source may have removed the directory since.
    pub(super) fn apply_op(&mut self, log_index: u64, op: &DirectoryOp, is_copied: bool, state: NamespaceState) {
        match op {
            DirectoryOp::Put { .. } if is_copied => {}
            DirectoryOp::Put { record, .. }
                if state == NamespaceState::Leaving && self.table.get(record.id).is_none() => {}
            DirectoryOp::Put { record, .. } => self.put(record),
            DirectoryOp::Remove { record, .. } => self.remove(log_index, record),
            DirectoryOp::Done { .. } | DirectoryOp::PartDone { .. } => {}
        }
    }

    /// The highest version wins. Skips a record whose id or name is out of range, which no checked writer produces: a lookup
    /// then misses, and PostgreSQL answers.
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

    /// A removal also wins over a record of its own version, whichever arrives first.
    fn remove(&mut self, log_index: u64, r: &DirectoryRecord) {
        let is_older = self.known_version(r.id).is_some_and(|known| r.version < known);
        if is_older && !failpoints::is_hit(Failpoint::ApplyAnyVersion) {
            return;
        }
        self.table.remove(r.id);
        self.removals.removed.insert(r.id, Removal { version: r.version, log_index });
    }

    /// Version of the record or the removal that was applied last.
    pub(super) fn known_version(&self, id: DirectoryId) -> Option<u64> {
        self.table.get(id).map(|directory| directory.version).or_else(|| self.removals.version(id))
    }
}

/// The highest commit LSN below a position.
pub(super) fn just_below(position: Lsn) -> Lsn {
    Lsn(position.0.saturating_sub(1))
}
