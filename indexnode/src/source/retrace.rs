//! Checks at the beginning of a stream that its server has the history that was read before, and no other (P35).
//!
//! A copy of a server's disk that runs beside the original has the same system identifier, timeline and slot, and its
//! positions grow like the original's. The two histories cannot differ below the slot's confirmed position, because
//! PostgreSQL had flushed that far when the index confirmed it. So the stream begins at the last applied transaction,
//! or where the slot begins if that is later. Below the applied position the server must send that transaction, and
//! nothing else.

use std::collections::VecDeque;

use mantle_types::{Lsn, message::DirectoryOp};

use crate::{
    failpoints::{self, Failpoint},
    index::last_seen::{LastSeen, checksum},
};

/// A transaction that the server must have: the start of its commit record, and the checksum of its operations if it is known.
type Known = (Lsn, Option<u32>);

#[derive(Debug, Default)]
pub struct Retrace {
    /// What the server has to send, in order.
    known: VecDeque<Known>,
    /// The stream begins here. A server may send older transactions too.
    from: Lsn,
    /// Below this, the index has everything that committed.
    applied_end: Lsn,
    /// Below this, it also has everything that committed in part.
    reached_end: Lsn,
}

impl Retrace {
    /// What the server has to show. `last`: what the index saw last; `reached`: the highest commit of which it has a part;
    /// `from`: where the stream begins; `confirmed`: the slot sends nothing that committed below.
    pub fn new(last: Option<LastSeen>, (applied_end, reached): (Lsn, Lsn), from: Lsn, confirmed: Lsn) -> Self {
        if failpoints::is_hit(Failpoint::FollowAnyTimeline) {
            return Self::default();
        }
        let begins = from.max(confirmed);
        let complete = last.and_then(|last| match last {
            LastSeen::Transaction { commit_lsn, checksum } => Some((commit_lsn, checksum)),
            LastSeen::Slot(_) => None,
        });
        let partial = (reached >= applied_end).then_some((reached, None));
        let known = complete.into_iter().chain(partial).filter(|(commit_lsn, _)| *commit_lsn >= begins).collect();
        Self { known, from: begins, applied_end, reached_end: applied_end.max(Lsn(reached.0.saturating_add(1))) }
    }

    /// True once the server has sent everything that it must send.
    pub fn is_over(&self) -> bool {
        self.known.is_empty() && self.from >= self.applied_end
    }

    /// Looks at a transaction of the stream. Returns whether to go on with it: the last one that is wholly applied was only to
    /// be shown. An error says what is wrong with the server.
    pub fn transaction(&mut self, commit_lsn: Lsn, ops: &[DirectoryOp]) -> Result<bool, String> {
        if commit_lsn < self.from {
            return Ok(true);
        }
        match self.known.front() {
            Some((known, sum)) if *known == commit_lsn => {
                if sum.is_some_and(|sum| sum != checksum(ops)) {
                    return Err(format!("its transaction at {commit_lsn} is another than the index has applied"));
                }
                self.known.pop_front();
                return Ok(commit_lsn >= self.applied_end);
            }
            Some((known, _)) if commit_lsn > *known => return Err(lacks(*known)),
            _ if commit_lsn < self.reached_end => {
                return Err(format!("it has a transaction at {commit_lsn} that the index never saw"));
            }
            _ => {}
        }
        Ok(true)
    }

    /// Notes that the stream has sent everything that committed below a position.
    pub fn position(&mut self, position: Lsn) -> Result<(), String> {
        if let Some((known, _)) = self.known.front()
            && position > *known
        {
            return Err(lacks(*known));
        }
        self.from = self.from.max(position);
        Ok(())
    }
}

fn lacks(commit_lsn: Lsn) -> String {
    format!("it lacks the transaction at {commit_lsn}, which the index has applied")
}

#[cfg(test)]
mod tests {
    use mantle_types::{NamespaceId, RequestKey, message::Cause};
    use uuid::Uuid;

    use super::*;

    fn ops(n: u128) -> Vec<DirectoryOp> {
        let request = RequestKey { principal: 1, ns: NamespaceId(1), id: Uuid::from_u128(n) };
        vec![DirectoryOp::Done { cause: Cause { request, attempt: 0 } }]
    }

    fn last(commit_lsn: u64, n: u128) -> Option<LastSeen> {
        Some(LastSeen::Transaction { commit_lsn: Lsn(commit_lsn), checksum: Some(checksum(&ops(n))) })
    }

    /// The index has the transaction at 100 and, since then, an idle position of 200. The slot was confirmed up to `confirmed`.
    fn after(confirmed: u64) -> Retrace {
        Retrace::new(last(100, 1), (Lsn(200), Lsn(199)), Lsn(100), Lsn(confirmed))
    }

    #[test]
    fn the_last_transaction_is_shown_and_not_applied_again() {
        let mut retrace = after(40);
        assert!(!retrace.is_over());
        assert_eq!(retrace.transaction(Lsn(60), &ops(9)), Ok(true), "older than where the stream begins");
        assert_eq!(retrace.position(Lsn(90)), Ok(()));
        assert_eq!(retrace.transaction(Lsn(100), &ops(1)), Ok(false));
        assert_eq!(retrace.position(Lsn(108)), Ok(()));
        assert!(!retrace.is_over(), "nothing is known of the rest yet");
        assert_eq!(retrace.position(Lsn(200)), Ok(()));
        assert!(retrace.is_over());
        assert_eq!(retrace.transaction(Lsn(200), &ops(2)), Ok(true));
    }

    #[test]
    fn a_server_that_lacks_it_is_another() {
        assert!(after(40).transaction(Lsn(100), &ops(2)).is_err(), "another one is there");
        assert!(after(40).transaction(Lsn(104), &ops(1)).is_err(), "it is elsewhere");
        assert!(after(40).transaction(Lsn(300), &ops(3)).is_err(), "it never comes");
        assert!(after(40).position(Lsn(101)).is_err(), "nor anything else");
    }

    #[test]
    fn a_transaction_that_was_never_seen_is_of_another_server() {
        for confirmed in [40, 100, 150] {
            let mut retrace = after(confirmed);
            if confirmed <= 100 {
                assert_eq!(retrace.transaction(Lsn(100), &ops(1)), Ok(false));
            }
            assert!(retrace.transaction(Lsn(160), &ops(2)).is_err(), "confirmed up to {confirmed}");
        }
        assert!(after(200).is_over(), "the slot has passed everything");
        let mut retrace = Retrace::new(Some(LastSeen::Slot(Lsn(100))), (Lsn(200), Lsn(199)), Lsn(100), Lsn(100));
        assert!(retrace.transaction(Lsn(160), &ops(2)).is_err(), "the slot was made before");
    }

    /// An index whose snapshot does not say what it saw last goes on where it is.
    #[test]
    fn what_is_not_known_is_not_asked_for() {
        let retrace = Retrace::new(None, (Lsn(200), Lsn(199)), Lsn(200), Lsn(40));
        assert!(retrace.is_over());
    }

    /// P37: the transaction comes again whole, and is applied again.
    #[test]
    fn a_transaction_that_is_partly_applied_comes_again() {
        let partly = || Retrace::new(last(100, 1), (Lsn(101), Lsn(150)), Lsn(100), Lsn(40));
        let mut retrace = partly();
        assert_eq!(retrace.transaction(Lsn(100), &ops(1)), Ok(false));
        assert_eq!(retrace.transaction(Lsn(150), &ops(2)), Ok(true));
        assert_eq!(retrace.position(Lsn(158)), Ok(()));
        assert!(retrace.is_over());
        let mut retrace = partly();
        assert_eq!(retrace.transaction(Lsn(100), &ops(1)), Ok(false));
        assert!(retrace.transaction(Lsn(140), &ops(2)).is_err());
        assert!(retrace.position(Lsn(160)).is_err());
    }
}
