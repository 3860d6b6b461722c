//! Recursive removal of a directory: one step moves it into the trash and out of every path; then the trash is emptied.

use mantle_types::{
    Caller, DirectoryId, ErrorCode, Lsn, NamespaceId, PartitionId, RequestKey, limits::CHECKED_DIRECTORIES_MAX,
};

use super::*;
use crate::index::command::{NEWEST_RULE, Prepare, PrepareByRule, PreparedRename};

const ROOT: u64 = 1024;

/// `/a` (1030), `/a/b` (1031), `/a/b/c` (1032), `/d` (1040) in namespace 1024.
fn small_tree() -> Replica {
    let mut replica = Replica::empty();
    replica.rebuild(1, vec![record(0, "ns", ROOT, 1)], vec![start(SOURCE, Lsn(1))]);
    let records = [
        record(ROOT, "a", 1030, 1),
        record(1030, "b", 1031, 1),
        record(1031, "c", 1032, 1),
        record(ROOT, "d", 1040, 1),
    ];
    replica.stream(10, records.into_iter().map(put).collect());
    replica
}

fn key_of(request: u128) -> RequestKey {
    RequestKey { ns: NamespaceId(ROOT), ..key(request) }
}

fn removal(request: u128, source: &str) -> Prepare {
    Prepare {
        request: RequestKey { ns: NamespaceId(0), ..key(request) },
        namespace: "ns".to_owned(),
        source: source.split('/').filter(|c| !c.is_empty()).map(str::to_owned).collect(),
        destination: vec![],
        caller: root(),
        overwrite: false,
        remove: true,
        lock_ms: 1000,
    }
}

fn rename(request: u128, source: &str, destination: &str) -> Prepare {
    let destination = removal(0, destination).source;
    Prepare { destination, remove: false, ..removal(request, source) }
}

fn try_prepare(replica: &mut Replica, prepare: Prepare) -> Result<PreparedRename, ErrorCode> {
    match replica.apply(Command::Prepare(prepare)) {
        Applied::Prepared(result) => result.map_err(|error| error.code()),
        _ => panic!("a prepare is answered"),
    }
}

#[test]
fn a_removal_locks_its_source_and_goes_to_the_trash() {
    let mut replica = small_tree();
    let prepared = try_prepare(&mut replica, removal(1, "a")).unwrap();
    assert_eq!(
        (prepared.source_pid.0, prepared.source_id.0, prepared.source_version, prepared.replaced),
        (ROOT, 1030, 1, None)
    );
    assert_eq!((prepared.ns.0, prepared.destination_pid), (ROOT, DirectoryId::TRASH.sole_partition()));
    assert!(replica.index.resolve("ns", &["a", "b"], &root()).crossed_lock);
    assert_eq!(try_prepare(&mut replica, removal(2, "a")), Err(ErrorCode::Locked));
    assert_eq!(try_prepare(&mut replica, removal(2, "a/b")), Err(ErrorCode::Locked));
    assert_eq!(try_prepare(&mut replica, rename(2, "d", "a/d")), Err(ErrorCode::Locked));
    replica.restart();
    replica.apply(Command::Release { request: key_of(1), attempt: prepared.attempt });
    assert_eq!(replica.effects.unlocked, [(key_of(1), prepared.attempt)]);
    assert!(try_prepare(&mut replica, rename(2, "d", "a/d")).is_ok());
}

/// Such a rename could commit after the removal was acknowledged, and move a tree that is being emptied.
#[test]
fn a_rename_under_way_below_holds_a_removal_up() {
    for (source, destination) in [("a/b/c", "x"), ("d", "a/b/d"), ("a/b", "a/x")] {
        let mut replica = small_tree();
        let prepared = try_prepare(&mut replica, rename(1, source, destination)).unwrap();
        assert_eq!(try_prepare(&mut replica, removal(2, "a")), Err(ErrorCode::Locked), "{source} → {destination}");
        replica.apply(Command::Release { request: key_of(1), attempt: prepared.attempt });
        assert!(try_prepare(&mut replica, removal(2, "a")).is_ok());
    }
    let mut replica = small_tree();
    try_prepare(&mut replica, rename(1, "d", "x")).unwrap();
    assert!(try_prepare(&mut replica, removal(2, "a")).is_ok(), "one outside its tree does not");
}

#[test]
fn a_removed_tree_is_on_no_path_and_is_emptied_bottom_up() {
    let mut replica = small_tree();
    let prepared = try_prepare(&mut replica, removal(1, "a")).unwrap();
    let trash = DirectoryId::TRASH.0;
    replica.stream(20, vec![caused(put(record(trash, "1030", 1030, 2)), key_of(1), prepared.attempt)]);
    assert_eq!(replica.effects.finished, [key_of(1)]);
    assert_eq!(replica.effects.unlocked, [(key_of(1), prepared.attempt)]);
    for path in ["a", "a/b", "a/b/c", "1030", "1030/b"] {
        assert_eq!(replica.id_of(path), None, "{path}");
    }
    assert_eq!(replica.index.resolve("1030", &[], &root()).outcome, Err(ErrorCode::NamespaceNotFound));
    // The name is free at once, and the new directory has nothing of the old one.
    replica.stream(30, vec![put(record(ROOT, "a", 1050, 1))]);
    assert_eq!((replica.id_of("a"), replica.id_of("a/b")), (Some(1050), None));
    replica.stream(40, vec![remove(record(1031, "c", 1032, 2))]);
    replica.stream(50, vec![remove(record(1030, "b", 1031, 2))]);
    replica.stream(60, vec![remove(record(trash, "1030", 1030, 3))]);
    assert_eq!((replica.index.directories(), replica.id_of("a"), replica.id_of("d")), (3, Some(1050), Some(1040)));
    replica.restart();
}

#[test]
fn a_removal_needs_permission_and_an_existing_directory() {
    let mut replica = small_tree();
    assert_eq!(try_prepare(&mut replica, removal(1, "")), Err(ErrorCode::InvalidArgument));
    assert_eq!(try_prepare(&mut replica, removal(1, "x")), Err(ErrorCode::NotFound));
    assert_eq!(try_prepare(&mut replica, removal(1, "a/x/y")), Err(ErrorCode::NotFound));
    let missing = Prepare { namespace: "no".to_owned(), ..removal(1, "a") };
    assert_eq!(try_prepare(&mut replica, missing), Err(ErrorCode::NamespaceNotFound));
    let stranger = Prepare { caller: Caller { uid: 9, gids: vec![] }, ..removal(1, "a/b") };
    assert_eq!(try_prepare(&mut replica, stranger.clone()), Err(ErrorCode::AccessDenied));
    // Allowed to change the parent, but not the directory.
    let mut open = record(ROOT, "a", 1030, 2);
    open.permission.mode = 0o777;
    replica.stream(20, vec![put(open)]);
    assert_eq!(try_prepare(&mut replica, stranger), Err(ErrorCode::AccessDenied));
    assert!(replica.index.locks().is_empty());
    assert_eq!(DirectoryId::TRASH.sole_partition(), PartitionId(1));
}

fn try_by_rule(replica: &mut Replica, uid: u32, prepare: Prepare, below: &[u64]) -> Result<PreparedRename, ErrorCode> {
    let prepare = Prepare { caller: Caller { uid, gids: vec![] }, ..prepare };
    let below = below.iter().map(|id| DirectoryId(*id)).collect();
    match replica.apply(Command::PrepareByRule(PrepareByRule { prepare, rule: NEWEST_RULE, below })) {
        Applied::Prepared(result) => result.map_err(|error| error.code()),
        _ => panic!("a prepare is answered"),
    }
}

/// As [`small_tree`], with modes: all may write, except where `closed` says otherwise.
fn open_tree(closed: &[(u64, u16)]) -> Replica {
    let mut replica = small_tree();
    let places = [(0, "ns", ROOT), (ROOT, "a", 1030), (1030, "b", 1031), (1031, "c", 1032), (ROOT, "d", 1040)];
    let records = places.map(|(pid, name, id)| {
        let mut record = record(pid, name, id, 2);
        record.permission.mode = closed.iter().find(|(of, _)| *of == id).map_or(0o777, |(_, mode)| *mode);
        put(record)
    });
    replica.stream(20, records.into());
    replica
}

#[test]
fn everything_below_a_removed_directory_is_checked() {
    let all = [1030, 1031, 1032];
    assert!(try_by_rule(&mut open_tree(&[]), 9, removal(1, "a"), &all).is_ok());
    for mode in [0o700, 0o755, 0o776, 0o773, 0o775, 0o1777] {
        for closed in all {
            let mut replica = open_tree(&[(closed, mode)]);
            let refused = try_by_rule(&mut replica, 9, removal(1, "a"), &all);
            assert_eq!(refused, Err(ErrorCode::AccessDenied), "{closed} has mode {mode:o}");
            assert!(replica.index.locks().is_empty());
            assert!(try_by_rule(&mut replica, 7, removal(1, "a"), &[]).is_ok(), "the namespace's owner");
        }
    }
    let mut replica = open_tree(&[(ROOT, 0o1777)]);
    assert_eq!(try_by_rule(&mut replica, 9, removal(1, "a"), &all), Err(ErrorCode::AccessDenied), "a sticky parent");
    assert!(try_by_rule(&mut replica, 0, removal(1, "a"), &[]).is_ok());
}

/// The proposer's list may be older than the entry, or made up: every replica finds out whether it is whole.
#[test]
fn a_list_that_is_not_everything_below_is_refused() {
    for below in [
        &[][..],
        &[1030],
        &[1030, 1031],
        &[1030, 1032],
        &[1031, 1032],
        &[1030, 1031, 1031],
        &[1030, 1031, 1032, 1040],
        &[1030, 1031, 1032, 2000],
        &[1030, 1031, 1032, ROOT],
    ] {
        let refused = try_by_rule(&mut open_tree(&[(1032, 0o700)]), 9, removal(1, "a"), below);
        assert_eq!(refused, Err(ErrorCode::Locked), "{below:?}");
    }
    let mut replica = open_tree(&[]);
    replica.stream(30, vec![put(record(1032, "new", 1050, 1))]);
    assert_eq!(try_by_rule(&mut replica, 9, removal(1, "a"), &[1030, 1031, 1032]), Err(ErrorCode::Locked));
    let many: Vec<u64> = (0..=CHECKED_DIRECTORIES_MAX as u64).collect();
    assert_eq!(try_by_rule(&mut replica, 9, removal(1, "a"), &many), Err(ErrorCode::TreeTooLarge));
}

/// The check of as many directories as there may be, which other entries wait for.
#[test]
#[ignore = "measures"]
fn time_of_the_largest_check() {
    let mut replica = open_tree(&[]);
    let ids: Vec<u64> = (10_000..10_000 + CHECKED_DIRECTORIES_MAX as u64 - 3).collect();
    let records = ids.iter().map(|id| {
        let mut one = record(1030, &format!("directory-{id}"), *id, 1);
        one.permission.mode = 0o777;
        put(one)
    });
    replica.stream(30, records.collect());
    let below: Vec<u64> = [1030, 1031, 1032].into_iter().chain(ids).map(DirectoryId).map(|id| id.0).collect();
    let began = std::time::Instant::now();
    let mut index = std::mem::take(&mut replica.index);
    let below: Vec<DirectoryId> = below.into_iter().map(DirectoryId).collect();
    let prepare = Prepare { caller: Caller { uid: 9, gids: vec![] }, ..removal(1, "a") };
    let command = Command::PrepareByRule(PrepareByRule { prepare, rule: NEWEST_RULE, below });
    println!("prepared in {:?}", began.elapsed());
    let began = std::time::Instant::now();
    let applied = index.apply(99, command, &mut Effects::default());
    println!("{CHECKED_DIRECTORIES_MAX} directories checked in {:?}", began.elapsed());
    assert!(matches!(applied, Applied::Prepared(Ok(_))));
}
