//! Measures memory: the bytes a directory takes in the index (allocated and mapped), and the peak resident memory while a
//! snapshot is installed. Uses the IndexNode's allocator.
//!
//! This is a program of its own, and runs one test at a time, because both figures count the whole process.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout},
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use mantle_indexnode::{
    config::LookupSettings,
    index::{
        Effects, Index,
        command::{Command, SourceId, SourceStart},
    },
    raft::{
        disk_executor::DiskExecutor,
        machine::Machine,
        snapshot::{SnapshotHead, SnapshotStore},
        state::IndexState,
        types::SnapshotMeta,
    },
};
use mantle_types::{DirectoryId, Epoch, Lineage, Lsn, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use mimalloc::MiMalloc;
use openraft::storage::RaftStateMachine;

/// The bound, names included. The bench measures it on the whole Debian list.
const BYTES_A_DIRECTORY_MAX: f64 = 80.0;
const NS: u64 = 1;
const FIRST_ID: u64 = 1024;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: MiMalloc does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        let pointer = unsafe { MiMalloc.alloc(layout) };
        // SAFETY: allocated by it, or null, which has no size.
        HELD.fetch_add(unsafe { MiMalloc.usable_size(pointer) }, Ordering::Relaxed);
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: allocated above.
        HELD.fetch_sub(unsafe { MiMalloc.usable_size(pointer) }, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Resident memory of this process in bytes: now (`VmRSS`) or at most (`VmHWM`).
fn resident(which: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

/// Resets `VmHWM`.
fn forget_most_resident() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// SplitMix64's finalizer.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A directory below any earlier one; one in twenty is in one huge directory. Names have 3 to 15 bytes, 8.9 on average, as in
/// the Debian archive.
fn record(i: u64) -> DirectoryRecord {
    let pid = match i {
        0 => NS,
        _ if i.is_multiple_of(20) => FIRST_ID,
        _ => FIRST_ID + mix(i) % i,
    };
    let length = 3 + (mix(i ^ 77) % 7 + mix(i ^ 78) % 7) as usize;
    let mut name = format!("{i:x}");
    name.extend((name.len()..length).map(|at| char::from(b'g' + (mix(i + at as u64) % 20) as u8)));
    named(pid, &name, FIRST_ID + i)
}

fn named(pid: u64, name: &str, id: u64) -> DirectoryRecord {
    let permission = Permission { owner: 7, group: 7, mode: 0o755 };
    let (pid, id) = (PartitionId(pid), DirectoryId(id));
    DirectoryRecord { ns: NamespaceId(NS), pid, name: name.to_owned(), id, version: 1, permission }
}

/// Adds the directories of a range to an index that is being built.
fn fill(index: &mut Index, range: std::ops::Range<u64>) {
    let mut effects = Effects::default();
    for first in range.clone().step_by(1000) {
        let records = (first..range.end.min(first + 1000)).map(record).collect();
        index.apply(1, Command::RebuildChunk { records }, &mut effects);
    }
}

fn begun() -> Index {
    let (mut index, mut effects) = (Index::default(), Effects::default());
    index.apply(1, Command::RebuildBegin { epoch: Epoch(1), is_diverged: false }, &mut effects);
    let records = vec![named(0, "ns", NS)];
    index.apply(1, Command::RebuildChunk { records }, &mut effects);
    index
}

fn end(index: &mut Index) {
    let lineage = Lineage { system_identifier: 1, timeline: 1 };
    let (source, consistent_point) = (SourceId(0), Lsn(1));
    let sources = vec![SourceStart { source, lineage, consistent_point, copied: consistent_point }];
    index.apply(2, Command::RebuildEnd { sources }, &mut Effects::default());
}

/// Checks every size, so before and after the shards grow.
#[test]
fn a_directory_takes_no_more_than_eighty_bytes() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = held();
    let mut index = begun();
    let mut largest = 0.0_f64;
    for size in (20_000..=160_000).step_by(10_000) {
        fill(&mut index, size - if size == 20_000 { 20_000 } else { 10_000 }..size);
        let bytes = (held() - before + index.mapped_bytes()) as f64 / size as f64;
        println!(
            "{size} directories: {bytes:.1} bytes each, {:.1} by its own count",
            index.heap_bytes() as f64 / size as f64
        );
        largest = largest.max(bytes);
    }
    end(&mut index);
    assert_eq!(index.directories(), 160_001);
    assert!(largest <= BYTES_A_DIRECTORY_MAX, "{largest:.1} bytes a directory");
}

/// P30: a snapshot does not double the memory of a replica that installs it.
#[test]
fn an_installed_snapshot_takes_the_place_of_the_index_and_does_not_grow_beside_it() {
    const DIRECTORIES: u64 = 150_000;
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(directory.path()).unwrap();
    let meta = SnapshotMeta::default();
    {
        let mut index = begun();
        fill(&mut index, 0..DIRECTORIES);
        end(&mut index);
        let mut file = store.begin(&SnapshotHead { meta, history: 0 }).unwrap();
        let mut bytes = Vec::new();
        index.write_snapshot(&mut bytes).unwrap();
        file.write_all(&bytes).unwrap();
        store.finish(file).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let state = Arc::new(IndexState::new(&LookupSettings::default()));
    let mut machine = Machine::new(state.clone(), store.clone(), DiskExecutor::Threads);
    // Returns the free memory of the first index to the system. Otherwise the next index would reuse it, and its growth would
    // seem smaller.
    // SAFETY: it only gives back what is free.
    unsafe { libmimalloc_sys::mi_collect(true) };
    let before = resident("VmRSS");
    for is_first in [true, false] {
        let (meta, snapshot) = store.current().unwrap().unwrap();
        forget_most_resident();
        runtime.block_on(machine.install_snapshot(&meta, snapshot)).unwrap();
        let (index, most) = (resident("VmRSS") - before, resident("VmHWM") - before);
        println!("the index takes {index} bytes, at most {most} while it was installed, first: {is_first}");
        assert_eq!(state.read().index.directories() as u64, DIRECTORIES + 1);
        assert!(state.is_serving());
        // The difference is one frame, and a shard that grows.
        assert!(most < index + index / 4, "{most} bytes at most for an index of {index}");
    }
}
