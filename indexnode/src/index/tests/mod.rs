//! Tests of the index: protocol rules by example, and random runs against simple models.

mod convergence;
mod formats;
mod imports;
mod invariants;
mod memory;
pub(crate) mod model;
mod namespaces;
mod pieces;
mod prefetch;
mod removals;
mod renames;
mod replicas;
mod rules;

use std::collections::BTreeMap;

use mantle_types::{
    Caller, DirectoryId, Epoch, Lineage, Lsn, NamespaceId, PartitionId, Permission, RequestKey,
    message::{Cause, DirectoryOp, DirectoryRecord},
};
use proptest::prelude::ProptestConfig;
use uuid::Uuid;

use super::{
    Effects, Index, LockInfo, LogEntry,
    command::{Applied, Command, Source, SourceBatch, SourceId, SourceStart, StreamTransaction},
    removals::Removals,
};

pub(crate) const NS: NamespaceId = NamespaceId(1);
pub(crate) const SOURCE: SourceId = SourceId(0);
pub(crate) const OPEN: Permission = Permission { owner: 7, group: 7, mode: 0o755 };

/// Timeline 1 of some system.
pub(crate) const LINEAGE: Lineage = Lineage { system_identifier: 1, timeline: 1 };

/// A source whose slot exported the copy's snapshot.
pub(crate) fn start(source: SourceId, consistent_point: Lsn) -> SourceStart {
    SourceStart { source, lineage: LINEAGE, consistent_point, copied: consistent_point }
}

/// The transactions that one source sent.
pub(crate) fn batch(source: SourceId, transactions: Vec<StreamTransaction>, position: Lsn) -> Command {
    Command::Stream(vec![SourceBatch { source, transactions, position }])
}

/// Runs of a random test: this many, or as `PROPTEST_CASES` says.
pub(crate) fn runs(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { ProptestConfig { cases, ..default } }
}

pub(crate) fn root() -> Caller {
    Caller { uid: 0, gids: vec![] }
}

pub(crate) fn key(number: u128) -> RequestKey {
    RequestKey { principal: 0, ns: NS, id: Uuid::from_u128(number) }
}

pub(crate) fn record(pid: u64, name: &str, id: u64, version: u64) -> DirectoryRecord {
    let (pid, id) = (PartitionId(pid), DirectoryId(id));
    DirectoryRecord { ns: NS, pid, name: name.to_owned(), id, version, permission: OPEN }
}

pub(crate) fn put(record: DirectoryRecord) -> DirectoryOp {
    DirectoryOp::Put { record, cause: None }
}

pub(crate) fn remove(record: DirectoryRecord) -> DirectoryOp {
    DirectoryOp::Remove { record, cause: None }
}

pub(crate) fn caused(op: DirectoryOp, request: RequestKey, attempt: u64) -> DirectoryOp {
    let cause = Some(Cause { request, attempt });
    match op {
        DirectoryOp::Put { record, .. } => DirectoryOp::Put { record, cause },
        DirectoryOp::Remove { record, .. } => DirectoryOp::Remove { record, cause },
        other => other,
    }
}

/// An index with its log position.
pub(crate) struct Replica {
    pub index: Index,
    pub log_index: u64,
    pub effects: Effects,
    /// Operations applied at a time.
    pub part: usize,
}

impl Index {
    fn applied_lsn(&self, source: SourceId) -> Lsn {
        self.serving.as_ref().map_or(Lsn::INVALID, |tree| tree.applied_lsn(source))
    }
}

impl Replica {
    /// An index that serves nothing.
    pub fn empty() -> Self {
        Self { index: Index::default(), log_index: 0, effects: Effects::default(), part: usize::MAX }
    }

    /// Serves a namespace `ns` (directory 1) without directories, as of LSN 1.
    pub fn new() -> Self {
        let mut replica = Self::empty();
        replica.rebuild(1, vec![record(0, "ns", 1, 1)], vec![start(SOURCE, Lsn(1))]);
        replica
    }

    pub fn apply(&mut self, command: Command) -> Applied {
        self.log_index += 1;
        self.effects = Effects::default();
        let mut entry = LogEntry::new(self.log_index, command);
        loop {
            let applied = self.index.apply_part(&mut entry, self.part, &mut self.effects);
            self.index.invariants();
            if let Some(applied) = applied {
                return applied;
            }
        }
    }

    /// Continues from a snapshot of itself.
    pub fn restart(&mut self) {
        let mut bytes = Vec::new();
        self.index.write_snapshot(&mut bytes).unwrap();
        let restored = Index::read_snapshot(&mut &bytes[..]).unwrap();
        restored.invariants();
        assert_eq!(State::of(&restored), State::of(&self.index));
        self.index = restored;
    }

    pub fn begin(&mut self, epoch: u64, is_diverged: bool) {
        self.apply(Command::RebuildBegin { epoch: Epoch(epoch), is_diverged });
    }

    pub fn end(&mut self, consistent_point: Lsn) {
        self.apply(Command::RebuildEnd { sources: vec![start(SOURCE, consistent_point)] });
    }

    pub fn rebuild(&mut self, epoch: u64, records: Vec<DirectoryRecord>, sources: Vec<SourceStart>) {
        self.begin(epoch, false);
        self.apply(Command::RebuildChunk { records });
        self.apply(Command::RebuildEnd { sources });
    }

    /// One transaction of the only source.
    pub fn stream(&mut self, lsn: u64, ops: Vec<DirectoryOp>) {
        let transactions = vec![StreamTransaction { commit_lsn: Lsn(lsn), ops }];
        self.apply(batch(SOURCE, transactions, Lsn(lsn + 1)));
    }

    /// The id to which a path resolves for the superuser.
    pub fn id_of(&self, path: &str) -> Option<u64> {
        let components: Vec<&str> = path.split('/').filter(|c| !c.is_empty()).collect();
        let resolution = self.index.resolve("ns", &components, &root());
        resolution.outcome.is_ok().then_some(resolution.id.0)
    }
}

/// Everything that later entries depend on, sorted.
#[derive(Debug, PartialEq)]
pub(crate) struct State {
    epoch: Epoch,
    catch_up: BTreeMap<SourceId, Lsn>,
    locks: Vec<LockInfo>,
    trees: Vec<TreeState>,
}

type Row = (DirectoryId, PartitionId, String, u64, Permission, u32, bool);

#[derive(Debug, PartialEq)]
struct TreeState {
    sources: BTreeMap<SourceId, Source>,
    partial: BTreeMap<SourceId, Lsn>,
    removals: Removals,
    rows: Vec<Row>,
    absent: BTreeMap<DirectoryId, u32>,
}

impl State {
    pub fn of(index: &Index) -> Self {
        let trees = index.serving.iter().chain(&index.rebuild).map(|tree| {
            let children = |id| tree.table.get(id).map_or(0, |directory| directory.children);
            let row = |(r, displaced): (super::record::Record<'_>, bool)| {
                (r.id, r.pid, r.name.to_owned(), r.version, r.permission, children(r.id), displaced)
            };
            let mut rows: Vec<Row> = tree.table.records().map(row).collect();
            rows.sort();
            TreeState {
                sources: tree.sources.clone(),
                partial: tree.partial.clone(),
                removals: tree.removals.clone(),
                rows,
                absent: tree.table.absent_children(),
            }
        });
        Self { epoch: index.epoch(), catch_up: index.catch_up.clone(), locks: index.locks(), trees: trees.collect() }
    }
}
