//! The durable Raft log: segments on disk, the newest entries in memory, one writer thread.
//!
//! Invariant: `purged < every entry present ≤ last`, without gaps. An append is reported as flushed only after `fdatasync`. One
//! thread writes vote and entries, in the order of the requests; requests that arrive during a flush share the next one (group
//! commit). Reads never wait for a flush. Sizes are in bytes.

mod record;
mod segment;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::VecDeque,
    fmt::Debug,
    fs::File,
    io,
    ops::{Bound, RangeBounds},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, stream};
use openraft::{
    EntryPayload, LogIdOptionExt, LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use self::{
    segment::{Location, Segment, read_entry},
    writer::{Job, Queue, Writer, stopped},
};
use super::{
    TypeConfig,
    disk_executor::DiskExecutor,
    durable,
    fault::{Fault, FaultKind},
    promises::Promise,
    types::{Entry, LogId, Vote},
};

/// Bytes of the newest entries kept in memory, so that their replication and apply read no file. Older ones are often in the
/// page cache, which other processes share.
const CACHE_BYTES_MAX: usize = 4 << 20;
/// An append RPC carries at most this many bytes, unless a single entry is larger.
const READ_BYTES_MAX: usize = 4 << 20;
/// Size of a cached entry beside its proposal.
const ENTRY_OVERHEAD_BYTES: usize = 64;
const VOTE_FILE: &str = "vote";
const PURGED_FILE: &str = "purged";
const COMMITTED_FILE: &str = "committed";
/// Shortest interval between two writes of the committed position, because a write delays the apply of the entry.
const COMMITTED_INTERVAL: Duration = Duration::from_millis(100);

/// State that readers and the writer share.
struct State {
    /// Segments, oldest first; they contain the entries below `written_end`.
    segments: Vec<Segment>,
    written_end: u64,
    /// Index of the first entry, or of the next one if the log is empty.
    first: u64,
    /// The newest entries, including those that are not written yet.
    cache: VecDeque<Entry>,
    cache_bytes: usize,
    purged: Option<LogId>,
    last: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
}

impl State {
    fn cache_first(&self) -> u64 {
        self.last.next_index() - self.cache.len() as u64
    }

    fn push(&mut self, entry: Entry) {
        self.cache_bytes += entry_bytes(&entry);
        self.last = Some(entry.log_id);
        self.cache.push_back(entry);
    }

    /// Drops cached entries that are on disk, oldest first, down to the limit.
    fn evict(&mut self) {
        while self.cache_bytes > CACHE_BYTES_MAX && self.cache_first() < self.written_end {
            let Some(entry) = self.cache.pop_front() else { return };
            self.cache_bytes -= entry_bytes(&entry);
        }
    }

    fn drop_cached_through(&mut self, index: u64) {
        while let Some(entry) = self.cache.pop_front_if(|entry| entry.log_id.index <= index) {
            self.cache_bytes -= entry_bytes(&entry);
        }
    }

    fn location(&self, index: u64) -> Option<(Arc<File>, Location)> {
        let at = self.segments.partition_point(|s| s.end() <= index);
        let segment = self.segments.get(at)?;
        let location = segment.locations.get(index.checked_sub(segment.first)? as usize)?;
        Some((segment.file.clone(), *location))
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    let EntryPayload::Normal(proposal) = &entry.payload else { return ENTRY_OVERHEAD_BYTES };
    ENTRY_OVERHEAD_BYTES + proposal.bytes()
}

/// A handle on the log; clones share it. The writing thread ends with the last handle.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Mutex<State>>,
    jobs: Arc<Queue>,
    committed: Arc<File>,
    committed_written: Option<Instant>,
    folder: PathBuf,
}

impl LogStore {
    /// For tests: with a writer thread that batches.
    #[cfg(test)]
    pub fn open(folder: &Path) -> io::Result<Self> {
        Self::open_with(folder, &DiskExecutor::Threads, true)
    }

    /// Opens the log in a directory, which is created if missing. The writer runs on `disk`. `is_batching`: waiting appends
    /// share a flush.
    pub fn open_with(folder: &Path, disk: &DiskExecutor, is_batching: bool) -> io::Result<Self> {
        durable::create_dir(folder)?;
        let vote = durable::read(&folder.join(VOTE_FILE))?;
        let purged: Option<LogId> = durable::read(&folder.join(PURGED_FILE))?;
        let mut last = purged;
        let mut segments = Segment::open_all(folder, |entry| {
            if Some(entry.log_id.index) > last.map(|l| l.index) {
                last = Some(entry.log_id);
            }
        })?;
        remove_purged(&mut segments, purged)?;
        let expected = purged.next_index();
        if let Some(Segment { first, .. }) = segments.first().filter(|segment| segment.first > expected) {
            let why = format!("its log begins at entry {first}, and {expected} is missing");
            return Err(io::Error::new(io::ErrorKind::InvalidData, Fault::new(FaultKind::LogLost, why)));
        }
        let committed =
            File::options().read(true).write(true).create(true).truncate(false).open(folder.join(COMMITTED_FILE))?;
        let state = State {
            segments,
            written_end: last.next_index(),
            first: expected,
            cache: VecDeque::new(),
            cache_bytes: 0,
            purged,
            last,
            vote,
            committed: read_committed(folder)?,
        };
        let shared = Arc::new(Mutex::new(state));
        let jobs = Writer::new(folder.to_owned(), shared.clone(), is_batching).start(disk)?;
        let committed = Arc::new(committed);
        Ok(Self { shared, jobs, committed, committed_written: None, folder: folder.to_owned() })
    }

    /// The last entry of the log, and the vote.
    pub fn last_and_vote(&self) -> (Option<LogId>, Option<Vote>) {
        let state = self.shared.lock();
        (state.last, state.vote)
    }

    /// What this log promises: its vote, and its last entry that is on disk.
    pub fn promise(&self) -> Promise {
        let state = self.shared.lock();
        let log = if state.written_end == state.last.next_index() {
            state.last
        } else {
            let at = state.written_end.checked_sub(state.cache_first() + 1);
            at.and_then(|at| state.cache.get(at as usize)).map(|entry| entry.log_id).or(state.purged)
        };
        Promise::of_vote(state.vote.as_ref(), log)
    }

    /// Bytes of the segments on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.lock().segments.iter().map(Segment::bytes).sum()
    }

    /// Index of the last purged entry; 0 if there is none.
    pub fn purged_index(&self) -> u64 {
        self.shared.lock().purged.map_or(0, |id| id.index)
    }

    /// Submits a job and waits until it is done.
    async fn run_job(&self, job: impl FnOnce(oneshot::Sender<io::Result<()>>) -> Job) -> io::Result<()> {
        let (reply, done) = oneshot::channel();
        self.jobs.submit(job(reply))?;
        done.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Entries of `[start, end)` that the log has: as many as fit into `bytes_max`, but at least one.
    fn read(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        enum Found {
            Cached(Entry),
            OnDisk(Arc<File>, Location),
        }
        let mut found = Vec::new();
        {
            let state = self.shared.lock();
            let cache_first = state.cache_first();
            let mut bytes = 0;
            for index in start.max(state.first)..end.min(state.last.next_index()) {
                let item = if index >= cache_first {
                    let entry = &state.cache[(index - cache_first) as usize];
                    bytes += entry_bytes(entry);
                    Found::Cached(entry.clone())
                } else {
                    let missing = || io::Error::other(format!("entry {index} is missing in the Raft log"));
                    let (file, location) = state.location(index).ok_or_else(missing)?;
                    bytes += location.length as usize;
                    Found::OnDisk(file, location)
                };
                if bytes > bytes_max && !found.is_empty() {
                    break;
                }
                found.push(item);
            }
        }
        let entries = found.into_iter().map(|item| match item {
            Found::Cached(entry) => Ok(entry),
            Found::OnDisk(file, location) => read_entry(&file, location),
        });
        entries.collect()
    }
}

/// A range as `[start, end)`.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(i) => *i,
        Bound::Excluded(i) => i + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(i) => i + 1,
        Bound::Excluded(i) => *i,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

/// The committed position on disk; `None` if it was not written completely.
fn read_committed(folder: &Path) -> io::Result<Option<LogId>> {
    let bytes = durable::read_bytes(&folder.join(COMMITTED_FILE))?.unwrap_or_default();
    Ok(record::parse(&bytes).and_then(|payload| postcard::from_bytes(payload).ok()).flatten())
}

/// Removes leading segments whose entries are all purged.
fn remove_purged(segments: &mut Vec<Segment>, purged: Option<LogId>) -> io::Result<()> {
    let keep_from = segments.partition_point(|s| s.end() <= purged.next_index());
    for segment in segments.drain(..keep_from) {
        segment.remove()?;
    }
    Ok(())
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let (start, end) = bounds(&range);
        self.read(start, end, usize::MAX)
    }

    /// For apply: reads at most `READ_BYTES_MAX` at a time, however long the range is.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        stream::unfold((self.clone(), start, VecDeque::new()), move |(log, mut next, mut ahead)| async move {
            if ahead.is_empty() && next < end {
                match log.read(next, end, READ_BYTES_MAX) {
                    Ok(entries) => ahead.extend(entries),
                    Err(e) => return Some((Err(e), (log, end, ahead))),
                }
            }
            let entry: Entry = ahead.pop_front()?;
            next = entry.log_id.index + 1;
            Some((Ok(entry), (log, next, ahead)))
        })
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let state = self.shared.lock();
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: state.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (vote, path) = (*vote, self.folder.join(VOTE_FILE));
        self.run_job(|reply| Job::Vote { vote, path, reply }).await?;
        self.shared.lock().vote = Some(vote);
        Ok(())
    }

    /// Writes the position occasionally, and only into the page cache. It speeds up a restart; without it the replica learns the
    /// position from the leader.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.shared.lock().committed = committed;
        let now = Instant::now();
        if self.committed_written.is_some_and(|written| now < written + COMMITTED_INTERVAL) {
            return Ok(());
        }
        self.committed_written = Some(now);
        let mut bytes = Vec::with_capacity(64);
        record::append(&mut bytes, |out| postcard::to_io(&committed, out).map(|_| ()).map_err(io::Error::other))?;
        std::os::unix::fs::FileExt::write_all_at(&*self.committed, &bytes, 0)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let state = self.shared.lock();
        // A power failure may have kept the position, but lost entries below it that were not flushed.
        Ok(state.committed.filter(|committed| Some(*committed) <= state.last))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut bytes = Vec::new();
        let mut lengths = Vec::new();
        let mut batch = Vec::new();
        for entry in entries {
            let before = bytes.len();
            record::append(&mut bytes, |out| postcard::to_io(&entry, out).map(|_| ()).map_err(io::Error::other))?;
            lengths.push((bytes.len() - before) as u32);
            batch.push(entry);
        }
        let Some(first) = batch.first().map(|e| e.log_id.index) else {
            callback.io_completed(Ok(()));
            return Ok(());
        };
        {
            let mut state = self.shared.lock();
            if state.last.is_none() {
                state.first = first;
            } else if first != state.last.next_index() {
                return Err(io::Error::other(format!("entry {first} does not follow {:?}", state.last)));
            }
            batch.into_iter().for_each(|entry| state.push(entry));
        }
        self.jobs.submit(Job::Append { first, bytes, lengths, callback })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let end = last.next_index();
        {
            let mut state = self.shared.lock();
            if end >= state.last.next_index() {
                return Ok(());
            }
            while let Some(entry) = state.cache.pop_back_if(|entry| entry.log_id.index >= end) {
                state.cache_bytes -= entry_bytes(&entry);
            }
            state.last = last.max(state.purged);
        }
        self.run_job(|reply| Job::Truncate { end, reply }).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let path = self.folder.join(PURGED_FILE);
        self.run_job(|reply| Job::Purge { log_id, path, reply }).await
    }
}
