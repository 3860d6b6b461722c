//! The timelines of the model's WAL: each promotion begins one, and what its server had not flushed is lost.
//!
//! Invariant: a timeline shares with its predecessor exactly the transactions that end at or below the point where it branched
//! off. So the first n transactions are the same on both, as long as n of them survived.

use std::{collections::BTreeMap, sync::Arc};

use mantle_types::{Lsn, message::DirectoryOp};

use crate::tree::Tree;

/// A committed transaction that changed directories, or one operation of a large one, with the positions of the whole.
#[derive(Clone)]
pub struct Transaction {
    /// Start of its commit record.
    pub commit_lsn: Lsn,
    /// End of its commit record.
    pub end_lsn: Lsn,
    pub ops: Vec<DirectoryOp>,
    /// All directories after it.
    pub after: Arc<Tree>,
}

/// A former timeline, as its last server had it.
struct Past {
    wal: Vec<Transaction>,
    switch: Lsn,
    survivors: usize,
}

pub struct Timelines {
    /// The current one.
    pub now: u32,
    first: Arc<Tree>,
    wal: Vec<Transaction>,
    past: BTreeMap<u32, Past>,
}

impl Timelines {
    /// The first timeline without a transaction. `first`: the directories before all transactions.
    pub fn new(first: Tree) -> Self {
        Self { now: 1, first: Arc::new(first), wal: Vec::new(), past: BTreeMap::new() }
    }

    /// The current timeline's transactions.
    pub fn wal(&self) -> &[Transaction] {
        &self.wal
    }

    pub fn push(&mut self, transaction: Transaction) {
        self.wal.push(transaction);
    }

    /// The transactions of a timeline, including those that it lost at its end.
    pub fn of(&self, timeline: u32) -> &[Transaction] {
        self.past.get(&timeline).map_or(&self.wal, |past| &past.wal)
    }

    /// How many transactions of a timeline committed at or below a position.
    pub fn committed_through(&self, timeline: u32, lsn: Lsn) -> usize {
        self.of(timeline).partition_point(|transaction| transaction.commit_lsn <= lsn)
    }

    /// All directories after this many transactions of a timeline.
    pub fn tree_after(&self, timeline: u32, transactions: usize) -> &Arc<Tree> {
        transactions.checked_sub(1).map_or(&self.first, |at| &self.of(timeline)[at].after)
    }

    /// Branches off a new timeline at a position. Everything that ends above it is lost.
    pub fn fork(&mut self, switch: Lsn) {
        let survivors = self.wal.partition_point(|transaction| transaction.end_lsn <= switch);
        let past = Past { wal: self.wal.clone(), switch, survivors };
        self.past.insert(self.now, past);
        self.wal.truncate(survivors);
        self.now += 1;
    }

    /// The former timelines, and where each ended.
    pub fn switch_points(&self) -> Vec<(u32, Lsn)> {
        self.past.iter().map(|(timeline, past)| (*timeline, past.switch)).collect()
    }

    /// Where a timeline ended, if it did.
    pub fn switch_of(&self, timeline: u32) -> Option<Lsn> {
        self.past.get(&timeline).map(|past| past.switch)
    }

    /// A position on a timeline, limited to what a later timeline has of it.
    pub fn position_on(&self, later: u32, from: u32, lsn: Lsn) -> Lsn {
        self.past.range(from..later.max(from)).fold(lsn, |lsn, (_, past)| lsn.min(past.switch))
    }

    /// How many of the first `transactions` of a timeline another one has.
    pub fn count_on(&self, other: u32, from: u32, transactions: usize) -> usize {
        let parted = self.past.range(from.min(other)..from.max(other));
        parted.fold(transactions, |count, (_, past)| count.min(past.survivors))
    }
}
