use std::{fs, io, path::Path};

use mantle_types::{Lsn, NamespaceId, RequestKey};
use openraft::{
    EntryPayload, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage, RaftLogStorageExt},
    vote::RaftLeaderId as _,
};
use uuid::Uuid;

use super::{LogStore, record};
use crate::{
    index::command::{Command, SourceBatch, SourceId},
    raft::{
        Proposal,
        disk_executor::DiskExecutor,
        types::{CommittedLeaderId, Entry, LogId, Vote},
    },
};

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entry(term: u64, index: u64) -> Entry {
    let request = RequestKey { principal: 1, ns: NamespaceId(2), id: Uuid::from_u128(u128::from(index)) };
    let command = Command::Release { request, attempt: index };
    Entry { log_id: log_id(term, index), payload: EntryPayload::Normal(Proposal::encode(&command)) }
}

fn large_entry(index: u64, transactions: usize) -> Entry {
    let one = crate::index::command::StreamTransaction { commit_lsn: Lsn(1 << 60), ops: Vec::new() };
    let command = Command::Stream(vec![SourceBatch {
        source: SourceId(0),
        transactions: vec![one; transactions],
        position: Lsn(index),
    }]);
    Entry { log_id: log_id(1, index), payload: EntryPayload::Normal(Proposal::encode(&command)) }
}

async fn append(log: &mut LogStore, entries: impl IntoIterator<Item = Entry>) {
    let entries: Vec<_> = entries.into_iter().collect();
    log.blocking_append(entries).await.unwrap();
}

async fn indexes(log: &mut LogStore) -> Vec<u64> {
    log.try_get_log_entries(..).await.unwrap().iter().map(|e| e.log_id.index).collect()
}

fn segment(folder: &Path) -> std::path::PathBuf {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    found.retain(|p| p.extension().is_some_and(|e| e == "seg"));
    found.sort();
    found.pop().unwrap()
}

#[tokio::test]
async fn entries_and_vote_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let vote = Vote::new(3, 1);
    {
        let mut log = LogStore::open(folder.path()).unwrap();
        append(&mut log, (0..10).map(|i| entry(1, i))).await;
        log.save_vote(&vote).await.unwrap();
        log.save_committed(Some(log_id(1, 7))).await.unwrap();
    }
    let mut log = LogStore::open(folder.path()).unwrap();
    assert_eq!(log.try_get_log_entries(3..=4).await.unwrap(), [entry(1, 3), entry(1, 4)]);
    assert_eq!(indexes(&mut log).await, (0..10).collect::<Vec<_>>());
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.read_committed().await.unwrap(), Some(log_id(1, 7)));
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 9)));
}

#[tokio::test]
async fn entries_flushed_one_by_one_survive_too() {
    let folder = tempfile::tempdir().unwrap();
    {
        let mut log = LogStore::open_with(folder.path(), &DiskExecutor::Threads, false).unwrap();
        for i in 0..10 {
            append(&mut log, [entry(1, i)]).await;
        }
    }
    assert_eq!(indexes(&mut LogStore::open(folder.path()).unwrap()).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn every_cut_of_the_tail_keeps_the_whole_entries_before_it() {
    let folder = tempfile::tempdir().unwrap();
    append(&mut LogStore::open(folder.path()).unwrap(), (0..4).map(|i| entry(1, i))).await;
    let path = segment(folder.path());
    let bytes = fs::read(&path).unwrap();
    let record = bytes.len() / 4;
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let mut log = LogStore::open(folder.path()).unwrap();
        assert_eq!(indexes(&mut log).await.len(), cut / record, "cut at {cut}");
        let next = (cut / record) as u64;
        append(&mut log, [entry(2, next)]).await;
        drop(log);
        let mut log = LogStore::open(folder.path()).unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(log_id(2, next)), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_tail_of_garbage_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    append(&mut LogStore::open(folder.path()).unwrap(), (0..4).map(|i| entry(1, i))).await;
    let path = segment(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 0xff;
    bytes.extend_from_slice(&[0; 4096]);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(indexes(&mut LogStore::open(folder.path()).unwrap()).await, [0, 1, 2]);
}

#[tokio::test]
async fn damage_before_other_entries_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    append(&mut LogStore::open(folder.path()).unwrap(), (0..4).map(|i| entry(1, i))).await;
    let path = segment(folder.path());
    let bytes = fs::read(&path).unwrap();
    for at in [0, record::HEADER_BYTES + 2, bytes.len() / 2] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let error = LogStore::open(folder.path()).err().expect("damage in the middle must be refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}

#[tokio::test]
async fn a_missing_segment_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    {
        let mut log = LogStore::open(folder.path()).unwrap();
        for i in 0..4 {
            append(&mut log, [large_entry(i, 2_000_000)]).await;
        }
    }
    let mut segments: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
    segments.retain(|p| p.extension().is_some_and(|e| e == "seg"));
    segments.sort();
    assert!(segments.len() >= 2, "the test needs several segments");
    fs::remove_file(&segments[0]).unwrap();
    assert!(LogStore::open(folder.path()).is_err());
}

#[tokio::test]
async fn truncation_and_purge_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    {
        let mut log = LogStore::open(folder.path()).unwrap();
        append(&mut log, (0..10).map(|i| entry(1, i))).await;
        log.truncate_after(Some(log_id(1, 5))).await.unwrap();
        append(&mut log, (6..8).map(|i| entry(2, i))).await;
        log.purge(log_id(1, 2)).await.unwrap();
        assert_eq!(indexes(&mut log).await, [3, 4, 5, 6, 7]);
    }
    let mut log = LogStore::open(folder.path()).unwrap();
    assert_eq!(indexes(&mut log).await, [3, 4, 5, 6, 7]);
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(1, 2)), Some(log_id(2, 7))));
    // A snapshot from the leader is past the end: the log continues after it.
    log.purge(log_id(3, 20)).await.unwrap();
    append(&mut log, [entry(3, 21)]).await;
    drop(log);
    assert_eq!(indexes(&mut LogStore::open(folder.path()).unwrap()).await, [21]);
}

#[tokio::test]
async fn entries_outside_the_cache_are_read_from_disk_and_reads_are_capped() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(folder.path()).unwrap();
    for i in 0..12 {
        append(&mut log, [large_entry(i, 200_000)]).await;
    }
    assert!(log.shared.lock().cache.len() < 12, "the test needs evicted entries");
    assert_eq!(indexes(&mut log).await, (0..12).collect::<Vec<_>>());
    let capped = log.limited_get_log_entries(0, 12).await.unwrap();
    assert!(!capped.is_empty() && capped.len() < 12);
}

#[tokio::test]
async fn an_append_that_leaves_a_hole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(folder.path()).unwrap();
    append(&mut log, [entry(1, 0)]).await;
    assert!(log.append([entry(1, 2)], IOFlushed::noop()).await.is_err());
}
