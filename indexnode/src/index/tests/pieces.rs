//! A transaction larger than a log entry (P28). Cut anywhere, started again by another leader, with snapshots in between, it
//! does what the whole does. No request finishes before all of it is applied.

use super::*;
use crate::{
    index::command::{Prepare, TransactionPiece},
    source::split::{entry_bytes, split},
};

const LARGE: Lsn = Lsn(20);

fn prepared() -> (Replica, u64) {
    let mut replica = Replica::new();
    let made = [record(1, "from", 2, 1), record(1, "to", 3, 1), record(2, "moved", 4, 1), record(3, "moved", 5, 1)];
    replica.stream(10, made.map(put).to_vec());
    let path = |path: &str| path.split('/').map(str::to_owned).collect();
    let applied = replica.apply(Command::Prepare(Prepare {
        request: key(1),
        namespace: "ns".to_owned(),
        source: path("from/moved"),
        destination: path("to/moved"),
        caller: root(),
        overwrite: true,
        remove: false,
        lock_ms: 100,
    }));
    let Applied::Prepared(Ok(prepared)) = applied else { panic!("{applied:?}") };
    (replica, prepared.attempt)
}

/// A rename over an empty directory, a directory that was made and removed, and another request's directory. The renamed one
/// comes first.
fn transaction(attempt: u64) -> Vec<DirectoryOp> {
    let moved = record(3, "moved", 4, 2);
    vec![
        caused(put(moved), key(1), attempt),
        caused(remove(record(3, "moved", 5, 2)), key(1), attempt),
        put(record(1, "passing", 6, 1)),
        remove(record(1, "passing", 6, 2)),
        caused(put(record(1, "made", 7, 1)), key(2), 0),
        put(record(7, "below", 8, 1)),
    ]
}

/// Applies the first pieces, or all. Returns the finished requests.
fn apply(replica: &mut Replica, pieces: &[Vec<DirectoryOp>], count: usize) -> Vec<RequestKey> {
    let mut finished = Vec::new();
    for (i, ops) in pieces.iter().take(count).enumerate() {
        let (commit_lsn, ops) = (LARGE, ops.clone());
        replica.apply(if i + 1 < pieces.len() {
            Command::TransactionPiece(TransactionPiece { source: SOURCE, commit_lsn, ops })
        } else {
            batch(SOURCE, vec![StreamTransaction { commit_lsn, ops }], Lsn(LARGE.0 + 1))
        });
        finished.extend(replica.effects.finished.iter().copied());
    }
    // An entry may repeat the last finished request of the one before: a request may have made two changes.
    finished.dedup();
    finished
}

/// Sizes of pieces, which cut the transaction at different places.
fn cuts(ops: &[DirectoryOp]) -> Vec<Vec<Vec<DirectoryOp>>> {
    let all: usize = ops.iter().map(entry_bytes).sum();
    let mut cuts: Vec<_> = (1..all + 200).map(|bytes_max| split(ops.to_vec(), bytes_max)).collect();
    cuts.dedup();
    assert!(cuts.len() > 5 && cuts.iter().any(|pieces| pieces.len() == 1));
    cuts
}

#[test]
fn a_transaction_cut_anywhere_and_begun_again_is_the_whole() {
    let (mut whole, attempt) = prepared();
    let ops = transaction(attempt);
    assert_eq!(apply(&mut whole, std::slice::from_ref(&ops), 1), [key(1), key(2)]);
    let cuts = cuts(&ops);
    for (first, again) in cuts.iter().flat_map(|first| cuts.iter().map(move |again| (first, again))) {
        for crash in 0..first.len() {
            let (mut replica, _) = prepared();
            let finished = apply(&mut replica, first, crash);
            let is_change = |op: &&DirectoryOp| matches!(op, DirectoryOp::Put { .. } | DirectoryOp::Remove { .. });
            if first[..crash].iter().flatten().filter(is_change).count() < ops.len() {
                assert_eq!(finished, [], "a part finishes no request");
                assert_eq!(replica.index.locks().len(), 1, "the lock is held");
            }
            assert_eq!(replica.index.applied_lsn(SOURCE), Lsn(10));
            let begun = if crash == 0 { Lsn(10) } else { LARGE };
            assert_eq!(replica.index.reached_lsn(SOURCE), begun, "a failover that loses it would be noticed");
            replica.restart();
            // The next leader may have to send the transaction before it again.
            replica.apply(batch(SOURCE, vec![], Lsn(11)));
            replica.restart();
            assert_eq!(apply(&mut replica, again, again.len()), [key(1), key(2)]);
            assert_eq!(replica.index.digest(), whole.index.digest());
            replica.log_index = whole.log_index;
            assert_eq!(State::of(&replica.index), State::of(&whole.index));
        }
    }
}

/// A directory that existed, and is removed by the part that is applied again, stays removed meanwhile.
#[test]
fn a_removal_by_a_fragment_holds_while_the_fragment_is_repeated() {
    let (mut replica, attempt) = prepared();
    let pieces = split(transaction(attempt), 120);
    let passing = |replica: &Replica| replica.id_of("passing");
    let gone = pieces
        .iter()
        .position(|ops| ops.iter().any(|op| matches!(op, DirectoryOp::Remove { record, .. } if record.id.0 == 6)));
    let gone = gone.unwrap() + 1;
    assert!(gone < pieces.len());
    apply(&mut replica, &pieces, gone);
    assert_eq!(passing(&replica), None);
    let before = replica.index.digest();
    replica.apply(batch(SOURCE, vec![], Lsn(11)));
    for ops in &pieces[..gone] {
        let (commit_lsn, ops) = (LARGE, ops.clone());
        replica.apply(Command::TransactionPiece(TransactionPiece { source: SOURCE, commit_lsn, ops }));
        assert_eq!((passing(&replica), replica.index.digest()), (None, before));
    }
}

/// Pieces of a transaction that is applied already, or is in the copy, change nothing.
#[test]
fn pieces_of_what_is_applied_are_dropped() {
    let mut replica = Replica::new();
    replica.stream(30, vec![put(record(1, "a", 2, 3))]);
    let piece = |commit_lsn, ops| {
        Command::TransactionPiece(TransactionPiece { source: SOURCE, commit_lsn: Lsn(commit_lsn), ops })
    };
    replica.apply(piece(30, vec![put(record(1, "b", 2, 4))]));
    assert_eq!((replica.id_of("a"), replica.index.reached_lsn(SOURCE)), (Some(2), Lsn(30)));
    replica.apply(Command::TransactionPiece(TransactionPiece {
        source: SourceId(9),
        commit_lsn: Lsn(40),
        ops: vec![put(record(1, "b", 2, 4))],
    }));
    assert_eq!(replica.id_of("a"), Some(2), "a source that the group does not read");
    replica.apply(piece(40, vec![put(record(1, "b", 2, 4))]));
    assert_eq!((replica.id_of("b"), replica.index.reached_lsn(SOURCE)), (Some(2), Lsn(40)));
    // The end may bring all operations again, and change nothing.
    replica.stream(40, vec![put(record(1, "b", 2, 4))]);
    assert_eq!((replica.index.applied_lsn(SOURCE), replica.index.reached_lsn(SOURCE)), (Lsn(40), Lsn(40)));
}
