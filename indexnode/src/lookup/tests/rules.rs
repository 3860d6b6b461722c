//! The cache's rules by example.

use mantle_types::{Caller, DirectoryId, ErrorCode, Permission, message::DirectoryRecord};

use super::world::{EVERYTHING, settings};
use crate::{
    index::{
        Path, Resolution,
        command::{Command, Prepare},
        tests::{Replica, SOURCE, key, put, record, remove, root, start},
    },
    lookup::{Invalidation, LookupSettings, PathCache, PathQuery},
};

/// `/a/b/c/d` below namespace `ns`: ids 2 to 5.
fn replica() -> Replica {
    let mut replica = Replica::new();
    let names = ["a", "b", "c", "d"];
    let ops = names.iter().zip(2..).map(|(name, id)| put(record(id - 1, name, id, 1))).collect();
    replica.stream(10, ops);
    replica
}

fn look_up(replica: &Replica, cache: &PathCache, path: &str, caller: &Caller) -> Resolution {
    let components: Vec<&str> = path.split('/').filter(|c| !c.is_empty()).collect();
    let mut lookups = cache.begin(&replica.index);
    let answer = lookups.resolve(&PathQuery { namespace: "ns", path: Path(path), caller });
    let found = lookups.end();
    cache.fill(found);
    assert_eq!(answer, replica.index.resolve("ns", &components, caller), "{path}");
    answer
}

fn hits(cache: &PathCache) -> u64 {
    cache.counters().hits.load(std::sync::atomic::Ordering::Relaxed)
}

fn change(replica: &mut Replica, cache: &PathCache, command: Command) {
    replica.apply(command);
    cache.invalidate(&replica.effects.modified);
}

fn stream(replica: &mut Replica, cache: &PathCache, lsn: u64, record: DirectoryRecord) {
    replica.stream(lsn, vec![put(record)]);
    cache.invalidate(&replica.effects.modified);
}

#[test]
fn the_second_lookup_of_a_prefix_hits_whoever_asks() {
    let (replica, cache) = (replica(), PathCache::new(settings()));
    look_up(&replica, &cache, "a/b/c/d", &root());
    assert_eq!((hits(&cache), cache.size().0), (0, 1));
    look_up(&replica, &cache, "a/b/c/other", &Caller { uid: 12, gids: vec![] });
    assert_eq!((hits(&cache), cache.size().0), (1, 1));
}

#[test]
fn prefixes_end_the_configured_levels_above_the_end() {
    for (levels, entries) in [(0, 0), (1, 1), (3, 1), (4, 0), (9, 0)] {
        let cache = PathCache::new(LookupSettings { cache_levels: levels, ..settings() });
        look_up(&replica(), &cache, "a/b/c/d", &root());
        assert_eq!(cache.size().0, entries, "{levels} levels");
    }
}

#[test]
fn an_odd_component_is_not_taken_for_two() {
    let (replica, cache) = (replica(), PathCache::new(settings()));
    look_up(&replica, &cache, "a/b/c/d", &root());
    for (namespace, odd) in
        [("ns", "a//b/c/d"), ("ns", "/a/b/c/d"), ("ns", "a/b/c/d/"), ("ns/a", "b/c/d/x"), ("n", "sa/b/c/d")]
    {
        let mut lookups = cache.begin(&replica.index);
        let caller = root();
        let answer = lookups.resolve(&PathQuery { namespace, path: Path(odd), caller: &caller });
        assert!(matches!(answer.outcome, Err(ErrorCode::NotFound | ErrorCode::NamespaceNotFound)), "{namespace} {odd}");
    }
}

/// A caller who may not search a directory gets the same answer whatever is below it, from the table and from the cache.
#[test]
fn a_denial_reveals_nothing_below_the_denying_directory() {
    let (mut replica, cache) = (replica(), PathCache::new(settings()));
    let closed = Permission { owner: 7, group: 7, mode: 0o700 };
    stream(&mut replica, &cache, 11, DirectoryRecord { permission: closed, ..record(2, "b", 3, 2) });
    let stranger = Caller { uid: 9, gids: vec![] };
    let cold = look_up(&replica, &cache, "a/b/c/d", &stranger);
    look_up(&replica, &cache, "a/b/c/d", &Caller { uid: 7, gids: vec![] });
    look_up(&replica, &cache, "a/b/x", &Caller { uid: 7, gids: vec![] });
    assert_eq!(cache.size().0, 2, "both prefixes are cached now");
    assert_eq!((cold.outcome, cold.id, cold.depth), (Err(ErrorCode::AccessDenied), DirectoryId(3), 2));
    for path in ["a/b/c/d", "a/b/x", "a/b/x/y", "a/b/c"] {
        assert_eq!(look_up(&replica, &cache, path, &stranger), cold, "{path}");
    }
}

/// P26. No prefix in the cache crosses a lock: neither one that was cached before, nor one that is looked up meanwhile.
#[test]
fn a_prefix_that_crosses_a_lock_is_not_cached() {
    let (mut replica, cache) = (replica(), PathCache::new(settings()));
    let prepare = |source: &[&str], destination: &[&str]| {
        let owned = |path: &[&str]| path.iter().map(|name| (*name).to_owned()).collect();
        Command::Prepare(Prepare {
            request: key(1),
            namespace: "ns".into(),
            source: owned(source),
            destination: owned(destination),
            caller: root(),
            overwrite: false,
            remove: false,
            lock_ms: 1000,
        })
    };
    assert!(!look_up(&replica, &cache, "a/b/c/d", &root()).crossed_lock);
    change(&mut replica, &cache, prepare(&["a", "b"], &["e"]));
    let before = hits(&cache);
    assert!(look_up(&replica, &cache, "a/b/c/d", &root()).crossed_lock);
    cache.purge();
    assert_eq!(cache.size(), (0, 0));
    assert!(look_up(&replica, &cache, "a/b/c/d", &root()).crossed_lock);
    assert_eq!((hits(&cache), cache.size()), (before, (0, 0)));
    // What takes the locked destination meanwhile is crossed, too.
    stream(&mut replica, &cache, 11, record(1, "e", 9, 1));
    assert!(look_up(&replica, &cache, "e/x/y", &root()).crossed_lock);
    assert_eq!(cache.size(), (0, 0));
    let release = Command::Release { request: key(1), attempt: replica.log_index - 1 };
    change(&mut replica, &cache, release);
    assert!(!look_up(&replica, &cache, "a/b/c/d", &root()).crossed_lock);
    assert_eq!(cache.size().0, 1);
}

/// A rename locks the directory that it replaces, too.
#[test]
fn a_prefix_through_a_directory_that_is_going_to_be_replaced_leaves_the_cache() {
    let (mut replica, cache) = (replica(), PathCache::new(settings()));
    stream(&mut replica, &cache, 11, record(1, "e", 9, 1));
    look_up(&replica, &cache, "e/x", &root());
    look_up(&replica, &cache, "a/x", &root());
    assert_eq!(cache.size().0, 2);
    let path = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let prepare = Prepare {
        request: key(1),
        namespace: "ns".into(),
        source: path(&["a", "b"]),
        destination: path(&["e"]),
        caller: root(),
        overwrite: true,
        remove: false,
        lock_ms: 1000,
    };
    change(&mut replica, &cache, Command::Prepare(prepare));
    assert!(look_up(&replica, &cache, "e/x", &root()).crossed_lock);
    assert!(!look_up(&replica, &cache, "a/x", &root()).crossed_lock);
    cache.purge();
    assert_eq!((hits(&cache), cache.size().0), (1, 1), "the prefix `a` stays");
}

#[test]
fn a_rename_a_chmod_and_a_removal_take_the_subtree_out() {
    type Change = fn(&mut Replica);
    let changes: [(&str, Change); 3] = [
        ("rename", |replica| replica.stream(11, vec![put(record(1, "moved", 3, 2))])),
        ("chmod", |replica| {
            let permission = Permission { owner: 1, group: 1, mode: 0o711 };
            replica.stream(11, vec![put(DirectoryRecord { permission, ..record(2, "b", 3, 2) })]);
        }),
        ("removal", |replica| replica.stream(11, vec![remove(record(2, "b", 3, 2))])),
    ];
    for (name, make) in changes {
        for invalidation in [Invalidation::Range, Invalidation::All] {
            let (mut replica, cache) = (replica(), PathCache::new(LookupSettings { invalidation, ..settings() }));
            replica.stream(10, vec![put(record(1, "z", 9, 1))]);
            for path in ["a/b/c/d", "a/b/c", "a/x", "a/b/c/d/e/f"] {
                look_up(&replica, &cache, path, &root());
            }
            assert_eq!(cache.size().0, 3);
            make(&mut replica);
            cache.invalidate(&replica.effects.modified);
            // The entry is bypassed, and not filled again, until it is purged.
            look_up(&replica, &cache, "a/b/c/d", &root());
            assert_eq!((hits(&cache), cache.size().0), (0, 3), "{name}");
            cache.purge();
            let left = if invalidation == Invalidation::Range { 1 } else { 0 };
            assert_eq!(cache.size().0, left, "{name}: only `a` has nothing modified on its way");
        }
    }
}

#[test]
fn a_directory_on_no_cached_prefix_is_not_listed() {
    let (mut replica, cache) = (replica(), PathCache::new(settings()));
    look_up(&replica, &cache, "a/b", &root());
    let before = cache.size();
    replica.stream(11, vec![remove(record(4, "d", 5, 2))]);
    cache.invalidate(&replica.effects.modified);
    look_up(&replica, &cache, "a/b", &root());
    assert_eq!((hits(&cache), cache.size()), (1, before), "no entry passes `d`");
}

#[test]
fn a_full_cache_takes_no_more_and_a_purge_makes_room() {
    let mut replica = replica();
    replica.stream(11, (0..50).map(|i| put(record(5, &format!("e{i}"), 100 + i, 1))).collect());
    let limit = 4_000;
    let cache = PathCache::new(LookupSettings { cache_bytes_max: limit, ..settings() });
    let fill = |cache: &PathCache, replica: &Replica| {
        for i in 0..50 {
            look_up(replica, cache, &format!("a/b/c/d/e{i}/f"), &root());
        }
    };
    fill(&cache, &replica);
    let (entries, bytes) = cache.size();
    assert!((5..50).contains(&entries) && bytes <= limit, "{entries} entries, {bytes} bytes");
    assert_eq!(cache.counters().refused.load(std::sync::atomic::Ordering::Relaxed), 50 - entries as u64);
    cache.invalidate(&[EVERYTHING]);
    cache.purge();
    assert_eq!(cache.size(), (0, 0));
    fill(&cache, &replica);
    assert_eq!(cache.size().0, entries);
}

#[test]
fn a_swapped_tree_finds_no_old_entry() {
    let (mut replica, cache) = (replica(), PathCache::new(settings()));
    look_up(&replica, &cache, "a/b/c/d", &root());
    // Other directories under the same names, and one lookup of the old tree that ends late.
    let caller = root();
    let mut late = cache.begin(&replica.index);
    late.resolve(&PathQuery { namespace: "ns", path: Path("a/b/x"), caller: &caller });
    let late = late.end();
    let records = vec![record(0, "ns", 1, 1), record(1, "a", 12, 1), record(12, "b", 13, 1), record(13, "c", 14, 1)];
    replica.begin(2, false);
    replica.apply(Command::RebuildChunk { records });
    let end = Command::RebuildEnd { sources: vec![start(SOURCE, mantle_types::Lsn(100))] };
    change(&mut replica, &cache, end);
    assert_eq!(look_up(&replica, &cache, "a/b/c", &root()).id, DirectoryId(14));
    cache.purge();
    cache.fill(late);
    assert_eq!(cache.size(), (0, 0), "what was found in the old tree is not cached");
    assert_eq!(look_up(&replica, &cache, "a/b/c", &root()).id, DirectoryId(14));
}
