//! The questions and answers of clients, for the invariants about answers.
//!
//! Every event raises a counter, so `before` and `after` are exact.

use std::sync::Arc;

use mantle_types::{Caller, Lsn};
use parking_lot::Mutex;

use crate::{network::HostId, tree::Walk};

/// An answered lookup.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "client and replica are told when an answer is wrong")]
pub struct Lookup {
    pub client: usize,
    pub replica: HostId,
    /// Counter when it was asked.
    pub asked: u64,
    /// Counter when the answer arrived.
    pub answered: u64,
    /// The timeline whose transactions the answer is compared with.
    pub timeline: u32,
    /// Number of transactions acknowledged before it was asked. If its misses are final: that PostgreSQL showed before (P58).
    pub acknowledged: usize,
    /// Number of transactions that the answer may show.
    pub committed: usize,
    pub path: Vec<String>,
    pub caller: Caller,
    pub walk: Walk,
}

#[derive(Default)]
struct Inner {
    clock: u64,
    acknowledged: Lsn,
    acknowledgements: u64,
    lookups: Vec<Lookup>,
    failed: u64,
    settled: u64,
}

/// The history of one simulation; clones share it.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

impl History {
    /// The counter for an event that happens now.
    pub fn now(&self) -> u64 {
        let mut inner = self.0.lock();
        inner.clock += 1;
        inner.clock
    }

    /// A client was told that everything committed below a position is visible.
    pub fn acknowledge(&self, below: Lsn) {
        let mut inner = self.0.lock();
        inner.acknowledgements += 1;
        inner.acknowledged = inner.acknowledged.max(below);
    }

    /// PostgreSQL lost everything above a position.
    pub fn lose(&self, switch: Lsn) {
        let mut inner = self.0.lock();
        inner.acknowledged = inner.acknowledged.min(switch);
    }

    /// Everything committed below this was acknowledged to some client.
    pub fn acknowledged(&self) -> Lsn {
        self.0.lock().acknowledged
    }

    pub fn answered(&self, lookup: Lookup) {
        self.0.lock().lookups.push(lookup);
    }

    /// A lookup got no answer.
    pub fn failed(&self) {
        self.0.lock().failed += 1;
    }

    /// The misses of an answer are final.
    pub fn settled(&self) {
        self.0.lock().settled += 1;
    }

    /// All answered lookups, in the order of their answers.
    pub fn lookups(&self) -> Vec<Lookup> {
        self.0.lock().lookups.clone()
    }

    /// Number of answers whose misses are final.
    pub fn settled_count(&self) -> u64 {
        self.0.lock().settled
    }

    /// Numbers of answered lookups, of unanswered ones, and of acknowledgements.
    pub fn counts(&self) -> (usize, u64, u64) {
        let inner = self.0.lock();
        (inner.lookups.len(), inner.failed, inner.acknowledgements)
    }
}
