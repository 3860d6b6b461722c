//! The thread that writes the log: takes all waiting jobs, writes them, flushes once, reports.
//!
//! Invariant (P46): after a failed write or flush nothing more is written. The content of the kernel's cache is unknown then,
//! so the replica has to stop (openraft does, on the error) and restart from the disk.

use std::{
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, TryRecvError},
    },
};

use openraft::{LogIdOptionExt, storage::IOFlushed};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};

use super::{
    State, remove_purged,
    segment::{Location, Segment},
};
use crate::{
    failpoints::{self, Failpoint},
    raft::{
        TypeConfig,
        disk_executor::{DiskExecutor, FlushTime},
        durable,
        types::{LogId, Vote},
    },
};

/// A segment that exceeds this size is followed by a new one. A purge deletes whole segments.
const SEGMENT_BYTES_MAX: u64 = 32 << 20;

type Reply = oneshot::Sender<io::Result<()>>;

/// A request to the writer thread; it serves them in order.
pub(super) enum Job {
    /// Write entries, which are already in the cache.
    Append { first: u64, bytes: Vec<u8>, lengths: Vec<u32>, callback: IOFlushed<TypeConfig> },
    /// Record the vote.
    Vote { vote: Vote, path: PathBuf, reply: Reply },
    /// Remove the entries from `end` on.
    Truncate { end: u64, reply: Reply },
    /// Remove the entries up to this one.
    Purge { log_id: LogId, path: PathBuf, reply: Reply },
}

/// The queue of the writer, which ends when this is dropped.
pub(super) struct Queue {
    jobs: mpsc::Sender<Job>,
    /// Wakes a writer that runs as a task.
    wake: Arc<Notify>,
}

impl Queue {
    pub(super) fn submit(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).map_err(|_| stopped())?;
        self.wake.notify_one();
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The sender is dropped right after this; a writer that runs as a task sees that only when woken.
        self.wake.notify_one();
    }
}

pub(super) fn stopped() -> io::Error {
    io::Error::other("the Raft log's writer has stopped after a failure")
}

pub(super) struct Writer {
    folder: PathBuf,
    shared: Arc<Mutex<State>>,
    /// True if waiting appends share a flush.
    is_batching: bool,
    /// A job that was taken from the queue but does not belong to the last group.
    held: Option<Job>,
}

#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
    lengths: Vec<u32>,
    callbacks: Vec<IOFlushed<TypeConfig>>,
}

impl Writer {
    pub(super) fn new(folder: PathBuf, shared: Arc<Mutex<State>>, is_batching: bool) -> Self {
        Self { folder, shared, is_batching, held: None }
    }

    /// Starts serving a queue. After a failure the receiver is dropped, which fails every later request.
    pub(super) fn start(self, disk: &DiskExecutor) -> io::Result<Arc<Queue>> {
        let (jobs, queue) = mpsc::channel();
        let wake = Arc::new(Notify::new());
        match disk {
            DiskExecutor::Threads => {
                std::thread::Builder::new().name("raft-log".into()).spawn(move || self.run(&queue))?;
            }
            DiskExecutor::Inline(flush_time) => {
                tokio::spawn(self.run_as_task(queue, wake.clone(), flush_time.clone()));
            }
        }
        Ok(Arc::new(Queue { jobs, wake }))
    }

    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        while let Some(job) = self.held.take().or_else(|| queue.recv().ok()) {
            if self.serve(job, queue).is_err() {
                return;
            }
        }
    }

    async fn run_as_task(mut self, queue: mpsc::Receiver<Job>, wake: Arc<Notify>, flush_time: FlushTime) {
        loop {
            let next = self.held.take().map_or_else(|| queue.try_recv(), Ok);
            match next {
                Ok(job) => {
                    sleep(flush_time()).await;
                    if self.serve(job, &queue).is_err() {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => wake.notified().await,
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn serve(&mut self, job: Job, queue: &mpsc::Receiver<Job>) -> io::Result<()> {
        let result = match job {
            Job::Append { first, bytes, lengths, callback } => {
                let mut group = Group { bytes, lengths, callbacks: vec![callback] };
                while self.is_batching && self.held.is_none() {
                    match queue.try_recv() {
                        Ok(Job::Append { bytes, lengths, callback, .. }) => {
                            group.bytes.extend_from_slice(&bytes);
                            group.lengths.extend_from_slice(&lengths);
                            group.callbacks.push(callback);
                        }
                        Ok(other) => self.held = Some(other),
                        Err(_) => break,
                    }
                }
                self.append(first, group)
            }
            Job::Vote { vote, path, reply } => report(reply, durable::write(&path, &vote)),
            Job::Truncate { end, reply } => report(reply, self.truncate(end)),
            Job::Purge { log_id, path, reply } => {
                report(reply, durable::write(&path, &log_id).and_then(|()| self.purge(log_id)))
            }
        };
        if let Err(e) = &result {
            tracing::error!(error = %e, "the Raft log cannot be written");
        }
        result
    }

    fn append(&self, first: u64, group: Group) -> io::Result<()> {
        let result = self.write(first, &group);
        for callback in group.callbacks {
            callback.io_completed(result.as_ref().copied().map_err(copy_error));
        }
        result
    }

    fn write(&self, first: u64, group: &Group) -> io::Result<()> {
        // Only this thread changes the segments, so they do not change after the lock is released.
        let (file, mut offset) = {
            let mut state = self.shared.lock();
            if state.segments.last().is_none_or(|s| s.bytes() >= SEGMENT_BYTES_MAX) {
                let segment = Segment::create(&self.folder, first)?;
                state.segments.push(segment);
            }
            let segment = state.segments.last().ok_or_else(|| io::Error::other("no segment"))?;
            (segment.file.clone(), segment.bytes())
        };
        file.write_all_at(&group.bytes, offset)?;
        if !failpoints::is_hit(Failpoint::AcknowledgeBeforeFlush) {
            file.sync_data()?;
        }
        let mut state = self.shared.lock();
        if let Some(segment) = state.segments.last_mut() {
            for length in &group.lengths {
                segment.locations.push(Location { offset, length: *length });
                offset += u64::from(*length);
            }
        }
        state.written_end = first + group.lengths.len() as u64;
        state.evict();
        Ok(())
    }

    fn truncate(&self, end: u64) -> io::Result<()> {
        let mut state = self.shared.lock();
        while let Some(mut segment) = state.segments.pop() {
            if segment.first >= end {
                segment.remove()?;
                continue;
            }
            if segment.end() > end {
                segment.truncate(end)?;
            }
            state.segments.push(segment);
            break;
        }
        state.written_end = state.written_end.min(end);
        Ok(())
    }

    fn purge(&self, log_id: LogId) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.purged = state.purged.max(Some(log_id));
        state.drop_cached_through(log_id.index);
        if state.last < state.purged {
            state.last = state.purged;
        }
        state.first = state.purged.next_index();
        state.written_end = state.written_end.max(state.first);
        let purged = state.purged;
        remove_purged(&mut state.segments, purged)
    }
}

fn report(reply: Reply, result: io::Result<()>) -> io::Result<()> {
    // The caller may have been dropped while the replica shuts down.
    let _ = reply.send(result.as_ref().copied().map_err(copy_error));
    result
}

fn copy_error(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}
