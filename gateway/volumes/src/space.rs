//! How full a volume is, and when it needs more segments or attention.

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

/// The used shares of the leased segments at which something has to be done, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Lease another segment, or let the volume grow by a step: puts that find much room write one after the other.
    pub more: u8,
    /// Tell people: puts will be refused soon. With less than 5 % free, objects come to lie in several extents.
    pub warn: u8,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { more: 85, warn: 95 }
    }
}

/// What a volume's space asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Enough,
    /// Another segment.
    More,
    /// Attention, since there was no other segment.
    Warn,
}

impl Space {
    /// Where the used blocks are between the watermarks. Without a leased segment a volume is full.
    pub fn level(&self, watermarks: Watermarks) -> Level {
        let is_over = |percent: u8| u128::from(self.used) * 100 >= u128::from(self.leased) * u128::from(percent);
        match (is_over(watermarks.warn), is_over(watermarks.more)) {
            (true, _) => Level::Warn,
            (false, true) => Level::More,
            (false, false) => Level::Enough,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_begin_at_their_watermarks() {
        let level = |used, leased| Space { used, leased, ..Space::default() }.level(Watermarks::default());
        assert_eq!([0, 84, 85, 94, 95, 100].map(|used| level(used, 100)), {
            use Level::{Enough, More, Warn};
            [Enough, Enough, More, More, Warn, Warn]
        });
        assert_eq!(level(0, 0), Level::Warn);
        assert_eq!(level(u64::MAX, u64::MAX), Level::Warn);
    }
}
