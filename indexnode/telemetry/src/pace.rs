//! A bound on how often a line is logged, where others decide how often it happens.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// When a line was logged last.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    last: Mutex<Option<Instant>>,
}

impl Pace {
    /// At most one line in this time.
    pub const fn new(interval: Duration) -> Self {
        Self { interval, last: Mutex::new(None) }
    }

    /// Tells whether the interval has gone by since this was last true.
    pub fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.duration_since(last) >= self.interval);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_in_each_interval() {
        let (pace, start) = (Pace::new(Duration::from_secs(1)), Instant::now());
        let due = [0, 1, 999, 1000, 1001, 1999, 2000].map(|ms| pace.is_due_at(start + Duration::from_millis(ms)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
