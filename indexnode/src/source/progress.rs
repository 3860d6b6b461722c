//! What the leader's stream and the waiters for a position tell each other.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use mantle_types::{Error, ErrorCode, Lsn, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Most waiters for positions at once.
const WAITERS_MAX: usize = 65_536;

/// Shared between the stream and the services of one replica.
#[derive(Default)]
pub struct StreamProgress {
    received: AtomicU64,
    proposals: AtomicU64,
    is_streaming: AtomicBool,
    wanted: Mutex<Wanted>,
    /// Wakes the stream when a position is wanted.
    pub wake: Notify,
}

#[derive(Default)]
struct Wanted {
    positions: BTreeMap<u64, usize>,
    waiters: usize,
}

impl StreamProgress {
    /// Everything committed below this has been received.
    pub fn received(&self) -> Lsn {
        Lsn(self.received.load(Ordering::Relaxed))
    }

    /// Records a received position.
    pub fn set_received(&self, lsn: Lsn) {
        self.received.fetch_max(lsn.0, Ordering::Relaxed);
    }

    /// Stream entries proposed by this process.
    pub fn proposals(&self) -> u64 {
        self.proposals.load(Ordering::Relaxed)
    }

    /// Counts a proposal.
    pub fn count_proposal(&self) {
        self.proposals.fetch_add(1, Ordering::Relaxed);
    }

    /// Is the slot being read?
    pub fn is_streaming(&self) -> bool {
        self.is_streaming.load(Ordering::Relaxed)
    }

    /// Marks the slot as being read until the guard is dropped.
    pub fn streaming(&self) -> Streaming<'_> {
        self.is_streaming.store(true, Ordering::Relaxed);
        Streaming { progress: self }
    }

    /// Registers a wait for a position, so that the stream proposes it even when no directory changed.
    pub fn want(&self, lsn: Lsn) -> Result<Want<'_>> {
        {
            let mut wanted = self.wanted.lock();
            if wanted.waiters == WAITERS_MAX {
                return Err(Error::new(ErrorCode::AwaitTimeout, "too many positions are waited for"));
            }
            wanted.waiters += 1;
            *wanted.positions.entry(lsn.0).or_default() += 1;
        }
        self.wake.notify_one();
        Ok(Want { progress: self, lsn })
    }

    /// Is a position wanted that lies above `applied`, and not above `received`?
    pub fn is_wanted(&self, applied: Lsn, received: Lsn) -> bool {
        applied < received && self.wanted.lock().positions.range(applied.0 + 1..=received.0).next().is_some()
    }

    /// Waiters now.
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
    }
}

/// See [`StreamProgress::want`].
pub struct Want<'a> {
    progress: &'a StreamProgress,
    lsn: Lsn,
}

impl Drop for Want<'_> {
    fn drop(&mut self) {
        let mut wanted = self.progress.wanted.lock();
        wanted.waiters -= 1;
        if let Some(count) = wanted.positions.get_mut(&self.lsn.0) {
            *count -= 1;
            if *count == 0 {
                wanted.positions.remove(&self.lsn.0);
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
        let want = progress.want(Lsn(10)).unwrap();
        assert!(progress.is_wanted(Lsn(9), Lsn(10)));
        assert!(!progress.is_wanted(Lsn(10), Lsn(20)), "applied already");
        assert!(!progress.is_wanted(Lsn(5), Lsn(9)), "not received yet");
        drop(want);
        assert!(!progress.is_wanted(Lsn(9), Lsn(10)));
        assert_eq!(progress.waiters(), 0);
    }
}
