//! Splits a transaction that is too large for one entry of the Raft log into pieces (P37).
//!
//! The next leader may propose the transaction again from its beginning, cut elsewhere: versions decide between puts and
//! removals, so applying them again changes nothing.

use mantle_types::message::DirectoryOp;

/// Upper bound of an operation's size in an entry without its name, in bytes.
const RECORD_BYTES_MAX: usize = 104;
/// The same for an operation without a record.
const DONE_BYTES_MAX: usize = 56;

/// Upper bound of an operation's size in an entry, in bytes.
pub fn entry_bytes(op: &DirectoryOp) -> usize {
    match op {
        DirectoryOp::Put { record, .. } | DirectoryOp::Remove { record, .. } => RECORD_BYTES_MAX + record.name.len(),
        DirectoryOp::Done { .. } | DirectoryOp::PartDone { .. } => DONE_BYTES_MAX,
    }
}

/// The pieces of a transaction in order; one if it fits. A piece exceeds `bytes_max` only if it is a single operation.
pub fn split(ops: Vec<DirectoryOp>, bytes_max: usize) -> Vec<Vec<DirectoryOp>> {
    if ops.iter().map(entry_bytes).sum::<usize>() <= bytes_max {
        return vec![ops];
    }
    let mut pieces = vec![Vec::new()];
    let mut bytes = 0;
    for op in requests_last(ops) {
        let more = entry_bytes(&op);
        if bytes > 0 && bytes + more > bytes_max {
            pieces.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        pieces.last_mut().expect("there is a first piece").push(op);
    }
    pieces
}

/// The same operations, with those that finish requests at the end.
fn requests_last(ops: Vec<DirectoryOp>) -> impl Iterator<Item = DirectoryOp> {
    let (mut changes, mut done) = (Vec::with_capacity(ops.len()), Vec::new());
    for op in ops {
        let cause = match op {
            DirectoryOp::Put { record, cause } => {
                changes.push(DirectoryOp::Put { record, cause: None });
                cause
            }
            DirectoryOp::Remove { record, cause } => {
                changes.push(DirectoryOp::Remove { record, cause: None });
                cause
            }
            finishing => {
                done.push(finishing);
                None
            }
        };
        done.extend(cause.map(|cause| DirectoryOp::Done { cause }));
    }
    changes.into_iter().chain(done)
}

#[cfg(test)]
mod tests {
    use mantle_types::{
        DirectoryId, NamespaceId, PartitionId, Permission, RequestKey,
        message::{Cause, DirectoryRecord},
    };
    use uuid::Uuid;

    use super::*;

    fn largest_numbers(name: &str) -> [DirectoryOp; 4] {
        let permission = Permission { owner: u32::MAX, group: u32::MAX, mode: u16::MAX };
        let (pid, id) = (PartitionId(u64::MAX), DirectoryId(u64::MAX));
        let record = DirectoryRecord {
            ns: NamespaceId(u64::MAX),
            pid,
            name: name.to_owned(),
            id,
            version: u64::MAX,
            permission,
        };
        let request = RequestKey { principal: u32::MAX, ns: NamespaceId(u64::MAX), id: Uuid::max() };
        let cause = Cause { request, attempt: u64::MAX };
        [
            DirectoryOp::Put { record: record.clone(), cause: Some(cause) },
            DirectoryOp::Remove { record, cause: Some(cause) },
            DirectoryOp::Done { cause },
            DirectoryOp::PartDone { pid, cause },
        ]
    }

    #[test]
    fn no_operation_takes_more_in_an_entry_than_is_counted() {
        for op in ["", &"n".repeat(255)].into_iter().flat_map(largest_numbers) {
            let taken = postcard::to_stdvec(&op).unwrap().len();
            assert!(taken <= entry_bytes(&op), "{op:?} takes {taken}");
        }
    }

    #[test]
    fn pieces_are_no_larger_than_they_may_be_and_finish_requests_last() {
        let ops: Vec<DirectoryOp> = (0..50).flat_map(|n| largest_numbers(&format!("name {n}"))).collect();
        assert_eq!(split(ops.clone(), usize::MAX), std::slice::from_ref(&ops));
        for bytes_max in [1, 300, 1000, 5000] {
            let pieces = split(ops.clone(), bytes_max);
            let bytes = |piece: &Vec<DirectoryOp>| piece.iter().map(entry_bytes).sum::<usize>();
            assert!(pieces.iter().all(|piece| !piece.is_empty() && (piece.len() == 1 || bytes(piece) <= bytes_max)));
            let all = pieces.concat();
            let is_change = |op: &DirectoryOp| matches!(op, DirectoryOp::Put { .. } | DirectoryOp::Remove { .. });
            let changes = all.iter().take_while(|op| is_change(op) && op.cause().is_none()).count();
            assert_eq!(changes, 100, "the changes come first");
            assert_eq!(all.len(), 300, "each put, removal, done and done part, and what two of four finished");
            assert!(!all[changes..].iter().any(is_change));
        }
    }
}
