//! The records that are prefetched for a part are those that it applies.

use super::*;
use crate::index::command::{SourceBatch, TransactionPiece};

const DIRECTORIES: u64 = 20;

fn op(number: u64) -> DirectoryOp {
    put(record(1, &format!("d{number}"), 100 + number, 1))
}

fn transaction(commit_lsn: u64, numbers: std::ops::Range<u64>) -> StreamTransaction {
    StreamTransaction { commit_lsn: Lsn(commit_lsn), ops: numbers.map(op).collect() }
}

/// Entries that make the same directories in the same order.
fn entries() -> [Command; 3] {
    let first = [transaction(10, 0..1), transaction(11, 1..8), transaction(12, 8..9)];
    let last = [transaction(14, 9..11), transaction(15, 11..DIRECTORIES)];
    let batch = |transactions: &[StreamTransaction], position| SourceBatch {
        source: SOURCE,
        transactions: transactions.to_vec(),
        position: Lsn(position),
    };
    let ops: Vec<_> = (0..DIRECTORIES).map(op).collect();
    [
        Command::Stream(vec![batch(&first, 13), batch(&[], 14), batch(&last, 16)]),
        Command::TransactionPiece(TransactionPiece { source: SOURCE, commit_lsn: Lsn(10), ops: ops.clone() }),
        Command::RebuildChunk { records: ops.iter().filter_map(DirectoryOp::record).cloned().collect() },
    ]
}

#[test]
fn prefetched_records_are_the_ones_applied_next() {
    for (command, part) in
        entries().into_iter().flat_map(|command| [1, 2, 3, 5, 64].map(|part| (command.clone(), part)))
    {
        let mut replica = Replica::new();
        if let Command::RebuildChunk { .. } = command {
            replica.begin(2, false);
        }
        let mut entry = LogEntry::new(9, command);
        let mut next = 0;
        let applied = loop {
            let ahead: Vec<u64> = entry.next_records(part).map(|record| record.id.0 - 100).collect();
            // As many as fit, in order. The part may end before them, at the end of a transaction.
            assert_eq!(ahead, (next..DIRECTORIES).take(part).collect::<Vec<_>>(), "{entry:?}, {part} at a time");
            let applied = replica.index.apply_part(&mut entry, part, &mut replica.effects);
            let of_a_rebuild = replica.index.rebuild.is_some();
            let tree = if of_a_rebuild { &replica.index.rebuild } else { &replica.index.serving };
            let is_there = |number: &u64| tree.as_ref().unwrap().table.get(DirectoryId(100 + number)).is_some();
            next = (0..DIRECTORIES).take_while(is_there).count() as u64;
            if let Some(applied) = applied {
                break applied;
            }
        };
        assert!(matches!(applied, Applied::Done));
        assert_eq!(next, DIRECTORIES);
    }
}
