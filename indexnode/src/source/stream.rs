//! The change stream: the slot's messages become Raft entries, one at a time; what arrives while one is under way goes
//! together in the next.
//!
//! Invariant: `confirmed ≤ applied ≤ proposed ≤ received`. The stream is told to forget a position only when the entry that
//! covers it is applied. A transaction is never split over entries, and an entry is capped in bytes.

use std::{
    future::{Future, pending},
    pin::Pin,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::FutureExt;
use mantle_types::{
    Lsn,
    message::{self, DirectoryOp, MESSAGE_PREFIX},
};
use pgwire_replication::ReplicationEvent;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::upstream::{ChangeStream, IndexGroup, Statements};
use crate::{
    index::command::{Command, StreamTransaction},
    node::{Leadership, Node},
    raft::machine::SOURCE,
};

/// An entry takes no further transactions after this many bytes of messages.
const ENTRY_BYTES_MAX: usize = 4 << 20;
/// Nothing more is read while this many bytes wait to be proposed.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// On a namespace where nothing changes, the position is recorded this often, so that PostgreSQL can free WAL.
const IDLE_POSITION: Duration = Duration::from_secs(10);
/// PostgreSQL is asked this often whether epoch and slot are still ours.
const CHECK: Duration = Duration::from_secs(2);

/// Why the stream ended in order.
#[derive(Debug)]
pub enum StreamEnd {
    /// The index has to be rebuilt.
    Rebuild(String),
}

/// What has arrived and is not proposed yet.
#[derive(Default)]
struct Backlog {
    /// Of the transaction that is arriving: where its commit record begins, and its operations so far.
    open: Option<(Lsn, Vec<DirectoryOp>, usize)>,
    transactions: std::collections::VecDeque<(StreamTransaction, Lsn, usize)>,
    bytes: usize,
    /// Everything committed below has arrived.
    received: Lsn,
}

impl Backlog {
    /// Takes an event in; `Err` when it cannot be understood.
    fn take_in(&mut self, event: ReplicationEvent) -> Result<(), message::DecodeError> {
        match event {
            ReplicationEvent::Begin { final_lsn, .. } => self.open = Some((Lsn(final_lsn.0), Vec::new(), 0)),
            ReplicationEvent::Message { transactional: true, prefix, content, .. } if prefix == MESSAGE_PREFIX => {
                let decoded = message::decode(&content)?;
                if let Some((_, ops, bytes)) = &mut self.open {
                    *bytes += content.len();
                    ops.extend(decoded);
                }
            }
            ReplicationEvent::Commit { lsn, end_lsn, .. } => {
                let (_, ops, bytes) = self.open.take().unwrap_or_default();
                self.received = self.received.max(Lsn(end_lsn.0));
                if !ops.is_empty() {
                    let transaction = StreamTransaction { commit_lsn: Lsn(lsn.0), ops };
                    self.transactions.push_back((transaction, Lsn(end_lsn.0), bytes));
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

    /// The next entry and the position it covers; `None` when there is no transaction and `wants_position` is false.
    fn next_entry(&mut self, wants_position: bool) -> Option<(Command, Lsn)> {
        if self.transactions.is_empty() && !wants_position {
            return None;
        }
        let mut transactions = Vec::new();
        let mut position = self.received;
        let mut bytes = 0;
        while let Some((transaction, end, size)) = self.transactions.pop_front() {
            bytes += size;
            self.bytes -= size;
            transactions.push(transaction);
            if bytes >= ENTRY_BYTES_MAX && !self.transactions.is_empty() {
                position = end;
                break;
            }
        }
        Some((Command::Stream { source: SOURCE, transactions, position }, position))
    }
}

type Check<'a> = Pin<Box<dyn Future<Output = Result<Option<String>>> + Send + 'a>>;
type Proposal<'a> = Pin<Box<dyn Future<Output = Result<Lsn>> + Send + 'a>>;

/// One term's reading of the slot.
pub struct Consumer<'a> {
    /// This replica.
    pub node: &'a Node,
    /// The term it reads for.
    pub leadership: &'a Leadership,
    /// A session for looking after slot and epoch.
    pub control: &'a dyn Statements,
    /// What they were when the stream began.
    pub group: &'a IndexGroup,
}

impl Consumer<'_> {
    /// Reads until an error, or until a rebuild is due.
    pub async fn run(&self, mut client: Box<dyn ChangeStream>) -> Result<StreamEnd> {
        client.start().await?;
        let progress = &self.node.stream;
        let _streaming = progress.streaming();
        tracing::info!(slot = %self.group.slot_name, "reading the change stream");
        let mut backlog = Backlog { received: self.source_end(), ..Backlog::default() };
        let mut under_way: Option<Proposal<'_>> = None;
        let mut last_proposal = Instant::now();
        let mut check = interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checking: Option<Check<'_>> = None;
        loop {
            if under_way.is_none()
                && let Some((command, position)) = backlog.next_entry(self.wants_position(&backlog, last_proposal))
            {
                last_proposal = Instant::now();
                progress.count_proposal();
                under_way = Some(Box::pin(async move {
                    self.node.propose_as(self.leadership, &command).await?;
                    Ok(position)
                }));
            }
            tokio::select! {
                biased;
                position = poll_or_pend(&mut under_way) => {
                    under_way = None;
                    client.confirm(position?);
                }
                event = client.recv(), if backlog.bytes < BACKLOG_BYTES_MAX => {
                    let mut next = Some(event);
                    while let Some(event) = next.take() {
                        let event = event?.context("PostgreSQL ended the change stream")?;
                        if let Err(e) = backlog.take_in(event) {
                            return Ok(StreamEnd::Rebuild(format!("a message of the change stream is not understood: {e}")));
                        }
                        if backlog.bytes < BACKLOG_BYTES_MAX {
                            next = client.recv().now_or_never();
                        }
                    }
                    progress.set_received(backlog.received);
                }
                () = progress.wake.notified() => {}
                result = poll_or_pend(&mut checking) => {
                    checking = None;
                    if let Some(reason) = result? {
                        return Ok(StreamEnd::Rebuild(reason));
                    }
                }
                _ = check.tick(), if checking.is_none() => checking = Some(Box::pin(self.check())),
            }
        }
    }

    fn source_end(&self) -> Lsn {
        self.node.state.positions().borrow().source_end
    }

    /// Is an entry due that moves the position alone?
    fn wants_position(&self, backlog: &Backlog, last_proposal: Instant) -> bool {
        let positions = *self.node.state.positions().borrow();
        if backlog.received <= positions.source_end {
            return false;
        }
        // After a rebuild lookups wait for the position that was served before.
        !positions.is_serving
            || self.node.stream.is_wanted(positions.source_end, backlog.received)
            || last_proposal.elapsed() >= IDLE_POSITION
    }

    /// Epoch and slot in PostgreSQL; the reason for a rebuild, if they are not what they were.
    async fn check(&self) -> Result<Option<String>> {
        let group = self.control.index_group().await?;
        if group != *self.group {
            bail!("epoch, cluster or slot of the group changed in PostgreSQL");
        }
        Ok(match self.control.slot(&group.slot_name).await? {
            None => Some("the slot is gone".to_owned()),
            Some(slot) if slot.is_lost => Some("the slot's WAL is gone".to_owned()),
            Some(_) => None,
        })
    }
}

async fn poll_or_pend<F: Future + Unpin>(slot: &mut Option<F>) -> F::Output {
    match slot {
        Some(future) => future.await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mantle_types::{NamespaceId, RequestKey, message::Cause};
    use uuid::Uuid;

    use super::*;

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

    fn transaction(backlog: &mut Backlog, commit: u64, ops: &[DirectoryOp]) {
        backlog.take_in(ReplicationEvent::Begin { final_lsn: lsn(commit), xid: 1, commit_time_micros: 0 }).unwrap();
        backlog.take_in(message(MESSAGE_PREFIX, true, message::encode(ops))).unwrap();
        let event = ReplicationEvent::Commit { lsn: lsn(commit), end_lsn: lsn(commit + 8), commit_time_micros: 0 };
        backlog.take_in(event).unwrap();
    }

    fn keep_alive(wal_end: u64) -> ReplicationEvent {
        ReplicationEvent::KeepAlive { wal_end: lsn(wal_end), reply_requested: false, server_time_micros: 0 }
    }

    #[test]
    fn whatever_arrived_becomes_one_entry() {
        let mut backlog = Backlog::default();
        transaction(&mut backlog, 100, &[op(1), op(2)]);
        transaction(&mut backlog, 200, &[op(3)]);
        backlog.take_in(keep_alive(300)).unwrap();
        let (command, position) = backlog.next_entry(false).unwrap();
        assert_eq!(position, Lsn(300));
        let Command::Stream { transactions, position, .. } = command else { panic!("{command:?}") };
        assert_eq!(position, Lsn(300));
        let seen: Vec<_> = transactions.iter().map(|t| (t.commit_lsn.0, t.ops.len())).collect();
        assert_eq!(seen, [(100, 2), (200, 1)]);
        assert!(backlog.next_entry(false).is_none());
        assert_eq!(backlog.bytes, 0);
    }

    #[test]
    fn an_open_transaction_holds_the_position_back() {
        let mut backlog = Backlog::default();
        backlog.take_in(ReplicationEvent::Begin { final_lsn: lsn(100), xid: 1, commit_time_micros: 0 }).unwrap();
        backlog.take_in(keep_alive(500)).unwrap();
        assert_eq!(backlog.received, Lsn(0));
        assert!(backlog.next_entry(false).is_none());
    }

    #[test]
    fn foreign_messages_are_ignored_and_broken_ones_reported() {
        let mut backlog = Backlog::default();
        backlog.take_in(ReplicationEvent::Begin { final_lsn: lsn(100), xid: 1, commit_time_micros: 0 }).unwrap();
        backlog.take_in(message("other", true, vec![0xff])).unwrap();
        backlog.take_in(message(MESSAGE_PREFIX, false, vec![0xff])).unwrap();
        assert!(backlog.take_in(message(MESSAGE_PREFIX, true, vec![0xff])).is_err());
    }

    #[test]
    fn a_large_backlog_is_cut_between_transactions() {
        let mut backlog = Backlog::default();
        let ops: Vec<_> = (0..60_000).map(op).collect();
        for i in 1..=8 {
            transaction(&mut backlog, i * 100, &ops);
        }
        let mut ends = Vec::new();
        while let Some((_, position)) = backlog.next_entry(false) {
            ends.push(position.0);
        }
        assert!(ends.len() > 1, "eight transactions of more than a megabyte do not fit into one entry");
        assert!(ends.is_sorted());
        assert_eq!(ends.last(), Some(&808));
    }
}
