//! The positions of the change streams and of a rebuild, as shared by the leader's streams, the waiters, status and metrics.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use mantle_types::{Error, ErrorCode, Lsn, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::index::command::SourceId;

const WAITERS_MAX: usize = 65_536;

/// The positions of a source's reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Everything committed below this has been received.
    pub received: Lsn,
    /// Everything committed below this may be applied: every standby that may be promoted has flushed it (P5).
    pub released: Lsn,
    /// The server has no synchronous standby: a failover may lose changes that the index has.
    pub is_unprotected: bool,
}

/// The progress of a rebuild.
#[derive(Debug, Default)]
pub struct RebuildProgress {
    /// Directories copied by the last rebuild, or so far by the current one.
    pub rows: AtomicU64,
    /// The number that PostgreSQL's statistics estimate.
    pub rows_expected: AtomicU64,
    /// Duration so far, in microseconds.
    pub elapsed_us: AtomicU64,
    /// Rebuilds begun by this process.
    pub begun: AtomicU64,
    /// Rebuilds completed by it.
    pub completed: AtomicU64,
    /// Attempts at a slot since the last one that was made.
    pub slot_attempts: AtomicU32,
}

/// What the change stream and the services of one replica share.
#[derive(Default)]
pub struct StreamProgress {
    sources: Mutex<BTreeMap<SourceId, Received>>,
    /// Stream entries proposed since the node started.
    pub proposals: AtomicU64,
    /// Directories compared with PostgreSQL since the node started.
    pub compared: AtomicU64,
    is_streaming: AtomicBool,
    /// Why the slots are not being read, if this replica leads and will retry.
    pub interruption: Mutex<Option<String>>,
    wanted: Mutex<Wanted>,
    /// Held while an entry is proposed whose order among the entries of the change stream matters.
    pub proposal_lock: tokio::sync::Mutex<()>,
    /// Wakes the stream when a position is wanted.
    pub wake: Notify,
    /// The progress of rebuilds.
    pub rebuild: RebuildProgress,
}

#[derive(Default)]
struct Wanted {
    positions: BTreeMap<(SourceId, u64), usize>,
    waiters: usize,
}

impl StreamProgress {
    /// The positions of the sources that this replica reads.
    pub fn received(&self) -> BTreeMap<SourceId, Received> {
        self.sources.lock().clone()
    }

    /// Records the positions of a source.
    pub fn set_received(&self, source: SourceId, received: Received) {
        self.sources.lock().insert(source, received);
    }

    /// True while the slots are being read.
    pub fn is_streaming(&self) -> bool {
        self.is_streaming.load(Ordering::Relaxed)
    }

    /// Marks the slots as being read until the guard is dropped.
    pub fn streaming(&self) -> Streaming<'_> {
        self.is_streaming.store(true, Ordering::Relaxed);
        *self.interruption.lock() = None;
        Streaming { progress: self }
    }

    /// Registers a wait for a position, so that the stream proposes it even when no directory changed.
    pub fn want(&self, source: SourceId, lsn: Lsn) -> Result<Want<'_>> {
        {
            let mut wanted = self.wanted.lock();
            if wanted.waiters == WAITERS_MAX {
                return Err(Error::new(ErrorCode::AwaitTimeout, "too many positions are waited for"));
            }
            wanted.waiters += 1;
            *wanted.positions.entry((source, lsn.0)).or_default() += 1;
        }
        self.wake.notify_one();
        Ok(Want { progress: self, position: (source, lsn.0) })
    }

    /// True if a position above `from`, and not above `to`, is waited for.
    pub fn is_wanted(&self, source: SourceId, from: Lsn, to: Lsn) -> bool {
        let range = (source, from.0.saturating_add(1))..=(source, to.0);
        from < to && self.wanted.lock().positions.range(range).next().is_some()
    }

    /// Current number of waiters for positions.
    pub fn waiters(&self) -> usize {
        self.wanted.lock().waiters
    }
}

/// See [`StreamProgress::streaming`].
pub struct Streaming<'a> {
    progress: &'a StreamProgress,
}

impl Drop for Streaming<'_> {
    fn drop(&mut self) {
        self.progress.is_streaming.store(false, Ordering::Relaxed);
        self.progress.sources.lock().clear();
    }
}

/// See [`StreamProgress::want`].
pub struct Want<'a> {
    progress: &'a StreamProgress,
    position: (SourceId, u64),
}

impl Drop for Want<'_> {
    fn drop(&mut self) {
        let mut wanted = self.progress.wanted.lock();
        wanted.waiters -= 1;
        if let Some(count) = wanted.positions.get_mut(&self.position) {
            *count -= 1;
            if *count == 0 {
                wanted.positions.remove(&self.position);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_wanted_between_applied_and_received() {
        let progress = StreamProgress::default();
        let (one, other) = (SourceId(0), SourceId(1));
        let want = progress.want(one, Lsn(10)).unwrap();
        assert!(progress.is_wanted(one, Lsn(9), Lsn(10)));
        assert!(!progress.is_wanted(other, Lsn(9), Lsn(10)), "another source's");
        assert!(!progress.is_wanted(one, Lsn(10), Lsn(20)), "applied already");
        assert!(!progress.is_wanted(one, Lsn(5), Lsn(9)), "not received yet");
        drop(want);
        assert!(!progress.is_wanted(one, Lsn(9), Lsn(10)));
        assert_eq!(progress.waiters(), 0);
    }

    #[test]
    fn the_number_of_waiters_is_bounded() {
        let progress = StreamProgress::default();
        let source = SourceId(0);
        // Half of them for one position.
        let mut wants: Vec<_> =
            (0..WAITERS_MAX as u64).map(|n| progress.want(source, Lsn(1 + n % 2 * n)).expect("room")).collect();
        assert_eq!(progress.waiters(), WAITERS_MAX);
        let refused = progress.want(source, Lsn(u64::MAX)).err().expect("no room");
        assert_eq!(refused.code(), ErrorCode::AwaitTimeout);
        // The refused one took no place, and is not proposed for; one that leaves gives its own back.
        assert!(!progress.is_wanted(source, Lsn(WAITERS_MAX as u64), Lsn(u64::MAX)));
        assert_eq!(progress.waiters(), WAITERS_MAX);
        wants.pop();
        wants.push(progress.want(source, Lsn(u64::MAX)).expect("room"));
        assert!(progress.is_wanted(source, Lsn(WAITERS_MAX as u64), Lsn(u64::MAX)));
        drop(wants);
        assert_eq!(progress.waiters(), 0);
        assert!(!progress.is_wanted(source, Lsn(0), Lsn(u64::MAX)));
    }
}
