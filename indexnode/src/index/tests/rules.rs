//! Protocol rules, one example each.

use mantle_types::{
    Caller, DirectoryId, ErrorCode, Lsn, NamespaceId, PartitionId, Permission, RequestKey,
    message::{Cause, DirectoryOp},
};
use proptest::prelude::*;

use super::*;
use crate::index::command::{Prepare, PrepareByRule, PreparedRename};

fn prepare(request: u128, source: &str, destination: &str) -> Prepare {
    let path = |text: &str| text.split('/').filter(|c| !c.is_empty()).map(str::to_owned).collect();
    Prepare {
        request: RequestKey { ns: NamespaceId(0), ..key(request) },
        namespace: "ns".to_owned(),
        source: path(source),
        destination: path(destination),
        caller: root(),
        overwrite: false,
        remove: false,
        lock_ms: 1000,
    }
}

fn try_prepare(replica: &mut Replica, prepare: Prepare) -> Result<PreparedRename, ErrorCode> {
    match replica.apply(Command::Prepare(prepare)) {
        Applied::Prepared(result) => result.map_err(|error| error.code()),
        _ => panic!("a prepare is answered"),
    }
}

/// `/a` (10), `/a/b` (11), `/a/b/c` (12), `/d` (20), `/d/e` (21).
fn small_tree() -> Replica {
    let mut replica = Replica::new();
    let records = [
        record(1, "a", 10, 1),
        record(10, "b", 11, 1),
        record(11, "c", 12, 1),
        record(1, "d", 20, 1),
        record(20, "e", 21, 1),
    ];
    replica.stream(10, records.into_iter().map(put).collect());
    replica
}

#[test]
fn a_path_resolves_to_its_directory_and_a_miss_tells_how_far_it_came() {
    let replica = small_tree();
    let r = replica.index.resolve("ns", &["a", "b", "c"], &root());
    assert_eq!((r.outcome, r.ns, r.id.0, r.depth, r.parent_id.0, r.version), (Ok(()), NS, 12, 3, 11, 1));
    assert!(!r.crossed_lock);
    let r = replica.index.resolve("ns", &["a", "x", "c"], &root());
    assert_eq!((r.outcome, r.id.0, r.depth, r.parent_id.0), (Err(ErrorCode::NotFound), 10, 1, 1));
    let r = replica.index.resolve("ns", &[], &root());
    assert_eq!((r.outcome, r.id.0, r.depth, r.parent_id), (Ok(()), 1, 0, DirectoryId::SUPER_ROOT));
    assert_eq!(replica.index.resolve("no", &["a"], &root()).outcome, Err(ErrorCode::NamespaceNotFound));
    assert_eq!(Index::default().resolve("ns", &[], &root()).outcome, Err(ErrorCode::IndexUnavailable));
}

#[test]
fn search_permission_is_needed_on_the_way_but_not_at_the_end() {
    let mut replica = small_tree();
    let mut closed = record(10, "b", 11, 2);
    closed.permission = Permission { owner: 5, group: 5, mode: 0o700 };
    replica.stream(20, vec![put(closed)]);
    let other = Caller { uid: 6, gids: vec![] };
    let r = replica.index.resolve("ns", &["a", "b"], &other);
    assert_eq!((r.outcome, r.permission.mode), (Ok(()), 0o700));
    let r = replica.index.resolve("ns", &["a", "b", "c"], &other);
    assert_eq!((r.outcome, r.id.0, r.depth), (Err(ErrorCode::AccessDenied), 11, 2));
    let owner = Caller { uid: 5, gids: vec![] };
    assert_eq!(replica.index.resolve("ns", &["a", "b", "c"], &owner).outcome, Ok(()));
}

/// P2: a marker or a late message unlocks and acknowledges although a newer record came first.
#[test]
fn a_message_unlocks_even_when_its_version_loses() {
    let mut replica = small_tree();
    let prepared = try_prepare(&mut replica, prepare(1, "a/b", "d/b")).unwrap();
    assert_eq!((prepared.source_id.0, prepared.destination_pid.0, prepared.replaced), (11, 20, None));
    assert_eq!(replica.index.lock_of(&key(1)).unwrap().attempt, prepared.attempt);
    replica.stream(20, vec![put(record(20, "b", 11, 3))]);
    assert_eq!(replica.index.locks().len(), 1, "another request's change does not unlock");
    replica.stream(30, vec![caused(put(record(20, "b", 11, 2)), key(1), prepared.attempt)]);
    assert_eq!(replica.effects.finished, [key(1)]);
    assert_eq!(replica.effects.unlocked, [(key(1), prepared.attempt)]);
    assert!(replica.index.locks().is_empty());
    let r = replica.index.resolve("ns", &["d", "b", "c"], &root());
    assert_eq!((r.outcome, r.id.0), (Ok(()), 12));
    assert_eq!(replica.index.resolve("ns", &["d", "b"], &root()).version, 3);
}

/// P20, P23: as if each were an entry of its own, but for the attempt's number.
#[test]
fn prepares_of_one_entry_are_decided_one_after_the_other() {
    let mut replica = small_tree();
    let renames = [(1, "a/b", "d/b"), (2, "d", "a/b/d"), (3, "d/e", "e"), (3, "d/e", "f"), (4, "x", "y")];
    let by = |(request, from, to)| PrepareByRule { prepare: prepare(request, from, to), rule: 2, below: Vec::new() };
    let Applied::AllPrepared(answers) = replica.apply(Command::Prepares(renames.map(by).to_vec())) else {
        panic!("prepares are answered")
    };
    let codes = answers.iter().map(|answer| answer.as_ref().err().map(|error| error.code()));
    let (locked, missing) = (Some(ErrorCode::Locked), Some(ErrorCode::NotFound));
    assert_eq!(codes.collect::<Vec<_>>(), [None, locked, None, locked, missing]);
    assert_eq!(replica.effects.modified, [DirectoryId(11), DirectoryId(21)]);
    for (request, id) in [(1, 11), (3, 21)] {
        let lock = replica.index.lock_of(&key(request)).unwrap();
        assert_eq!((lock.source_id, lock.attempt), (DirectoryId(id), replica.log_index));
    }
}

#[test]
fn a_marker_unlocks_and_acknowledges() {
    let mut replica = small_tree();
    let prepared = try_prepare(&mut replica, prepare(1, "a/b", "d/b")).unwrap();
    let cause = Cause { request: key(1), attempt: prepared.attempt };
    replica.stream(20, vec![DirectoryOp::Done { cause }]);
    assert_eq!(replica.effects.unlocked, [(key(1), prepared.attempt)]);
    assert_eq!(replica.effects.finished, [key(1)]);
}

/// P2.
#[test]
fn a_rename_across_nodes_is_done_when_both_parts_are_applied() {
    let part = |pid| DirectoryOp::PartDone { pid: PartitionId(pid), cause: Cause { request: key(1), attempt: 0 } };
    let nothing_ends = |replica: &Replica| replica.effects.finished.is_empty() && replica.effects.unlocked.is_empty();
    for order in [[10, 20], [20, 10]] {
        let mut replica = small_tree();
        let prepared = try_prepare(&mut replica, prepare(1, "a/b", "d/b")).unwrap();
        replica.stream(20, vec![put(record(20, "b", 11, 2)), part(order[0])]);
        assert!(nothing_ends(&replica), "one part is not enough");
        replica.restart();
        replica.stream(25, vec![part(order[0]), part(99)]);
        assert!(nothing_ends(&replica), "nor is it twice");
        replica.stream(30, vec![part(order[1])]);
        assert_eq!(
            (&replica.effects.finished[..], &replica.effects.unlocked[..]),
            (&[key(1)][..], &[(key(1), prepared.attempt)][..])
        );
        // Without a lock nobody waits for the request: the gateway awaits a position.
        replica.stream(40, vec![part(10), part(20)]);
        assert!(nothing_ends(&replica));
    }
}

/// P4.
#[test]
fn a_transaction_that_comes_twice_is_dropped() {
    let mut replica = small_tree();
    replica.stream(20, vec![caused(remove(record(20, "e", 21, 2)), key(1), 0)]);
    assert_eq!(replica.effects.finished, [key(1)]);
    assert_eq!(replica.index.applied_lsn(SOURCE), Lsn(20));
    let before = State::of(&replica.index);
    // The slot repeats everything. Without the rule, the first repeated transaction would bring 21 back for a moment.
    replica.stream(10, vec![put(record(20, "e", 21, 1))]);
    assert_eq!(replica.id_of("d/e"), None);
    replica.stream(20, vec![caused(remove(record(20, "e", 21, 2)), key(1), 0)]);
    assert_eq!(replica.effects, Effects::default());
    assert_eq!(State::of(&replica.index), before);
}

#[test]
fn a_position_advances_without_transactions_and_never_goes_back() {
    let mut replica = small_tree();
    for (position, applied) in [(50, 49), (40, 49), (0, 49)] {
        replica.apply(batch(SOURCE, vec![], Lsn(position)));
        assert_eq!(replica.index.applied_lsn(SOURCE), Lsn(applied));
    }
}

/// P1: with two sources, a message older than a removal may arrive after it, until both sources are past the horizon.
#[test]
fn a_late_message_does_not_resurrect_a_removed_directory() {
    let other = SourceId(1);
    let mut replica = Replica::empty();
    replica.rebuild(1, vec![record(0, "ns", 1, 1)], vec![start(SOURCE, Lsn(11)), start(other, Lsn(11))]);
    // Made at one source (version 1), moved to the other (2), moved back (3), removed (4).
    replica.stream(20, vec![put(record(1, "x", 30, 1))]);
    replica.stream(40, vec![put(record(1, "y", 30, 3))]);
    replica.stream(50, vec![remove(record(1, "y", 30, 4))]);
    let after = replica.log_index;
    replica.apply(Command::Horizon { after, positions: vec![(SOURCE, Lsn(51)), (other, Lsn(51))] });
    let late = StreamTransaction { commit_lsn: Lsn(30), ops: vec![put(record(2, "z", 30, 2))] };
    replica.apply(batch(other, vec![late], Lsn(31)));
    assert!(replica.index.serving.as_ref().unwrap().table.get(DirectoryId(30)).is_none());
    replica.apply(batch(other, vec![], Lsn(51)));
    let serving = replica.index.serving.as_ref().unwrap();
    assert_eq!(serving.removals, Removals::default(), "both sources are past the horizon");
}

#[test]
fn a_place_is_emptied_only_by_its_occupant_and_goes_to_the_next_claimant() {
    let mut replica = small_tree();
    // 20 takes the place of 10, whose own message is still in transit from another source.
    replica.stream(20, vec![put(record(1, "a", 20, 2))]);
    assert_eq!((replica.id_of("a"), replica.id_of("d"), replica.id_of("a/e")), (Some(20), None, Some(21)));
    assert_eq!(replica.index.resolve("ns", &["a", "b"], &root()).outcome, Err(ErrorCode::NotFound));
    replica.stream(30, vec![put(record(1, "z", 10, 2))]);
    assert_eq!((replica.id_of("a"), replica.id_of("z"), replica.id_of("z/b/c")), (Some(20), Some(10), Some(12)));
    replica.stream(40, vec![put(record(1, "a", 10, 3)), put(record(1, "y", 10, 4))]);
    assert_eq!((replica.id_of("a"), replica.id_of("y")), (Some(20), Some(10)), "20 claimed the place all the time");
}

#[test]
fn prepare_refuses_impossible_renames() {
    let mut replica = small_tree();
    for (source, destination, code) in [
        ("", "d/x", ErrorCode::InvalidArgument),
        ("a", "", ErrorCode::InvalidArgument),
        ("a", "d/..", ErrorCode::InvalidName),
        ("x", "d/x", ErrorCode::NotFound),
        ("a", "x/y", ErrorCode::NotFound),
        ("a", "a", ErrorCode::RenameLoop),
        ("a", "a/x", ErrorCode::RenameLoop),
        ("a", "a/b/x", ErrorCode::RenameLoop),
        ("a", "a/b/c", ErrorCode::RenameLoop),
        ("a", "d", ErrorCode::AlreadyExists),
        ("a/b", "a", ErrorCode::AlreadyExists),
    ] {
        assert_eq!(try_prepare(&mut replica, prepare(1, source, destination)), Err(code), "{source} → {destination}");
    }
    let missing = Prepare { namespace: "no".to_owned(), ..prepare(1, "a", "x") };
    assert_eq!(try_prepare(&mut replica, missing), Err(ErrorCode::NamespaceNotFound));
    let stranger = Prepare { caller: Caller { uid: 9, gids: vec![] }, ..prepare(1, "a/b", "d/b") };
    assert_eq!(try_prepare(&mut replica, stranger), Err(ErrorCode::AccessDenied));
    let deep = Prepare { destination: vec!["x".to_owned(); 129], ..prepare(1, "a", "x") };
    assert_eq!(try_prepare(&mut replica, deep), Err(ErrorCode::PathTooDeep));
    assert!(replica.index.locks().is_empty());
}

#[test]
fn overwriting_takes_an_empty_directory_only() {
    let mut replica = small_tree();
    let overwriting = |source, destination| Prepare { overwrite: true, ..prepare(1, source, destination) };
    assert_eq!(try_prepare(&mut replica, overwriting("a", "d")), Err(ErrorCode::AlreadyExists));
    assert_eq!(try_prepare(&mut replica, overwriting("a/b", "a")), Err(ErrorCode::AlreadyExists));
    let prepared = try_prepare(&mut replica, overwriting("a", "d/e")).unwrap();
    assert_eq!((prepared.replaced, prepared.destination_pid.0), (Some(DirectoryId(21)), 20));
    let move_victim = try_prepare(&mut replica, prepare(2, "d/e", "e"));
    assert_eq!(move_victim, Err(ErrorCode::Locked), "its place belongs to the first rename");
    replica.stream(
        20,
        vec![remove(record(20, "e", 21, 2)), caused(put(record(20, "e", 10, 2)), key(1), prepared.attempt)],
    );
    assert_eq!((replica.id_of("d/e"), replica.id_of("d/e/b/c"), replica.id_of("a")), (Some(10), Some(12), None));
}

/// P23: neither path may contain a directory that another rename has locked.
#[test]
fn a_lock_on_either_path_refuses_another_rename() {
    let mut replica = small_tree();
    let first = try_prepare(&mut replica, prepare(1, "a/b", "d/b")).unwrap();
    for (source, destination) in [
        ("a/b", "x"),     // the source itself
        ("a/b/c", "x"),   // its ancestor
        ("d/e", "a/b/e"), // the destination's
        ("d/e", "d/b"),   // the place the first goes to
        ("d/e", "a/b"),   // the place it comes from
        ("d/b", "x"),     // what may be there already
        ("d/e", "d/b/e"), // and below
    ] {
        assert_eq!(try_prepare(&mut replica, prepare(2, source, destination)), Err(ErrorCode::Locked), "{source}");
    }
    assert_eq!(try_prepare(&mut replica, prepare(1, "d/e", "y")), Err(ErrorCode::Locked), "an attempt is still held");
    let second = try_prepare(&mut replica, prepare(2, "d", "a/d")).unwrap();
    replica.apply(Command::Release { request: key(1), attempt: first.attempt + 1 });
    assert_eq!(replica.index.locks().len(), 2, "a release names the attempt");
    replica.apply(Command::Release { request: key(1), attempt: first.attempt });
    assert_eq!(replica.effects.unlocked, [(key(1), first.attempt)]);
    assert_eq!(
        try_prepare(&mut replica, prepare(1, "a/b", "d/b")),
        Err(ErrorCode::Locked),
        "`d` is being moved below `a`"
    );
    replica.apply(Command::Release { request: key(2), attempt: second.attempt });
    assert!(try_prepare(&mut replica, prepare(1, "a/b", "d/b")).is_ok());
}

#[test]
fn a_lookup_tells_that_it_crossed_a_rename() {
    let mut replica = small_tree();
    try_prepare(&mut replica, prepare(1, "a/b", "d/new")).unwrap();
    for (path, crossed) in
        [("a", false), ("a/b", true), ("a/b/c", true), ("a/x", false), ("d/e", false), ("d/new", true)]
    {
        let components: Vec<&str> = path.split('/').collect();
        assert_eq!(replica.index.resolve("ns", &components, &root()).crossed_lock, crossed, "{path}");
    }
    let r = replica.index.resolve("ns", &["d", "new", "c"], &root());
    assert_eq!((r.outcome, r.depth, r.crossed_lock), (Err(ErrorCode::NotFound), 1, true));
}

#[test]
fn a_rebuild_drops_locks_refuses_prepares_and_serves_the_old_tree_until_it_ends() {
    let mut replica = small_tree();
    let prepared = try_prepare(&mut replica, prepare(1, "a/b", "d/b")).unwrap();
    replica.begin(2, false);
    assert_eq!(replica.effects.unlocked, [(key(1), prepared.attempt)]);
    assert_eq!(try_prepare(&mut replica, prepare(1, "a/b", "d/b")), Err(ErrorCode::StaleEpoch));
    assert_eq!((replica.index.epoch().0, replica.index.is_serving(), replica.index.is_rebuilding()), (2, true, true));
    // Children arrive before parents, and the stream meanwhile changes the served tree.
    replica.apply(Command::RebuildChunk { records: vec![record(10, "b", 11, 1), record(1, "a", 10, 1)] });
    replica.stream(20, vec![put(record(1, "new", 40, 1))]);
    assert_eq!((replica.id_of("new"), replica.id_of("d/e")), (Some(40), Some(21)));
    replica.apply(Command::RebuildChunk { records: vec![record(0, "ns", 1, 1)] });
    replica.end(Lsn(15));
    assert!(!replica.index.is_serving(), "`new` was acknowledged and is not in the copy");
    assert_eq!(replica.index.resolve("ns", &["a"], &root()).outcome, Err(ErrorCode::IndexUnavailable));
    assert_eq!(try_prepare(&mut replica, prepare(1, "a/b", "x")), Err(ErrorCode::IndexUnavailable));
    assert_eq!(replica.index.applied_lsn(SOURCE), Lsn(14));
    replica.stream(20, vec![put(record(1, "new", 40, 1))]);
    assert!(replica.index.is_serving() && !replica.index.is_rebuilding());
    assert_eq!((replica.id_of("new"), replica.id_of("a/b"), replica.id_of("d")), (Some(40), Some(11), None));
    assert_eq!(try_prepare(&mut replica, prepare(1, "a/b", "x")).unwrap().epoch.0, 2);
}

#[test]
fn a_diverged_tree_stops_serving_at_once() {
    let mut replica = small_tree();
    replica.begin(2, true);
    assert!(!replica.index.is_serving());
    replica.stream(20, vec![caused(put(record(1, "new", 40, 1)), key(1), 0)]);
    assert!(replica.effects.finished.is_empty(), "nothing was applied, so nothing is finished");
    replica.apply(Command::RebuildChunk { records: vec![record(0, "ns", 1, 1)] });
    // The new timeline begins below the position of the old one.
    let lineage = Lineage { timeline: 2, ..LINEAGE };
    replica.apply(Command::RebuildEnd { sources: vec![SourceStart { lineage, ..start(SOURCE, Lsn(5)) }] });
    assert!(replica.index.is_serving());
    assert_eq!(replica.index.source(SOURCE).unwrap().lineage, lineage);
    assert_eq!((replica.index.directories(), replica.index.applied_lsn(SOURCE)), (1, Lsn(4)));
}

#[test]
fn a_source_goes_on_on_another_timeline() {
    let mut replica = small_tree();
    replica.stream(20, vec![put(record(1, "old", 40, 1))]);
    replica.apply(Command::FollowTimeline { source: SOURCE, timeline: 2 });
    replica.apply(Command::FollowTimeline { source: SourceId(7), timeline: 9 });
    replica.restart();
    let source = Source { lineage: Lineage { timeline: 2, ..LINEAGE }, applied: Lsn(20), copied: Lsn(1) };
    assert_eq!(replica.index.sources().collect::<Vec<_>>(), [(SOURCE, source)]);
    assert_eq!(replica.id_of("old"), Some(40));
}

/// P1: a source's put between its slot and the copy may be older than a removal by another source, committed before that one's
/// slot existed and therefore never sent.
#[test]
fn puts_from_before_the_copy_are_not_applied_again() {
    let other = SourceId(1);
    let mut replica = Replica::empty();
    let starts = vec![SourceStart { copied: Lsn(50), ..start(SOURCE, Lsn(10)) }, start(other, Lsn(50))];
    replica.rebuild(1, vec![record(0, "ns", 1, 1), record(1, "a", 10, 1)], starts);
    replica.stream(20, vec![put(record(1, "gone", 40, 1))]);
    replica.stream(30, vec![remove(record(1, "a", 10, 2))]);
    replica.stream(60, vec![put(record(1, "new", 41, 1))]);
    assert_eq!((replica.id_of("gone"), replica.id_of("a"), replica.id_of("new")), (None, None, Some(41)));
}

#[test]
fn a_rebuild_under_an_old_epoch_is_ignored() {
    let mut replica = small_tree();
    replica.begin(5, false);
    replica.begin(4, false);
    assert!(!replica.index.is_rebuilding());
    replica.apply(Command::RebuildChunk { records: vec![record(1, "x", 99, 1)] });
    replica.end(Lsn(90));
    assert_eq!((replica.index.epoch().0, replica.index.directories()), (5, 6));
}

#[test]
fn records_that_no_writer_makes_are_left_out() {
    let mut replica = small_tree();
    let long = "n".repeat(256);
    replica
        .stream(20, vec![put(record(1, &long, 50, 1)), put(record(1, "zero", 0, 1)), put(record(51, "self", 51, 1))]);
    assert_eq!(replica.id_of("zero"), None);
    assert_eq!(replica.index.directories(), 7);
    replica.stream(30, vec![remove(record(51, "self", 51, 2)), remove(record(1, "never", 52, 1))]);
    assert_eq!(replica.index.directories(), 6);
}

#[test]
fn digest_covers_every_field() {
    let base = record(5, "name", 6, 7);
    let digest = |record| {
        let mut replica = Replica::new();
        replica.stream(10, vec![put(record)]);
        replica.index.digest()
    };
    let expected = digest(base.clone());
    assert_eq!(digest(base.clone()), expected, "the seed is not in it");
    let mut variants = vec![base; 7];
    variants[0].pid = PartitionId(8);
    variants[1].name.push('x');
    variants[2].id = DirectoryId(8);
    variants[3].version = 8;
    variants[4].permission.owner += 1;
    variants[5].permission.group += 1;
    variants[6].permission.mode += 1;
    for variant in variants {
        assert_ne!(digest(variant.clone()), expected, "{variant:?}");
    }
}

proptest! {
    #![proptest_config(runs(64))]

    /// The memory of removed directories is reused, so the tables do not grow by churn (except by chance: the size of each
    /// small shard follows its fullest moment).
    #[test]
    fn churn_does_not_grow_the_index(seed in any::<u64>()) {
        let mut replica = Replica::new();
        let name = |i: u64| format!("{:x}", digest_like(seed ^ (i % 97)) >> (8 * (i % 6)));
        let mut bytes = 0;
        for round in 0..4u64 {
            let ids = (1000 + round * 2000)..(3000 + round * 2000);
            let puts = ids.clone().map(|id| put(record(1, &format!("{}{id}", name(id)), id, 1))).collect();
            replica.stream(10 + round * 10, puts);
            if round == 1 {
                bytes = replica.index.heap_bytes();
            }
            let removals = ids.map(|id| remove(record(1, "", id, 2))).collect();
            replica.stream(11 + round * 10, removals);
        }
        prop_assert_eq!(replica.index.directories(), 1);
        prop_assert!(replica.index.heap_bytes() <= bytes * 5 / 4);
    }
}

fn digest_like(x: u64) -> u64 {
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
