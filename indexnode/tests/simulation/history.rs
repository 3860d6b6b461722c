//! What clients asked and heard, for the invariants that are about answers.
//!
//! Order is by a counter that every event raises: `before` and `after` are exact.

use std::sync::Arc;

use mantle_types::{Caller, Lsn};
use parking_lot::Mutex;

use crate::{network::HostId, tree::Walk};

/// A lookup that was answered.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "client and replica are told when an answer is wrong")]
pub struct Lookup {
    /// Who asked.
    pub client: usize,
    /// Who answered.
    pub replica: HostId,
    /// When it was asked.
    pub asked: u64,
    /// When the answer came.
    pub answered: u64,
    /// The timeline whose transactions it is judged by.
    pub timeline: u32,
    /// Transactions that had been acknowledged before it was asked.
    pub acknowledged: usize,
    /// Transactions that might be shown when the answer came.
    pub committed: usize,
    /// What was asked for.
    pub path: Vec<String>,
    /// As whom.
    pub caller: Caller,
    /// The answer.
    pub walk: Walk,
}

#[derive(Default)]
struct Inner {
    clock: u64,
    acknowledged: Lsn,
    acknowledgements: u64,
    lookups: Vec<Lookup>,
    failed: u64,
}

/// The history; clones share it.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

impl History {
    /// The time of an event that happens now.
    pub fn now(&self) -> u64 {
        let mut inner = self.0.lock();
        inner.clock += 1;
        inner.clock
    }

    /// A client heard that everything committed below a position is visible.
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

    /// What any client has been told to be visible: everything committed below.
    pub fn acknowledged(&self) -> Lsn {
        self.0.lock().acknowledged
    }

    /// A lookup was answered.
    pub fn answered(&self, lookup: Lookup) {
        self.0.lock().lookups.push(lookup);
    }

    /// A lookup was not.
    pub fn failed(&self) {
        self.0.lock().failed += 1;
    }

    /// All answered lookups, in the order of their answers.
    pub fn lookups(&self) -> Vec<Lookup> {
        self.0.lock().lookups.clone()
    }

    /// Answered lookups, those without an answer, acknowledgements.
    pub fn counts(&self) -> (usize, u64, u64) {
        let inner = self.0.lock();
        (inner.lookups.len(), inner.failed, inner.acknowledgements)
    }
}
