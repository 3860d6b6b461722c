//! Transactions received from one source, in commit order, until they are proposed. A transaction that is larger than a
//! log entry may be is taken in pieces (P37).
//!
//! Invariant: `released ≤ received`. A transaction, or a piece of it, is taken only when its end is at or below the gate's
//! position (P5). No batch has a position above a transaction of which a piece is left.

use std::collections::VecDeque;

use mantle_types::{
    Lsn,
    message::{self, DirectoryOp, MESSAGE_PREFIX},
};
use pgwire_replication::ReplicationEvent;

use super::{
    retrace::Retrace,
    split::{entry_bytes, split},
};
use crate::index::command::{SourceBatch, SourceId, StreamTransaction, TransactionPiece};

/// A transaction is kept in memory until its end has arrived. A larger one is not read to its end: the index is rebuilt
/// instead, which copies in small parts.
const TRANSACTION_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    #[error("a message of the change stream is not understood: {0}")]
    Unknown(#[from] message::DecodeError),
    #[error("a transaction has more than {TRANSACTION_BYTES_MAX} bytes of changes to directories")]
    TooLarge,
    #[error("PostgreSQL has another history than the index: {0}")]
    OtherHistory(String),
}

/// A transaction, or a piece of a large one.
struct Arrived {
    transaction: StreamTransaction,
    /// Where the commit record ends.
    end: Lsn,
    bytes: usize,
    /// True if more pieces of the same transaction follow.
    is_piece: bool,
}

pub struct Backlog {
    source: SourceId,
    /// The operations, and their bytes, of the transaction whose end has not arrived.
    open: Option<(Vec<DirectoryOp>, usize)>,
    arrived: VecDeque<Arrived>,
    bytes: usize,
    received: Lsn,
    gate: Lsn,
    entry_bytes_max: usize,
    /// What the server must send before it is trusted.
    retrace: Retrace,
}

impl Backlog {
    /// An empty backlog with its gate at `start`. A transaction of more than `entry_bytes_max` is split.
    pub fn new(source: SourceId, start: Lsn, entry_bytes_max: usize) -> Self {
        let (open, arrived, retrace) = (None, VecDeque::new(), Retrace::default());
        Self { source, open, arrived, bytes: 0, received: start, gate: start, entry_bytes_max, retrace }
    }

    /// The same for a server that has to show something first.
    pub fn retracing(self, retrace: Retrace) -> Self {
        Self { retrace, ..self }
    }

    pub fn take_in(&mut self, event: ReplicationEvent) -> Result<(), Refused> {
        match event {
            ReplicationEvent::Begin { .. } => self.open = Some((Vec::new(), 0)),
            ReplicationEvent::Message { transactional: true, prefix, content, .. } if prefix == MESSAGE_PREFIX => {
                let decoded = message::decode(&content)?;
                if let Some((ops, bytes)) = &mut self.open {
                    *bytes += decoded.iter().map(entry_bytes).sum::<usize>();
                    if *bytes > TRANSACTION_BYTES_MAX {
                        return Err(Refused::TooLarge);
                    }
                    ops.extend(decoded);
                }
            }
            ReplicationEvent::Commit { lsn, end_lsn, .. } => {
                let (ops, _) = self.open.take().unwrap_or_default();
                let end = Lsn(end_lsn.0);
                if !ops.is_empty() && self.retrace.transaction(Lsn(lsn.0), &ops).map_err(Refused::OtherHistory)? {
                    self.arrive(Lsn(lsn.0), end, ops);
                }
                self.pass(end)?;
            }
            // Outside a transaction, the server has sent everything below its position.
            ReplicationEvent::KeepAlive { wal_end, .. } if self.open.is_none() => {
                self.pass(Lsn(wal_end.0))?;
            }
            // Messages of other programs or outside transactions (P6), and events that an empty publication never sends.
            _ => {}
        }
        Ok(())
    }

    /// Notes that everything below a position has arrived.
    fn pass(&mut self, position: Lsn) -> Result<(), Refused> {
        self.retrace.position(position).map_err(Refused::OtherHistory)?;
        self.received = self.received.max(position);
        Ok(())
    }

    fn arrive(&mut self, commit_lsn: Lsn, end: Lsn, ops: Vec<DirectoryOp>) {
        let mut pieces = split(ops, self.entry_bytes_max).into_iter().peekable();
        while let Some(ops) = pieces.next() {
            let bytes = ops.iter().map(entry_bytes).sum();
            let transaction = StreamTransaction { commit_lsn, ops };
            self.arrived.push_back(Arrived { transaction, end, bytes, is_piece: pieces.peek().is_some() });
            self.bytes += bytes;
        }
    }

    /// Everything committed below this has arrived.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// Everything committed below this was taken, or changed no directory. Nothing, as long as the server may be another.
    pub fn covered(&self) -> Lsn {
        if !self.retrace.is_over() {
            return Lsn::INVALID;
        }
        self.arrived.front().map_or(self.received, |first| first.transaction.commit_lsn.min(self.received))
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Moves the gate: transactions that end at or below `flushed` may be taken.
    pub fn open_gate(&mut self, flushed: Lsn) {
        self.gate = self.gate.max(flushed);
    }

    /// True if a transaction waits behind the gate.
    pub fn is_held(&self) -> bool {
        self.arrived.back().is_some_and(|last| last.end > self.gate)
    }

    /// Everything committed below this has arrived and may be proposed.
    pub fn released(&self) -> Lsn {
        let held = self.arrived.get(self.arrived.partition_point(|arrived| arrived.end <= self.gate));
        // If the gate lies within a commit record, that transaction is not released.
        let first_held = held.map_or(Lsn(u64::MAX), |held| held.transaction.commit_lsn);
        self.received.min(self.gate).min(first_held)
    }

    pub fn has_transactions(&self) -> bool {
        self.arrived.front().is_some_and(|first| first.end <= self.gate)
    }

    /// True if the next transaction fits into the rest of an entry, or there is none. A piece never fits.
    pub fn is_next_within(&self, bytes_left: usize) -> bool {
        let next = self.arrived.front().filter(|first| first.end <= self.gate);
        next.is_none_or(|first| first.bytes <= bytes_left && !first.is_piece)
    }

    /// The next piece of a large transaction, to be proposed alone.
    pub fn take_piece(&mut self) -> Option<TransactionPiece> {
        let gate = self.gate;
        let piece = self.arrived.pop_front_if(|first| first.is_piece && first.end <= gate)?;
        self.bytes -= piece.bytes;
        let StreamTransaction { commit_lsn, ops } = piece.transaction;
        Some(TransactionPiece { source: self.source, commit_lsn, ops })
    }

    /// Takes whole transactions, or the last piece of one, up to `bytes_max` (the first may be larger), until a piece is next.
    /// Returns them and their bytes.
    pub fn take(&mut self, bytes_max: usize) -> (SourceBatch, usize) {
        let (mut transactions, mut bytes) = (Vec::new(), 0);
        let mut position = None;
        while let Some(first) = self.arrived.pop_front_if(|first| first.end <= self.gate && !first.is_piece) {
            bytes += first.bytes;
            transactions.push(first.transaction);
            let next = self.arrived.front().filter(|next| next.end <= self.gate);
            if next.is_some_and(|next| next.is_piece || bytes + next.bytes > bytes_max) {
                position = Some(first.end);
                break;
            }
        }
        self.bytes -= bytes;
        let position = position.unwrap_or_else(|| self.released());
        (SourceBatch { source: self.source, transactions, position }, bytes)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use mantle_types::{NamespaceId, RequestKey, limits::MESSAGE_OPS_MAX, message::Cause};
    use uuid::Uuid;

    use super::*;

    const ENTRY_BYTES_MAX: usize = 4 << 20;

    fn op(n: u128) -> DirectoryOp {
        let request = RequestKey { principal: 1, ns: NamespaceId(1), id: Uuid::from_u128(n) };
        DirectoryOp::Done { cause: Cause { request, attempt: 0 } }
    }

    fn lsn(n: u64) -> pgwire_replication::Lsn {
        pgwire_replication::Lsn(n)
    }

    fn message(prefix: &str, transactional: bool, content: Vec<u8>) -> ReplicationEvent {
        let content = Bytes::from(content);
        ReplicationEvent::Message { transactional, lsn: lsn(0), prefix: prefix.to_owned(), content }
    }

    fn begin(commit: u64) -> ReplicationEvent {
        ReplicationEvent::Begin { final_lsn: lsn(commit), xid: 1, commit_time_micros: 0 }
    }

    /// Adds a transaction of so many requests.
    pub fn arrived(backlog: &mut Backlog, commit: u64, requests: usize) {
        transaction(backlog, commit, &(0..requests as u128).map(op).collect::<Vec<_>>());
    }

    /// Its commit record takes eight bytes.
    fn transaction(backlog: &mut Backlog, commit: u64, ops: &[DirectoryOp]) {
        backlog.take_in(begin(commit)).unwrap();
        for ops in ops.chunks(MESSAGE_OPS_MAX) {
            backlog.take_in(message(MESSAGE_PREFIX, true, message::encode(ops))).unwrap();
        }
        let event = ReplicationEvent::Commit { lsn: lsn(commit), end_lsn: lsn(commit + 8), commit_time_micros: 0 };
        backlog.take_in(event).unwrap();
    }

    fn keep_alive(backlog: &mut Backlog, wal_end: u64) {
        let event =
            ReplicationEvent::KeepAlive { wal_end: lsn(wal_end), reply_requested: false, server_time_micros: 0 };
        backlog.take_in(event).unwrap();
    }

    fn open() -> Backlog {
        let mut backlog = Backlog::new(SourceId(0), Lsn(0), ENTRY_BYTES_MAX);
        backlog.open_gate(Lsn(u64::MAX));
        backlog
    }

    fn taken(backlog: &mut Backlog) -> (Vec<u64>, u64) {
        let (batch, _) = backlog.take(ENTRY_BYTES_MAX);
        (batch.transactions.iter().map(|t| t.commit_lsn.0).collect(), batch.position.0)
    }

    #[test]
    fn all_that_has_arrived_is_taken_together() {
        let mut backlog = open();
        transaction(&mut backlog, 100, &[op(1), op(2)]);
        transaction(&mut backlog, 200, &[op(3)]);
        keep_alive(&mut backlog, 300);
        assert_eq!(taken(&mut backlog), (vec![100, 200], 300));
        assert!(!backlog.has_transactions());
        assert_eq!(backlog.bytes(), 0);
    }

    /// P58.
    #[test]
    fn what_is_covered_ends_before_what_waits() {
        let mut backlog = Backlog::new(SourceId(0), Lsn(50), ENTRY_BYTES_MAX);
        keep_alive(&mut backlog, 90);
        assert_eq!(backlog.covered(), Lsn(90));
        backlog.take_in(begin(100)).unwrap();
        keep_alive(&mut backlog, 108);
        assert_eq!(backlog.covered(), Lsn(90), "of a transaction that is open nothing is applied");
        transaction(&mut backlog, 100, &[op(1)]);
        transaction(&mut backlog, 200, &[op(2)]);
        keep_alive(&mut backlog, 300);
        assert_eq!(backlog.covered(), Lsn(100));
        // The standby has the first transaction.
        backlog.open_gate(Lsn(108));
        taken(&mut backlog);
        assert_eq!(backlog.covered(), Lsn(200));
        backlog.open_gate(Lsn(208));
        taken(&mut backlog);
        assert_eq!(backlog.covered(), Lsn(300), "what changes no directory waits for no standby");
    }

    #[test]
    fn an_open_transaction_holds_the_position_back() {
        let mut backlog = open();
        backlog.take_in(begin(100)).unwrap();
        keep_alive(&mut backlog, 500);
        assert_eq!((backlog.received(), backlog.has_transactions()), (Lsn(0), false));
    }

    #[test]
    fn foreign_messages_are_ignored_and_broken_ones_reported() {
        let mut backlog = open();
        backlog.take_in(begin(100)).unwrap();
        backlog.take_in(message("other", true, vec![0xff])).unwrap();
        backlog.take_in(message(MESSAGE_PREFIX, false, vec![0xff])).unwrap();
        assert!(backlog.take_in(message(MESSAGE_PREFIX, true, vec![0xff])).is_err());
    }

    #[test]
    fn a_large_backlog_is_cut_between_transactions() {
        let mut backlog = open();
        let ops: Vec<_> = (0..60_000).map(op).collect();
        for i in 1..=8 {
            transaction(&mut backlog, i * 100, &ops);
        }
        let mut ends = Vec::new();
        while backlog.has_transactions() {
            ends.push(taken(&mut backlog).1);
        }
        assert!(ends.len() > 1, "eight transactions of more than a megabyte do not fit into one entry");
        assert!(ends.is_sorted());
        assert_eq!(ends.last(), Some(&808));
    }

    #[test]
    fn a_large_transaction_goes_in_pieces_and_the_position_with_the_last() {
        let mut backlog = open();
        backlog.entry_bytes_max = 10 * entry_bytes(&op(1));
        transaction(&mut backlog, 100, &[op(1)]);
        let large: Vec<_> = (0..25).map(op).collect();
        transaction(&mut backlog, 200, &large);
        transaction(&mut backlog, 300, &[op(2)]);
        keep_alive(&mut backlog, 400);
        assert!(backlog.take_piece().is_none());
        assert_eq!(taken(&mut backlog), (vec![100], 108));
        let pieces: Vec<_> = std::iter::from_fn(|| backlog.take_piece()).collect();
        assert!(pieces.iter().all(|piece| piece.commit_lsn == Lsn(200) && piece.source == SourceId(0)));
        assert_eq!(pieces.iter().map(|piece| piece.ops.len()).collect::<Vec<_>>(), [10, 10]);
        let (rest, _) = backlog.take(ENTRY_BYTES_MAX);
        assert_eq!((rest.transactions.len(), rest.position, backlog.bytes()), (2, Lsn(400), 0));
        let mut ops: Vec<_> = pieces.into_iter().flat_map(|piece| piece.ops).collect();
        ops.extend(rest.transactions[0].ops.clone());
        assert_eq!(ops, large);
    }

    #[test]
    fn no_piece_passes_the_gate_before_the_transaction_does() {
        let mut backlog = Backlog::new(SourceId(0), Lsn(50), ENTRY_BYTES_MAX);
        backlog.entry_bytes_max = 1;
        transaction(&mut backlog, 100, &[op(1), op(2)]);
        backlog.open_gate(Lsn(104));
        assert!(backlog.take_piece().is_none() && backlog.is_next_within(0) && backlog.is_held());
        backlog.open_gate(Lsn(108));
        assert!(!backlog.is_next_within(ENTRY_BYTES_MAX));
        assert!(backlog.take_piece().is_some() && backlog.take_piece().is_none());
        assert_eq!(taken(&mut backlog), (vec![100], 108));
    }

    #[test]
    fn a_transaction_over_the_memory_limit_is_refused() {
        let mut backlog = open();
        backlog.take_in(begin(100)).unwrap();
        let content = message::encode(&(0..60_000).map(op).collect::<Vec<_>>());
        let refused = (0..100).find_map(|_| backlog.take_in(message(MESSAGE_PREFIX, true, content.clone())).err());
        assert_eq!(refused, Some(Refused::TooLarge));
    }

    /// P5.
    #[test]
    fn nothing_passes_the_gate_before_its_end_is_flushed() {
        let mut backlog = Backlog::new(SourceId(0), Lsn(50), ENTRY_BYTES_MAX);
        transaction(&mut backlog, 100, &[op(1)]);
        transaction(&mut backlog, 200, &[op(2)]);
        keep_alive(&mut backlog, 300);
        assert!(backlog.is_held() && !backlog.has_transactions());
        assert_eq!(backlog.released(), Lsn(50));
        // In the middle of the commit record of the second.
        backlog.open_gate(Lsn(204));
        assert_eq!(backlog.released(), Lsn(200));
        assert_eq!(taken(&mut backlog), (vec![100], 200));
        assert!(backlog.is_held());
        backlog.open_gate(Lsn(208));
        backlog.open_gate(Lsn(1));
        assert_eq!(taken(&mut backlog), (vec![200], 208));
        backlog.open_gate(Lsn(1000));
        assert_eq!((backlog.is_held(), backlog.released()), (false, Lsn(300)));
    }
}
