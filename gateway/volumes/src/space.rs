//! How full a volume is. It should grow before it is full: with much room puts write one after the other, and with less than 5 %
//! free objects come to lie in several extents.

/// What is where in a volume, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The volume's segments, leased or not.
    pub volume: u64,
    /// The leased segments.
    pub leased: u64,
    /// Of the leased segments: blocks that are used, with what `waiting` and `in_doubt` count.
    pub used: u64,
    /// Blocks that are freed, and not reusable yet.
    pub waiting: u64,
    /// Blocks of writes whose outcome nobody will learn before their segment is leased again.
    pub in_doubt: u64,
    /// Free blocks from which nothing is allocated now: their segments are about to be leased again.
    pub paused: u64,
}

/// Of one leased segment, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Not free, with what the others count.
    pub used: u64,
    /// Of puts that are under way or in doubt.
    pub unsettled: u64,
    /// Freed, and not reusable yet.
    pub waiting: u64,
}

impl Space {
    /// Whether this share of the leased segments is used, in percent. Without a leased segment a volume is full.
    pub fn is_over(&self, percent: u8) -> bool {
        u128::from(self.used) * 100 >= u128::from(self.leased) * u128::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_reached_at_its_percent() {
        let is_over = |used, leased| Space { used, leased, ..Space::default() }.is_over(85);
        assert_eq!([0, 84, 85, 100].map(|used| is_over(used, 100)), [false, false, true, true]);
        assert!(is_over(0, 0));
        assert!(is_over(u64::MAX, u64::MAX));
    }
}
