//! The queue of one volume's writes. Those that wait are written together and share one flush (group commit); those that arrive
//! meanwhile are the next batch. Nothing waits for a batch to fill, so an idle store adds no delay, and a loaded one makes few
//! flushes. Neighbours on the disk become one system call.
//!
//! Invariants: after a failed flush nothing is written any more. A write is reported as durable only after a flush that began after
//! it was written.

use std::{io::IoSlice, sync::Arc};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

#[cfg(test)]
use crate::tests::mutation::{self, Mutation};
use crate::{
    error::{Error, Result},
    volume::Volume,
};

/// A write at one place.
pub(crate) struct Job {
    pub at: u64,
    /// One after the other; none if only a flush is wanted.
    pub pieces: Vec<Bytes>,
    /// Whether `done` waits for a flush.
    pub flush: bool,
    pub done: oneshot::Sender<Result<()>>,
    /// Keeps the blocks reserved until this job has ended, even if nobody waits for it.
    pub reserved: Option<Arc<dyn Send + Sync>>,
}

impl Job {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    is_closed: bool,
}

/// The queue of a volume's writes.
pub(crate) struct Lane {
    volume: Arc<Volume>,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

impl Lane {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        Self { volume, queue: Mutex::default(), arrived: Condvar::new() }
    }

    pub(crate) fn submit(&self, job: Job) {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            // Nobody would write it.
            drop(queue);
            return report(job, Err(Error::NotMounted(self.volume.id())));
        }
        queue.jobs.push(job);
        drop(queue);
        self.arrived.notify_one();
    }

    /// What a crash does to it.
    #[cfg(test)]
    pub(crate) fn lose_waiting(&self) {
        let waiting = std::mem::take(&mut self.queue.lock().jobs);
        drop(waiting);
    }

    /// Takes no more jobs. Those in the queue are still written.
    pub(crate) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.arrived.notify_one();
    }

    /// How many writes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().jobs.len()
    }

    /// Writes batches until the lane is closed; a thread's work.
    pub(crate) fn run(&self) {
        loop {
            let jobs = {
                let mut queue = self.queue.lock();
                while queue.jobs.is_empty() {
                    if queue.is_closed {
                        return;
                    }
                    self.arrived.wait(&mut queue);
                }
                std::mem::take(&mut queue.jobs)
            };
            self.write(jobs);
        }
    }

    /// Writes what waits now. `false` if nothing did.
    #[cfg(test)]
    pub(crate) fn drive(&self) -> bool {
        let jobs = std::mem::take(&mut self.queue.lock().jobs);
        let is_any = !jobs.is_empty();
        self.write(jobs);
        is_any
    }

    fn write(&self, mut jobs: Vec<Job>) {
        // Jobs never overlap, since each has its blocks for itself.
        jobs.sort_unstable_by_key(|job| job.at);
        let mut flushed = Vec::new();
        let mut jobs = jobs.into_iter().peekable();
        while let Some(job) = jobs.next() {
            let mut end = job.at + job.bytes();
            let mut neighbours = vec![job];
            while let Some(next) = jobs.next_if(|next| next.at == end) {
                end += next.bytes();
                neighbours.push(next);
            }
            let written = self.write_neighbours(&neighbours);
            for job in neighbours {
                match &written {
                    Ok(()) if job.flush => flushed.push(job),
                    result => report(job, result.clone()),
                }
            }
        }
        if !flushed.is_empty() {
            let result = self.flush();
            flushed.into_iter().for_each(|job| report(job, result.clone()));
        }
    }

    fn write_neighbours(&self, jobs: &[Job]) -> Result<()> {
        if self.volume.is_read_only() {
            return Err(Error::ReadOnly(self.volume.id()));
        }
        let mut pieces: Vec<_> = jobs.iter().flat_map(|job| &job.pieces).map(|piece| IoSlice::new(piece)).collect();
        match jobs.first() {
            Some(first) if !pieces.is_empty() => Ok(self.volume.file().write_all_at(&mut pieces, first.at)?),
            _ => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        #[cfg(test)]
        if mutation::is(Mutation::SkipFlush) {
            return Ok(());
        }
        #[cfg(test)]
        if mutation::is(Mutation::RetryFlush) && self.volume.file().flush().is_err() {
            return Ok(self.volume.file().flush()?);
        }
        self.volume.flush()
    }
}

/// Drops the job's reservation before its result is seen, so that a put that has ended leaves nothing behind.
fn report(job: Job, result: Result<()>) {
    let Job { done, reserved, .. } = job;
    drop(reserved);
    let _ = done.send(result);
}
