//! The model's standby: how far it has flushed the WAL, what the primary knows of that, and whether commits wait for it.

use mantle_types::Lsn;
use rand::{Rng, rngs::StdRng};

/// Chance of a flush in a millisecond, if commits wait for the standby.
const PACE: f64 = 0.6;
const PACE_ASYNCHRONOUS: f64 = 0.1;
const PACE_SLOW: f64 = 0.01;
/// Chance that the primary learns of a flush in a millisecond.
const REPORTS: f64 = 0.7;

/// A standby, which may be promoted at any time. It has everything that was acknowledged, unless commits do not wait for it.
pub struct Standby {
    /// Commits wait for it.
    pub is_required: bool,
    /// Milliseconds until it is connected again.
    away_ms: u64,
    /// Milliseconds for which it is slow.
    slow_ms: u64,
    flushed: Lsn,
    reported: Lsn,
}

impl Standby {
    /// A standby that has everything so far.
    pub fn new(is_required: bool, flushed: Lsn) -> Self {
        Self { is_required, away_ms: 0, slow_ms: 0, flushed, reported: flushed }
    }

    /// What it has if it is promoted now.
    pub fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// What the primary knows of its flushes, while it is connected.
    pub fn reported(&self) -> Option<Lsn> {
        (self.away_ms == 0).then_some(self.reported)
    }

    /// What the primary learned of its flushes before it lost its connection.
    pub fn last_reported(&self) -> Lsn {
        self.reported
    }

    /// Loses its connection for a time.
    pub fn leave(&mut self, ms: u64) {
        self.away_ms = self.away_ms.max(ms);
    }

    /// Becomes slow for a time.
    pub fn slow_down(&mut self, ms: u64) {
        self.slow_ms = ms;
    }

    /// Ends all of its faults.
    pub fn mend(&mut self) {
        (self.away_ms, self.slow_ms) = (0, 0);
    }

    /// It was promoted. A new standby connects after a while, with everything up to here.
    pub fn replace(&mut self, inserted: Lsn, rng: &mut StdRng) {
        *self = Self { away_ms: rng.random_range(20..800), ..Self::new(self.is_required, inserted) };
    }

    /// Advances by a millisecond.
    pub fn tick(&mut self, inserted: Lsn, rng: &mut StdRng) {
        self.slow_ms = self.slow_ms.saturating_sub(1);
        if self.away_ms > 0 {
            self.away_ms -= 1;
            return;
        }
        if rng.random_bool(REPORTS) {
            self.reported = self.flushed;
        }
        let pace = match (self.slow_ms, self.is_required) {
            (1.., _) => PACE_SLOW,
            (0, true) => PACE,
            (0, false) => PACE_ASYNCHRONOUS,
        };
        if rng.random_bool(pace) && self.flushed < inserted {
            // Possibly in the middle of a record.
            self.flushed = Lsn(rng.random_range(self.flushed.0 + 1..=inserted.0));
            if rng.random_bool(0.7) {
                self.flushed = inserted;
            }
        }
    }
}
