//! The histories of the model's WAL: each promotion begins a timeline, and what its server had not flushed is lost.
//!
//! Invariant: a timeline shares with the one before it exactly the transactions that end at or below the point where it
//! left it. So a number of transactions means the same on both, as long as that many survived.

use std::{collections::BTreeMap, sync::Arc};

use mantle_types::{Lsn, message::DirectoryOp};

use crate::tree::Tree;

/// A committed transaction that changed directories; or one operation of a large one, which has the positions of all of it.
#[derive(Clone)]
pub struct Transaction {
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// One past it.
    pub end_lsn: Lsn,
    /// What it did.
    pub ops: Vec<DirectoryOp>,
    /// All directories after it.
    pub after: Arc<Tree>,
}

/// A timeline that was left, as its last server had it.
struct Past {
    wal: Vec<Transaction>,
    switch: Lsn,
    survivors: usize,
}

/// All timelines.
pub struct Timelines {
    /// The one that is written to.
    pub now: u32,
    first: Arc<Tree>,
    wal: Vec<Transaction>,
    past: BTreeMap<u32, Past>,
}

impl Timelines {
    /// The first one, without a transaction; before it there was `first`.
    pub fn new(first: Tree) -> Self {
        Self { now: 1, first: Arc::new(first), wal: Vec::new(), past: BTreeMap::new() }
    }

    /// The transactions now.
    pub fn wal(&self) -> &[Transaction] {
        &self.wal
    }

    /// One more.
    pub fn push(&mut self, transaction: Transaction) {
        self.wal.push(transaction);
    }

    /// The transactions of a timeline, those it lost in the end included.
    pub fn of(&self, timeline: u32) -> &[Transaction] {
        self.past.get(&timeline).map_or(&self.wal, |past| &past.wal)
    }

    /// How many transactions of a timeline committed at or below a position.
    pub fn committed_through(&self, timeline: u32, lsn: Lsn) -> usize {
        self.of(timeline).partition_point(|transaction| transaction.commit_lsn <= lsn)
    }

    /// All directories after that many transactions of a timeline.
    pub fn tree_after(&self, timeline: u32, transactions: usize) -> &Arc<Tree> {
        transactions.checked_sub(1).map_or(&self.first, |at| &self.of(timeline)[at].after)
    }

    /// Leaves the timeline at a position; what ends above it is lost.
    pub fn fork(&mut self, switch: Lsn) {
        let survivors = self.wal.partition_point(|transaction| transaction.end_lsn <= switch);
        let past = Past { wal: self.wal.clone(), switch, survivors };
        self.past.insert(self.now, past);
        self.wal.truncate(survivors);
        self.now += 1;
    }

    /// The timelines that this one descends from, and where each was left.
    pub fn switch_points(&self) -> Vec<(u32, Lsn)> {
        self.past.iter().map(|(timeline, past)| (*timeline, past.switch)).collect()
    }

    /// Where a timeline was left, if it was.
    pub fn switch_of(&self, timeline: u32) -> Option<Lsn> {
        self.past.get(&timeline).map(|past| past.switch)
    }

    /// A position on a timeline, as far as a later one has it.
    pub fn position_on(&self, later: u32, from: u32, lsn: Lsn) -> Lsn {
        self.past.range(from..later.max(from)).fold(lsn, |lsn, (_, past)| lsn.min(past.switch))
    }

    /// Of that many transactions of a timeline, how many another has.
    pub fn count_on(&self, other: u32, from: u32, transactions: usize) -> usize {
        let parted = self.past.range(from.min(other)..from.max(other));
        parted.fold(transactions, |count, (_, past)| count.min(past.survivors))
    }
}
