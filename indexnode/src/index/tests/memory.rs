//! Measures bytes a directory and the cost of operations, on a synthetic tree of a million directories with names as in the
//! Debian archive (8.9 bytes on average). Run it by hand in release mode: `cargo test --release -p mantle-indexnode --lib
//! memory -- --ignored --nocapture`

use std::time::{Duration, Instant};

use super::*;
use crate::index::digest::mix;

/// Copied at first. The mkdirs that follow complete a million, and make shards grow.
const DIRECTORIES: u64 = 800_000;
const MKDIRS: u64 = 200_000;
const FIRST_ID: u64 = 1024;

/// A parent among the earlier directories, shallow ones more often. One in twenty is the same huge directory.
fn parent(i: u64) -> u64 {
    match i {
        0 => NS.0,
        _ if i.is_multiple_of(20) => FIRST_ID,
        _ => FIRST_ID + mix(i) % i,
    }
}

/// 3 to 15 bytes, 8.9 on average, different from all siblings.
fn name(i: u64) -> String {
    let length = 3 + (mix(i ^ 77) % 7 + mix(i ^ 78) % 7) as usize;
    let mut text = format!("{i:x}");
    text.extend((text.len()..length).map(|at| char::from(b'g' + (mix(i + at as u64) % 20) as u8)));
    text
}

fn path(i: u64) -> Vec<String> {
    let (mut path, mut here) = (vec![name(i)], parent(i));
    while here != NS.0 {
        path.push(name(here - FIRST_ID));
        here = parent(here - FIRST_ID);
    }
    path.reverse();
    path
}

#[test]
#[ignore = "a measurement: takes seconds in release mode, a minute otherwise"]
fn memory() {
    let (mut index, mut effects) = (Index::default(), Effects::default());
    let mut log_index = 0;
    let mut apply = |index: &mut Index, command| {
        log_index += 1;
        let started = Instant::now();
        index.apply(log_index, command, &mut effects);
        started.elapsed()
    };
    apply(&mut index, Command::RebuildBegin { epoch: Epoch(1), is_diverged: false });
    apply(&mut index, Command::RebuildChunk { records: vec![record(0, "ns", NS.0, 1)] });
    let mut filling = Duration::ZERO;
    for first in (0..DIRECTORIES).step_by(1000) {
        let records = (first..first + 1000).map(|i| record(parent(i), &name(i), FIRST_ID + i, 1)).collect();
        filling += apply(&mut index, Command::RebuildChunk { records });
    }
    apply(&mut index, Command::RebuildEnd { sources: vec![start(SOURCE, Lsn(1))] });
    let bytes = index.heap_bytes() as f64 / index.directories() as f64;
    println!("{} directories, {bytes:.1} bytes each; copied in {filling:?}", index.directories());

    let mut times = Vec::new();
    for i in DIRECTORIES..DIRECTORIES + MKDIRS {
        let ops = vec![put(record(parent(i), &name(i), FIRST_ID + i, 1))];
        let transactions = vec![StreamTransaction { commit_lsn: Lsn(i), ops }];
        times.push(apply(&mut index, batch(SOURCE, transactions, Lsn(i))));
    }
    let bytes = index.heap_bytes() as f64 / index.directories() as f64;
    times.sort();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1000];
    println!("{} directories, {bytes:.1} bytes each", index.directories());
    // About one mkdir in a hundred makes a shard grow.
    println!("mkdir: median {:?}, with a shard's rehash {:?}, slowest {:?}", at(500), at(995), at(1000));

    let paths: Vec<Vec<String>> = (0..100_000).map(|i| path(mix(i) % DIRECTORIES)).collect();
    let levels: usize = paths.iter().map(Vec::len).sum();
    let paths: Vec<Vec<&str>> = paths.iter().map(|path| path.iter().map(String::as_str).collect()).collect();
    let caller = Caller { uid: 7, gids: vec![7] };
    let started = Instant::now();
    let found = paths.iter().filter(|path| index.resolve("ns", path, &caller).outcome.is_ok()).count();
    let each = started.elapsed() / paths.len() as u32;
    println!("lookup of {:.1} levels: {each:?}", levels as f64 / paths.len() as f64);
    assert_eq!(found, paths.len());

    let started = Instant::now();
    let mut snapshot = Vec::new();
    index.write_snapshot(&mut snapshot).unwrap();
    let written = started.elapsed();
    let back = Index::read_snapshot(&mut &snapshot[..]).unwrap();
    println!("snapshot {} bytes: written in {written:?}, read in {:?}", snapshot.len(), started.elapsed() - written);
    let started = Instant::now();
    assert_eq!(back.digest(), index.digest());
    println!("digest: {:?}", started.elapsed() / 2);
    assert!(bytes <= 80.0, "{bytes} bytes a directory");
}
