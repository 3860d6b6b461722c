//! What has arrived from one source: whole transactions, in commit order, until they are proposed.
//!
//! Invariant: `released ≤ received`, and a transaction is handed out only when its end is at or below what the gate has let
//! through (PROTOCOLS 5).

use std::collections::VecDeque;

use mantle_types::{
    Lsn,
    message::{self, DirectoryOp, MESSAGE_PREFIX},
};
use pgwire_replication::ReplicationEvent;

use crate::index::command::{SourceBatch, SourceId, StreamTransaction};

struct Arrived {
    transaction: StreamTransaction,
    /// Where its commit record ends.
    end: Lsn,
    bytes: usize,
}

/// The transactions of one source that wait to be proposed.
pub struct Backlog {
    source: SourceId,
    /// Of the transaction that is arriving: its operations so far.
    open: Option<(Vec<DirectoryOp>, usize)>,
    arrived: VecDeque<Arrived>,
    bytes: usize,
    received: Lsn,
    gate: Lsn,
}

impl Backlog {
    /// Nothing has arrived past `start`, and nothing is let through.
    pub fn new(source: SourceId, start: Lsn) -> Self {
        Self { source, open: None, arrived: VecDeque::new(), bytes: 0, received: start, gate: start }
    }

    /// Takes an event in; `Err` when it cannot be understood.
    pub fn take_in(&mut self, event: ReplicationEvent) -> Result<(), message::DecodeError> {
        match event {
            ReplicationEvent::Begin { .. } => self.open = Some((Vec::new(), 0)),
            ReplicationEvent::Message { transactional: true, prefix, content, .. } if prefix == MESSAGE_PREFIX => {
                let decoded = message::decode(&content)?;
                if let Some((ops, bytes)) = &mut self.open {
                    *bytes += content.len();
                    ops.extend(decoded);
                }
            }
            ReplicationEvent::Commit { lsn, end_lsn, .. } => {
                let (ops, bytes) = self.open.take().unwrap_or_default();
                let end = Lsn(end_lsn.0);
                self.received = self.received.max(end);
                if !ops.is_empty() {
                    let transaction = StreamTransaction { commit_lsn: Lsn(lsn.0), ops };
                    self.arrived.push_back(Arrived { transaction, end, bytes });
                    self.bytes += bytes;
                }
            }
            // Between transactions the server's position says that everything below it was sent.
            ReplicationEvent::KeepAlive { wal_end, .. } if self.open.is_none() => {
                self.received = self.received.max(Lsn(wal_end.0));
            }
            // Messages of other programs or outside transactions (PROTOCOLS 6), and what an empty publication never sends.
            _ => {}
        }
        Ok(())
    }

    /// Everything committed below has arrived.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// Bytes of messages that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets everything through that ends at or below.
    pub fn open_gate(&mut self, flushed: Lsn) {
        self.gate = self.gate.max(flushed);
    }

    /// Does a transaction wait that the gate does not let through?
    pub fn is_held(&self) -> bool {
        self.arrived.back().is_some_and(|last| last.end > self.gate)
    }

    /// Everything committed below has arrived and may be proposed.
    pub fn released(&self) -> Lsn {
        let held = self.arrived.get(self.arrived.partition_point(|arrived| arrived.end <= self.gate));
        // A commit record that the gate cuts in two lies below it, and is not through.
        let first_held = held.map_or(Lsn(u64::MAX), |held| held.transaction.commit_lsn);
        self.received.min(self.gate).min(first_held)
    }

    /// Does a transaction wait that may be proposed?
    pub fn has_transactions(&self) -> bool {
        self.arrived.front().is_some_and(|first| first.end <= self.gate)
    }

    /// What may be proposed: whole transactions, up to about `bytes_max`; the bytes it takes.
    pub fn take(&mut self, bytes_max: usize) -> (SourceBatch, usize) {
        let (mut transactions, mut bytes) = (Vec::new(), 0);
        let mut position = None;
        while let Some(first) = self.arrived.pop_front_if(|first| first.end <= self.gate) {
            bytes += first.bytes;
            transactions.push(first.transaction);
            if bytes >= bytes_max && self.has_transactions() {
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
mod tests {
    use bytes::Bytes;
    use mantle_types::{NamespaceId, RequestKey, message::Cause};
    use uuid::Uuid;

    use super::*;

    const BYTES_MAX: usize = 4 << 20;

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

    /// Its commit record takes eight bytes.
    fn transaction(backlog: &mut Backlog, commit: u64, ops: &[DirectoryOp]) {
        backlog.take_in(begin(commit)).unwrap();
        backlog.take_in(message(MESSAGE_PREFIX, true, message::encode(ops))).unwrap();
        let event = ReplicationEvent::Commit { lsn: lsn(commit), end_lsn: lsn(commit + 8), commit_time_micros: 0 };
        backlog.take_in(event).unwrap();
    }

    fn keep_alive(backlog: &mut Backlog, wal_end: u64) {
        let event =
            ReplicationEvent::KeepAlive { wal_end: lsn(wal_end), reply_requested: false, server_time_micros: 0 };
        backlog.take_in(event).unwrap();
    }

    fn open() -> Backlog {
        let mut backlog = Backlog::new(SourceId(0), Lsn(0));
        backlog.open_gate(Lsn(u64::MAX));
        backlog
    }

    fn taken(backlog: &mut Backlog) -> (Vec<u64>, u64) {
        let (batch, _) = backlog.take(BYTES_MAX);
        (batch.transactions.iter().map(|t| t.commit_lsn.0).collect(), batch.position.0)
    }

    #[test]
    fn whatever_arrived_goes_together() {
        let mut backlog = open();
        transaction(&mut backlog, 100, &[op(1), op(2)]);
        transaction(&mut backlog, 200, &[op(3)]);
        keep_alive(&mut backlog, 300);
        assert_eq!(taken(&mut backlog), (vec![100, 200], 300));
        assert!(!backlog.has_transactions());
        assert_eq!(backlog.bytes(), 0);
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

    /// Rule 5.
    #[test]
    fn nothing_passes_the_gate_before_its_end_is_flushed() {
        let mut backlog = Backlog::new(SourceId(0), Lsn(50));
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
