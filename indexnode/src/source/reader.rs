//! Reads one source: a task that receives the walsender's events and releases the transactions that the standby gate lets
//! pass. They wait in an inbox until the group's proposer takes them.
//!
//! Invariant: `confirmed ≤ applied ≤ released ≤ received`. A position is confirmed to the walsender only when the entry that
//! covers it is applied.

use std::{sync::Arc, time::Duration};

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
    InFlight,
    backlog::{Backlog, Refused},
    continuity::{RebuildReason, check_slot},
    poll_or_pend,
    retrace::Retrace,
    standby_gate::StandbyGate,
};
use crate::{
    index::command::SourceId,
    node::Node,
    postgres::upstream::{ChangeStream, Session},
    progress::Received,
};

/// The reader pauses while this many bytes wait to be proposed.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
const CHECK: Duration = Duration::from_secs(2);
/// A warning is logged when a standby delays changes for this long.
const HELD_LONG: Duration = Duration::from_secs(5);

/// What a reader has read and the proposer has not taken yet.
pub struct Inbox {
    pub source: SourceId,
    pub backlog: Mutex<Backlog>,
    /// Everything below is applied: the slot need not send it again.
    pub confirmed: watch::Sender<Lsn>,
    /// Wakes the reader when a position is waited for.
    pub nudge: Notify,
}

impl Inbox {
    /// An inbox of a source that is applied up to `start`, for entries of at most `entry_bytes_max`. `retrace`: what its server
    /// has to show first.
    pub fn new(source: SourceId, start: Lsn, entry_bytes_max: usize, retrace: Retrace) -> Self {
        Self {
            source,
            backlog: Mutex::new(Backlog::new(source, start, entry_bytes_max).retracing(retrace)),
            confirmed: watch::Sender::new(start),
            nudge: Notify::new(),
        }
    }
}

pub struct Reader {
    pub node: Arc<Node>,
    pub inbox: Arc<Inbox>,
    pub arrived: Arc<Notify>,
    /// For statements about standbys and slot.
    pub session: Session,
    pub slot_name: String,
}

impl Reader {
    /// Reads until an error, or until the index must be rebuilt.
    pub async fn run(self, mut client: Box<dyn ChangeStream>) -> Result<RebuildReason> {
        let mut gate = StandbyGate::new(self.session.standby_flush().await?);
        self.log_protection(&gate);
        let mut confirmed = self.inbox.confirmed.subscribe();
        let mut asking: InFlight<'_, _> = None;
        let mut checking: InFlight<'_, _> = None;
        let mut check = interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut held_since, mut told): (Option<Instant>, _) = (None, Received::default());
        loop {
            let (is_full, is_held) = self.release(&gate, &mut told);
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
                        self.log_protection(&gate);
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

    /// Releases what the gate lets pass, and publishes the positions. `told`: the positions of which the stream was told.
    /// Returns whether the backlog is full, and whether something waits for the gate.
    fn release(&self, gate: &StandbyGate, told: &mut Received) -> (bool, bool) {
        let (mut received, is_full, mut is_held);
        {
            let mut backlog = self.inbox.backlog.lock();
            let passes = gate.passes(backlog.received());
            backlog.open_gate(passes);
            received = Received { received: backlog.received(), released: backlog.released(), is_unprotected: false };
            (is_full, is_held) = (backlog.bytes() >= BACKLOG_BYTES_MAX, backlog.is_held());
            if received != *told || backlog.has_transactions() {
                *told = received;
                self.arrived.notify_one();
            }
        }
        received.is_unprotected = gate.is_unprotected();
        let progress = &self.node.stream;
        progress.set_received(self.inbox.source, received);
        is_held |= progress.is_wanted(self.inbox.source, received.released, received.received);
        (is_full, is_held)
    }

    /// Adds an event, and those that have already arrived behind it, to the backlog.
    fn take_in(
        &self,
        client: &mut dyn ChangeStream,
        first: Result<Option<ReplicationEvent>>,
    ) -> Result<Result<(), RebuildReason>> {
        let mut backlog = self.inbox.backlog.lock();
        let mut next = Some(first);
        while let Some(event) = next.take() {
            let event = event?.context("PostgreSQL ended the change stream")?;
            match backlog.take_in(event) {
                Ok(()) => {}
                Err(e @ Refused::OtherHistory(_)) => return Ok(Err(RebuildReason::diverged(e.to_string()))),
                Err(e) => return Ok(Err(RebuildReason::behind(e.to_string()))),
            }
            if backlog.bytes() < BACKLOG_BYTES_MAX {
                next = client.recv().now_or_never();
            }
        }
        Ok(Ok(()))
    }

    /// Checks that the slot still sends everything that is not applied here.
    async fn check(&self) -> Result<Result<(), RebuildReason>> {
        let slot = self.session.slot(&self.slot_name).await?;
        let applied_end = self.node.state.source_end(self.inbox.source);
        Ok(check_slot(applied_end, slot.as_ref()))
    }

    fn log_protection(&self, gate: &StandbyGate) {
        let source = self.inbox.source.0;
        if gate.is_unprotected() {
            tracing::warn!(source, "PostgreSQL has no synchronous standby: a failover may lose acknowledged changes");
        } else {
            tracing::info!(source, "changes are applied once the synchronous standbys have flushed them");
        }
    }
}
