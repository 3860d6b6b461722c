//! The namespaces of a group, and one that is copied in, or forgotten, beside the served ones.

use mantle_types::{ErrorCode, PartitionId};

use super::*;
use crate::index::command::{NamespaceState, Prepare};

const OTHER: NamespaceId = NamespaceId(500);
const SECOND: SourceId = SourceId(1);

fn of(ns: NamespaceId, pid: u64, name: &str, id: u64, version: u64) -> DirectoryRecord {
    DirectoryRecord { ns, ..record(pid, name, id, version) }
}

/// An index with namespaces, and its log position.
struct Group {
    index: Index,
    log_index: u64,
    finished: Vec<RequestKey>,
}

impl Group {
    /// Serves [`NS`], which is empty.
    fn new(sources: &[SourceId]) -> Self {
        let mut group = Self { index: Index::default(), log_index: 0, finished: Vec::new() };
        group.apply(Command::RebuildBegin { epoch: Epoch(1), is_diverged: false });
        group.apply(Command::RebuildChunk { records: vec![of(NS, 0, "own", NS.0, 1)] });
        group.apply(Command::RebuildNamespaces { namespaces: vec![(NS, NamespaceState::Serving, 0)] });
        let sources = sources.iter().map(|source| start(*source, Lsn(10))).collect();
        group.apply(Command::RebuildEnd { sources });
        group
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.log_index += 1;
        let mut effects = Effects::default();
        let applied = self.index.apply(self.log_index, command, &mut effects);
        self.finished.append(&mut effects.finished);
        self.index.invariants();
        applied
    }

    fn stream(&mut self, source: SourceId, commit: u64, ops: Vec<DirectoryOp>) {
        let transaction = StreamTransaction { commit_lsn: Lsn(commit), ops };
        self.apply(batch(source, vec![transaction], Lsn(commit + 1)));
    }

    fn has(&self, id: u64) -> bool {
        self.index.entry(DirectoryId(id)).is_some()
    }

    fn set_state(&mut self, from: NamespaceState, to: Option<NamespaceState>) {
        self.apply(Command::SetNamespaceState { ns: OTHER, from, to, moves: 3 });
    }

    /// Continues from a snapshot: later results must not depend on that.
    fn restarted(mut self) -> Self {
        let mut bytes = Vec::new();
        self.index.write_snapshot(&mut bytes).unwrap();
        self.index = Index::read_snapshot(&mut &bytes[..]).unwrap();
        self
    }
}

fn prepare(namespace: &str) -> Command {
    Command::Prepare(Prepare {
        request: key(77),
        namespace: namespace.to_owned(),
        source: vec!["a".to_owned()],
        destination: vec!["b".to_owned()],
        caller: root(),
        overwrite: false,
        remove: false,
        lock_ms: 1000,
    })
}

fn refusal(applied: Applied) -> Option<ErrorCode> {
    match applied {
        Applied::Prepared(result) => result.err().map(|e| e.code()),
        _ => panic!("no answer to a prepare"),
    }
}

#[test]
fn another_groups_changes_are_left_out_and_finish_nothing() {
    let mut group = Group::new(&[SOURCE]);
    let (ours, theirs) = (key(1), RequestKey { ns: OTHER, ..key(2) });
    group.stream(SOURCE, 20, vec![caused(put(of(OTHER, 0, "other", OTHER.0, 1)), theirs, 0)]);
    group.stream(SOURCE, 21, vec![caused(put(of(NS, NS.0, "a", 20, 1)), ours, 0)]);
    assert!(group.has(20) && !group.has(OTHER.0));
    assert_eq!(group.finished, [ours]);
    assert_eq!(group.index.applied_lsn(SOURCE), Lsn(21), "the position advances");
    // A new namespace of this group: everything that follows belongs to it.
    group.apply(Command::Admit { namespaces: vec![OTHER] });
    group.stream(SOURCE, 22, vec![put(of(OTHER, OTHER.0, "b", 501, 1))]);
    assert!(group.restarted().has(501));
}

#[test]
fn a_group_of_an_older_version_has_all_until_it_is_told() {
    let mut group = Group { index: Index::default(), log_index: 0, finished: Vec::new() };
    group.apply(Command::RebuildBegin { epoch: Epoch(1), is_diverged: false });
    group.apply(Command::RebuildEnd { sources: vec![start(SOURCE, Lsn(10))] });
    group.stream(SOURCE, 20, vec![put(of(OTHER, 0, "other", OTHER.0, 1))]);
    assert!(group.has(OTHER.0) && group.index.has_all_namespaces());
    group.apply(Command::Restrict { namespaces: vec![NS] });
    group = group.restarted();
    group.stream(SOURCE, 21, vec![put(of(OTHER, OTHER.0, "b", 501, 1)), put(of(NS, NS.0, "a", 20, 1))]);
    assert!(group.has(20) && !group.has(501));
    assert_eq!(group.index.namespaces(), Some(vec![(NS, NamespaceState::Serving)]));
}

#[test]
fn lookups_and_prepares_are_refused_until_all_is_there() {
    let mut group = Group::new(&[SOURCE]);
    group.apply(Command::Track { ns: OTHER, copied: vec![(SOURCE, Lsn(15))] });
    let records = vec![of(OTHER, 0, "other", OTHER.0, 1), of(OTHER, OTHER.0, "a", 501, 1)];
    group.apply(Command::CopyChunk { ns: OTHER, records });
    assert!(group.index.refuses_lookups(OTHER) && !group.index.refuses_lookups(NS));
    assert_eq!(refusal(group.apply(prepare("other"))), Some(ErrorCode::NotServed));
    group.set_state(NamespaceState::Copying, Some(NamespaceState::Ready));
    assert!(!group.index.refuses_lookups(OTHER));
    assert_eq!(refusal(group.apply(prepare("other"))), Some(ErrorCode::NotServed), "the other group prepares");
    group.set_state(NamespaceState::Copying, Some(NamespaceState::Leaving));
    assert_eq!(group.index.namespace_state(OTHER), Some(NamespaceState::Ready), "it was not what the proposer thought");
    group.set_state(NamespaceState::Ready, Some(NamespaceState::Serving));
    group = group.restarted();
    // The log of the previous group may have been longer.
    let Applied::Prepared(Ok(prepared)) = group.apply(prepare("other")) else { panic!("it is served") };
    assert_eq!(prepared.attempt, 3 << 40 | group.log_index);
    let lock = group.index.lock_of(&RequestKey { ns: OTHER, ..key(77) }).unwrap();
    assert_eq!(lock.attempt, prepared.attempt);
}

/// The copy puts a row after its directory was removed, because it read the row before. With one source, removals are not
/// remembered otherwise.
#[test]
fn a_directory_removed_during_a_copy_stays_removed() {
    let mut group = Group::new(&[SOURCE]);
    group.apply(Command::Track { ns: OTHER, copied: vec![(SOURCE, Lsn(15))] });
    group.stream(SOURCE, 20, vec![put(of(OTHER, OTHER.0, "new", 502, 1)), remove(of(OTHER, OTHER.0, "a", 501, 3))]);
    group = group.restarted();
    group.stream(SOURCE, 21, vec![remove(of(OTHER, OTHER.0, "new", 502, 2))]);
    let records =
        vec![of(OTHER, OTHER.0, "a", 501, 2), of(OTHER, OTHER.0, "new", 502, 1), of(OTHER, 0, "o", OTHER.0, 1)];
    group.apply(Command::CopyChunk { ns: OTHER, records });
    assert!(!group.has(501) && !group.has(502) && group.has(OTHER.0));
    group.set_state(NamespaceState::Copying, Some(NamespaceState::Ready));
    group.stream(SOURCE, 22, Vec::new());
    assert!(
        group.index.serving.as_ref().unwrap().removals.removed.is_empty(),
        "no older message can contradict them any more"
    );
}

/// Version 2 of a directory arrives late from one source. Its removal, version 3, came from the other source before the group
/// had the namespace, and was skipped. The copy shows neither.
#[test]
fn a_late_record_from_before_the_copy_resurrects_nothing() {
    let mut group = Group::new(&[SOURCE, SECOND]);
    group.stream(SECOND, 40, vec![remove(of(OTHER, OTHER.0, "a", 501, 3))]);
    group.apply(Command::Track { ns: OTHER, copied: vec![(SOURCE, Lsn(30)), (SECOND, Lsn(41))] });
    group.apply(Command::CopyChunk { ns: OTHER, records: vec![of(OTHER, 0, "o", OTHER.0, 1)] });
    group = group.restarted();
    group.stream(SOURCE, 20, vec![put(of(OTHER, OTHER.0, "a", 501, 2))]);
    assert!(!group.has(501));
    // At or above the positions everything counts.
    group.stream(SOURCE, 30, vec![put(of(OTHER, OTHER.0, "b", 502, 1))]);
    assert!(group.has(502));
}

#[test]
fn a_namespace_that_leaves_takes_nothing_in_and_goes_in_parts() {
    let mut group = Group::new(&[SOURCE]);
    group.apply(Command::Admit { namespaces: vec![OTHER] });
    let ops = (0..10).map(|n| put(of(OTHER, OTHER.0, &format!("d{n}"), 501 + n, 1)));
    let root = [put(of(OTHER, 0, "other", OTHER.0, 1)), put(of(NS, NS.0, "a", 20, 1))];
    group.stream(SOURCE, 20, root.into_iter().chain(ops).collect());
    group.apply(Command::Forget { ns: OTHER, ids: vec![DirectoryId(501)] });
    assert!(group.has(501), "it does not leave yet");
    group.set_state(NamespaceState::Serving, Some(NamespaceState::Leaving));
    assert!(group.index.refuses_lookups(OTHER));
    // New directories are refused; known ones still move and are removed.
    group.stream(
        SOURCE,
        21,
        vec![
            put(of(OTHER, OTHER.0, "late", 600, 1)),
            put(of(OTHER, 502, "moved", 501, 2)),
            remove(of(OTHER, OTHER.0, "d9", 510, 2)),
        ],
    );
    assert!(!group.has(600) && !group.has(510));
    assert_eq!(group.index.entry(DirectoryId(501)).unwrap().pid, PartitionId(502));
    assert_eq!(group.index.topmost_ancestor(DirectoryId(501)), DirectoryId(OTHER.0));
    let ids = (0..10).map(|n| DirectoryId(501 + n)).chain([DirectoryId(OTHER.0)]).collect();
    let mut entry = LogEntry::new(99, Command::Forget { ns: OTHER, ids });
    let (mut parts, mut effects) = (1, Effects::default());
    while group.index.apply_part(&mut entry, 3, &mut effects).is_none() {
        parts += 1;
    }
    assert_eq!(parts, 4);
    assert!(effects.modified.contains(&DirectoryId(OTHER.0)), "cached prefixes go with it");
    assert_eq!((group.index.directories(), group.has(20)), (2, true));
    group.set_state(NamespaceState::Leaving, None);
    assert_eq!((group.index.namespace_state(OTHER), group.index.unserved_namespaces()), (None, vec![]));
}
