//! How far a source's changes may be applied (P5): up to the position that every synchronous standby has flushed.
//!
//! Where none is configured, everything that the walsender sends passes (it sends what its own server has flushed); the gate
//! asks PostgreSQL again only every `RECHECK`. Where some are, the gate asks once for what has arrived, and again, ever more
//! slowly, until their flush comes. While none is connected nothing passes: PostgreSQL acknowledges no commit then either.

use std::time::Duration;

use mantle_types::Lsn;
use tokio::time::Instant;

use crate::{
    failpoints::{self, Failpoint},
    postgres::upstream::StandbyFlush,
};

/// Whether there are standbys is asked this often: much shorter than Patroni's `loop_wait`, which makes one a candidate.
const RECHECK: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct StandbyGate {
    answer: StandbyFlush,
    asked: Instant,
    retry: Duration,
}

impl StandbyGate {
    pub fn new(answer: StandbyFlush) -> Self {
        Self { answer, asked: Instant::now(), retry: RETRY_MIN }
    }

    /// True if commits are on this server alone: a failover may lose changes that the index has.
    pub fn is_unprotected(&self) -> bool {
        !self.answer.is_required
    }

    /// The position up to which changes received up to `received` may be applied.
    pub fn passes(&self, received: Lsn) -> Lsn {
        let is_gated = self.answer.is_required && !failpoints::is_hit(Failpoint::ApplyBeyondStandby);
        if is_gated { self.answer.flushed.unwrap_or(Lsn::INVALID) } else { received }
    }

    /// When to ask again. `is_held`: something that does not pass is waited for.
    pub fn next_question(&self, is_held: bool) -> Instant {
        self.asked + if is_held && self.answer.is_required { self.retry } else { RECHECK }
    }

    /// Makes the next question due at once, because something arrived that does not pass.
    pub fn hurry(&mut self) {
        self.retry = Duration::ZERO;
    }

    pub fn note(&mut self, answer: StandbyFlush) {
        let has_moved = answer != self.answer;
        self.retry = if has_moved { RETRY_MIN } else { (self.retry * 2).clamp(RETRY_MIN, RETRY_MAX) };
        (self.answer, self.asked) = (answer, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_standbys_everything_passes_and_few_questions_are_asked() {
        let gate = StandbyGate::new(StandbyFlush { is_required: false, flushed: None });
        assert!(gate.is_unprotected());
        assert_eq!(gate.passes(Lsn(70)), Lsn(70));
        assert_eq!(gate.next_question(true), gate.asked + RECHECK);
    }

    #[test]
    fn with_standbys_their_flush_passes_and_no_standby_lets_nothing_through() {
        let mut gate = StandbyGate::new(StandbyFlush { is_required: true, flushed: Some(Lsn(50)) });
        assert_eq!((gate.passes(Lsn(70)), gate.is_unprotected()), (Lsn(50), false));
        gate.hurry();
        assert_eq!(gate.next_question(true), gate.asked);
        gate.note(StandbyFlush { is_required: true, flushed: Some(Lsn(50)) });
        gate.note(StandbyFlush { is_required: true, flushed: Some(Lsn(50)) });
        assert_eq!(gate.next_question(true), gate.asked + 2 * RETRY_MIN);
        assert_eq!(gate.next_question(false), gate.asked + RECHECK);
        gate.note(StandbyFlush { is_required: true, flushed: None });
        assert_eq!(gate.passes(Lsn(70)), Lsn::INVALID);
    }
}
