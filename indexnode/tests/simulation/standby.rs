//! The model's standby: how far it has flushed the WAL, what the primary knows of it, and whether commits wait for it.

use mantle_types::Lsn;
use rand::{Rng, rngs::StdRng};

/// How often a usual standby flushes, once a millisecond being 1, and one that nobody waits for.
const PACE: f64 = 0.6;
const PACE_ASYNCHRONOUS: f64 = 0.1;
const PACE_SLOW: f64 = 0.01;
/// The primary hears of a flush so often.
const REPORTS: f64 = 0.7;

/// A standby. It may be promoted at any time: what was acknowledged it has, or nobody waited for it.
pub struct Standby {
    /// It is a synchronous one.
    pub is_required: bool,
    /// Milliseconds until it is connected again.
    away_ms: u64,
    /// Milliseconds for which it is slow.
    slow_ms: u64,
    flushed: Lsn,
    reported: Lsn,
}

impl Standby {
    /// One that has everything so far.
    pub fn new(is_required: bool, flushed: Lsn) -> Self {
        Self { is_required, away_ms: 0, slow_ms: 0, flushed, reported: flushed }
    }

    /// What it would have if it were promoted.
    pub fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// What the primary knows that it has, while it is connected.
    pub fn reported(&self) -> Option<Lsn> {
        (self.away_ms == 0).then_some(self.reported)
    }

    /// Loses its connection for a time.
    pub fn leave(&mut self, ms: u64) {
        self.away_ms = self.away_ms.max(ms);
    }

    /// Is slow for a time.
    pub fn slow_down(&mut self, ms: u64) {
        self.slow_ms = ms;
    }

    /// Everything is as usual.
    pub fn mend(&mut self) {
        (self.away_ms, self.slow_ms) = (0, 0);
    }

    /// It was promoted: another takes its place in a while, and then has everything up to here.
    pub fn be_replaced(&mut self, inserted: Lsn, rng: &mut StdRng) {
        *self = Self { away_ms: rng.random_range(20..800), ..Self::new(self.is_required, inserted) };
    }

    /// A millisecond goes by.
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
            // In the middle of a record too.
            self.flushed = Lsn(rng.random_range(self.flushed.0 + 1..=inserted.0));
            if rng.random_bool(0.7) {
                self.flushed = inserted;
            }
        }
    }
}
