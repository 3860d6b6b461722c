//! Runs work that waits for the disk: on blocking threads, or in the runtime's tasks for the simulation.
//!
//! Invariant: either way the same functions do the work, in the same order. The simulation has one thread, so that the same
//! seed gives the same history.

use std::{io, sync::Arc, time::Duration};

/// The duration of the next flush.
pub type FlushTime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Where a replica's disk work runs.
#[derive(Clone)]
pub enum DiskExecutor {
    /// On blocking threads: the runtime's threads never wait for a disk.
    Threads,
    /// In tasks of the runtime; the Raft log's writer sleeps for the flush time before it writes.
    Inline(FlushTime),
}

impl DiskExecutor {
    /// Runs work that may wait for the disk.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?,
            Self::Inline(_) => work(),
        }
    }
}
