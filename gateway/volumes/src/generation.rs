//! A name for one write of bytes, never used again. Checksums are seeded with it, so the bytes of one write are never taken for
//! those of another.

use std::{fmt, str::FromStr};

use crate::decimal;

/// Bytes of the encoding.
pub(crate) const GENERATION_BYTES: usize = 12;

/// Which write the bytes of an extent are of; never used again.
///
/// An id alone is not enough: a restore to a point in time begins a new timeline, on which the same ids are given out again.
///
/// On disk: the timeline in 4 bytes, then the id in 8, little endian. As text: `timeline.id` in decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// PostgreSQL's timeline on which the id was allocated.
    pub timeline: u32,
    /// An id that PostgreSQL handed out once on that timeline.
    pub id: u64,
}

impl Generation {
    /// As on disk.
    pub(crate) fn encode(self) -> [u8; GENERATION_BYTES] {
        let mut bytes = [0; GENERATION_BYTES];
        bytes[..4].copy_from_slice(&self.timeline.to_le_bytes());
        bytes[4..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.timeline, self.id)
    }
}

impl FromStr for Generation {
    type Err = decimal::Malformed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (timeline, id) = decimal::split(text, '.')?;
        Ok(Self { timeline: decimal::number(timeline)?, id: decimal::number(id)? })
    }
}
