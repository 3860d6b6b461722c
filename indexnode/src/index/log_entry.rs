//! An entry of the Raft log that is applied in parts, and the position of the next operation in it.

use mantle_types::message::{DirectoryOp, DirectoryRecord};

use super::{
    command::{Command, SourceBatch, StreamTransaction},
    tree::Tree,
};

/// Most records to prefetch for together: more would evict each other from the processor's first-level cache.
const PREFETCHED_RECORDS_MAX: usize = 64;

/// An entry of the Raft log that is being applied.
#[derive(Debug)]
pub struct LogEntry {
    pub(super) log_index: u64,
    pub(super) command: Command,
    pub(super) cursor: Cursor,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub batch: usize,
    pub transaction: usize,
    pub operation: usize,
}

impl Cursor {
    pub(super) fn next_transaction(&mut self) {
        *self = Self { transaction: self.transaction + 1, operation: 0, ..*self };
    }

    /// Applies the next items to a tree, if there is one. Tells whether they were the last.
    pub(super) fn apply_next<T>(
        &mut self,
        items: &[T],
        operations_max: usize,
        tree: Option<&mut Tree>,
        apply: impl Fn(&mut Tree, &T),
    ) -> bool {
        let end = items.len().min(self.operation.saturating_add(operations_max.max(1)));
        if let Some(tree) = tree {
            items[self.operation..end].iter().for_each(|item| apply(tree, item));
        }
        self.operation = end;
        end == items.len()
    }

    /// The remaining operations of the transaction, the batch's transactions after it, and the batches after that.
    fn remaining<'b>(
        &self,
        batches: &'b [SourceBatch],
    ) -> (&'b [DirectoryOp], &'b [StreamTransaction], &'b [SourceBatch]) {
        let Some((batch, batches)) = batches.get(self.batch..).and_then(<[_]>::split_first) else {
            return Default::default();
        };
        match batch.transactions.get(self.transaction..).and_then(<[_]>::split_first) {
            Some((transaction, rest)) => (&transaction.ops[self.operation..], rest, batches),
            None => (&[], &[], batches),
        }
    }

    pub(super) fn next_batch(&mut self) {
        *self = Self { batch: self.batch + 1, transaction: 0, operation: 0 };
    }
}

impl LogEntry {
    /// An entry before its first operation.
    pub fn new(log_index: u64, command: Command) -> Self {
        Self { log_index, command, cursor: Cursor::default() }
    }

    /// The records of the next part, at most [`PREFETCHED_RECORDS_MAX`]. An estimate: it does not read the index.
    pub(super) fn next_records(&self, operations_max: usize) -> impl Iterator<Item = &DirectoryRecord> + Clone {
        let (records, (ops, transactions, batches)): (&[_], _) = match &self.command {
            Command::RebuildChunk { records } | Command::CopyChunk { records, .. } => {
                (&records[self.cursor.operation..], Default::default())
            }
            Command::TransactionPiece(piece) => {
                (&[], (&piece.ops[self.cursor.operation..], Default::default(), Default::default()))
            }
            Command::Stream(batches) => (&[], self.cursor.remaining(batches)),
            _ => Default::default(),
        };
        let transactions = transactions.iter().chain(batches.iter().flat_map(|batch| &batch.transactions));
        let count = operations_max.min(PREFETCHED_RECORDS_MAX);
        // Limits the operations, not the records: most operations may have no record.
        let ops = ops.iter().chain(transactions.flat_map(|transaction| &transaction.ops)).take(count);
        records.iter().take(count).chain(ops.filter_map(DirectoryOp::record))
    }
}
