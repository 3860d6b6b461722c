//! Durations of repeated calls, and their percentiles.

use std::time::Duration;

use crate::report::short;

/// Resolution of a sample: 32 bits a duration, so that the sample's memory does not slow the measured calls.
const TICK_NANOS: u128 = 100;

/// Durations to a tenth of a microsecond, up to seven minutes; longer ones count as seven minutes.
#[derive(Clone, Default)]
pub struct Sample {
    ticks: Vec<u32>,
}

impl Sample {
    pub fn add(&mut self, duration: Duration) {
        self.ticks.push(u32::try_from(duration.as_nanos() / TICK_NANOS).unwrap_or(u32::MAX));
    }

    pub fn merge(&mut self, other: Self) {
        self.ticks.extend(other.ticks);
    }

    pub fn len(&self) -> usize {
        self.ticks.len()
    }

    /// The smallest duration that at least `share` of all do not exceed (nearest rank), in milliseconds.
    pub fn percentile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.ticks.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).map_or(f64::NAN, |ticks| f64::from(*ticks) * TICK_NANOS as f64 / 1e6)
    }

    pub fn p50_ms(&self) -> f64 {
        self.percentile_ms(0.50)
    }

    pub fn p99_ms(&self) -> f64 {
        self.percentile_ms(0.99)
    }

    /// Median and 99th percentile in milliseconds, as cells of a table.
    pub fn cells(&self) -> [String; 2] {
        [short(self.p50_ms()), short(self.p99_ms())]
    }

    /// Both as ratios to another sample's.
    pub fn ratio_cells(&self, to: &Self) -> [String; 2] {
        [short(self.p50_ms() / to.p50_ms()), short(self.p99_ms() / to.p99_ms())]
    }
}

/// The median of figures, one a turn; the higher one of two in the middle.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut sample = Sample::default();
        for ms in (1..=200).rev() {
            sample.add(Duration::from_millis(ms));
        }
        assert_eq!((sample.p50_ms(), sample.p99_ms(), sample.percentile_ms(1.0)), (100.0, 198.0, 200.0));
        assert!(Sample::default().p50_ms().is_nan());
        let mut one = Sample::default();
        one.add(Duration::from_millis(7));
        assert_eq!((one.p50_ms(), one.p99_ms()), (7.0, 7.0));
    }
}
