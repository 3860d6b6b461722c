//! Reads one source: a task that takes the walsender's events in as they come and lets through what its gate allows. What is
//! through waits in an inbox until the group's proposer takes it.
//!
//! Invariant: `confirmed ≤ applied ≤ released ≤ received`. The walsender is told to forget a position only when the entry that
//! covers it is applied.

use std::{future::pending, pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::FutureExt;
use mantle_types::Lsn;
use parking_lot::Mutex;
use pgwire_replication::ReplicationEvent;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    backlog::Backlog,
    continuity::{Reason, check_slot},
    standby_gate::StandbyGate,
};
use crate::{
    index::command::SourceId,
    node::Node,
    postgres::upstream::{ChangeStream, Session},
    progress::Received,
};

/// Nothing more is read while this many bytes wait to be proposed.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// PostgreSQL is asked this often whether the slot is still ours.
const CHECK: Duration = Duration::from_secs(2);
/// What a standby holds up for so long is worth a line in the log.
const HELD_LONG: Duration = Duration::from_secs(5);

/// Where a reader leaves what it read.
pub struct Inbox {
    /// Which source.
    pub source: SourceId,
    /// What waits to be proposed.
    pub backlog: Mutex<Backlog>,
    /// Everything below is applied: the slot may forget it.
    pub confirmed: watch::Sender<Lsn>,
    /// Wakes the reader: somebody waits for a position.
    pub nudge: Notify,
}

impl Inbox {
    /// Of a source that is applied up to `start`, for entries of so many bytes.
    pub fn new(source: SourceId, start: Lsn, entry_bytes_max: usize) -> Self {
        Self {
            source,
            backlog: Mutex::new(Backlog::new(source, start, entry_bytes_max)),
            confirmed: watch::Sender::new(start),
            nudge: Notify::new(),
        }
    }
}

type Question<'a, T> = Option<Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>>;

/// One source's reader, for one connection.
pub struct Reader {
    /// This replica.
    pub node: Arc<Node>,
    /// Where to.
    pub inbox: Arc<Inbox>,
    /// Tells the proposer that something is in it.
    pub arrived: Arc<Notify>,
    /// For questions about standbys and slot.
    pub session: Session,
    /// The group's slot.
    pub slot_name: String,
}

impl Reader {
    /// Reads until an error, or until the index must be rebuilt.
    pub async fn run(self, mut client: Box<dyn ChangeStream>) -> Result<Reason> {
        let mut gate = StandbyGate::new(self.session.standby_flush().await?);
        self.say_protection(&gate);
        let mut confirmed = self.inbox.confirmed.subscribe();
        let mut asking: Question<'_, _> = None;
        let mut checking: Question<'_, _> = None;
        let mut check = interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut held_since: Option<Instant> = None;
        loop {
            let (is_full, is_held) = self.let_through(&gate);
            let question = gate.next_question(is_held);
            held_since = is_held.then(|| held_since.unwrap_or_else(Instant::now));
            tokio::select! {
                biased;
                // The sender lives in `self`.
                _ = confirmed.changed() => {
                    client.confirm(*confirmed.borrow_and_update());
                }
                event = client.recv(), if !is_full => {
                    if let Err(reason) = self.take_in(&mut *client, event)? {
                        return Ok(reason);
                    }
                    if !is_held {
                        gate.hurry();
                    }
                }
                answer = poll_or_pend(&mut asking) => {
                    asking = None;
                    let was_unprotected = gate.is_unprotected();
                    gate.note(answer?);
                    if gate.is_unprotected() != was_unprotected {
                        self.say_protection(&gate);
                    }
                    if held_since.is_some_and(|since| since.elapsed() >= HELD_LONG) {
                        held_since = Some(Instant::now());
                        tracing::warn!(source = self.inbox.source.0, "changes wait for a synchronous standby");
                    }
                }
                () = sleep_until(question), if asking.is_none() => {
                    asking = Some(Box::pin(self.session.standby_flush()));
                }
                () = self.inbox.nudge.notified() => gate.hurry(),
                result = poll_or_pend(&mut checking) => {
                    checking = None;
                    if let Err(reason) = result? {
                        return Ok(reason);
                    }
                }
                _ = check.tick(), if checking.is_none() => checking = Some(Box::pin(self.check())),
            }
        }
    }

    /// Opens the gate as far as it may be, and tells of it. Is no more to be read now, and does anybody wait for the gate?
    fn let_through(&self, gate: &StandbyGate) -> (bool, bool) {
        let (mut received, is_full, mut is_held);
        {
            let mut backlog = self.inbox.backlog.lock();
            let before = backlog.released();
            let passes = gate.passes(backlog.received());
            backlog.open_gate(passes);
            received = Received { received: backlog.received(), released: backlog.released(), is_unprotected: false };
            (is_full, is_held) = (backlog.bytes() >= BACKLOG_BYTES_MAX, backlog.is_held());
            if received.released > before || backlog.has_transactions() {
                self.arrived.notify_one();
            }
        }
        received.is_unprotected = gate.is_unprotected();
        let progress = &self.node.stream;
        progress.set_received(self.inbox.source, received);
        is_held |= progress.is_wanted(self.inbox.source, received.released, received.received);
        (is_full, is_held)
    }

    /// Takes an event in, and whatever else is there already.
    fn take_in(
        &self,
        client: &mut dyn ChangeStream,
        first: Result<Option<ReplicationEvent>>,
    ) -> Result<Result<(), Reason>> {
        let mut backlog = self.inbox.backlog.lock();
        let mut next = Some(first);
        while let Some(event) = next.take() {
            let event = event?.context("PostgreSQL ended the change stream")?;
            if let Err(e) = backlog.take_in(event) {
                return Ok(Err(Reason::behind(e.to_string())));
            }
            if backlog.bytes() < BACKLOG_BYTES_MAX {
                next = client.recv().now_or_never();
            }
        }
        Ok(Ok(()))
    }

    /// Is the slot what it was? Everything that it forgot was applied here.
    async fn check(&self) -> Result<Result<(), Reason>> {
        let slot = self.session.slot(&self.slot_name).await?;
        let applied_end = self.node.state.source_end(self.inbox.source);
        Ok(check_slot(applied_end, slot.as_ref()))
    }

    fn say_protection(&self, gate: &StandbyGate) {
        let source = self.inbox.source.0;
        if gate.is_unprotected() {
            tracing::warn!(source, "PostgreSQL has no synchronous standby: a failover may lose acknowledged changes");
        } else {
            tracing::info!(source, "changes are applied once the synchronous standbys have flushed them");
        }
    }
}

async fn poll_or_pend<T>(slot: &mut Question<'_, T>) -> Result<T> {
    match slot {
        Some(future) => future.await,
        None => pending().await,
    }
}
