//! Where work that waits for the disk is done: on threads beside the runtime, or in its tasks.
//!
//! Invariant: either way the same functions do the work, in the same order. The simulation has one thread, so that the
//! same seed gives the same history.

use std::{fmt, io, sync::Arc, time::Duration};

/// How long the disk takes for the next flush.
pub type FlushTime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Where a replica's disk work is done.
#[derive(Clone)]
pub enum DiskExecutor {
    /// On threads of its own: the runtime's never wait for a disk.
    Threads,
    /// In tasks of the runtime; the Raft log's writer sleeps this long before it writes.
    Inline(FlushTime),
}

impl fmt::Debug for DiskExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "Threads",
            Self::Inline(_) => "Inline",
        })
    }
}

impl DiskExecutor {
    /// Does work that may wait for the disk.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?,
            Self::Inline(_) => work(),
        }
    }
}
