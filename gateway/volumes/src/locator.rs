//! The text under which the metadata keeps where bytes of an object are: the lease of the segment that has them, the generation,
//! and the extents in the object's order.
//!
//! ```text
//! v1:<volume>.<segment>.<epoch>/<timeline>.<id>/<block>+<bytes>,<block>+<bytes>,…
//! ```
//!
//! Numbers are decimal without leading zeros, so equal texts are equal values. The segment comes first, so PostgreSQL finds all
//! bytes of a segment by the beginning of the text, and the transaction that names them finds the lease that it has to check.

use std::{fmt, ops::Range, str::FromStr};

use mantle_types::limits::LOCATOR_BYTES_MAX;

use crate::{
    decimal::{Malformed, number, split},
    extent::EXTENT_BYTES_MAX,
    generation::Generation,
    place::{Extent, Lease, SegmentId, VolumeId},
};

/// The beginning of each locator of this kind.
pub const PREFIX: &str = "v1:";
/// This many extents fit in a locator, whatever their numbers are. With usual numbers half as many more fit.
pub const LOCATOR_EXTENTS_MIN: usize = 98;

/// Prefix, lease, generation and slashes at their longest.
const LONGEST_BEGIN_BYTES: usize = PREFIX.len() + (10 + 1 + 10 + 1 + 20 + 1) + (10 + 1 + 20 + 1);
/// An extent and its comma at their longest.
const LONGEST_EXTENT_BYTES: usize = 10 + 1 + 8 + 1;
const _: () = assert!(LONGEST_BEGIN_BYTES + LOCATOR_EXTENTS_MIN * LONGEST_EXTENT_BYTES - 1 <= LOCATOR_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES_MAX < 100_000_000);

/// Bytes of one write in one segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locator {
    /// The segment, and the epoch under which it was leased when the blocks were allocated.
    pub lease: Lease,
    /// The write.
    pub generation: Generation,
    /// Where in the segment its bytes are, in their order; at least one.
    pub pieces: Vec<Piece>,
}

/// An extent of a locator, which says the segment for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Its first block, within the segment.
    pub block: u32,
    /// Bytes of data; from 1 to 64 MiB.
    pub length: u32,
}

impl Locator {
    /// Bytes that it names.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }

    /// Where they are, in their order.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + ExactSizeIterator {
        self.pieces.iter().map(|piece| Extent { segment: self.lease.segment, block: piece.block, length: piece.length })
    }

    /// As many locators as the extents of a write need, in their order: one for each segment and epoch, or more if it has many.
    pub(crate) fn of(generation: Generation, extents: &[(Extent, u64)]) -> Vec<Self> {
        let (mut locators, mut text_bytes): (Vec<Self>, usize) = (Vec::new(), 0);
        for (Extent { segment, block, length }, epoch) in extents {
            let lease = Lease { segment: *segment, epoch: *epoch };
            let piece = Piece { block: *block, length: *length };
            let piece_bytes = format!(",{piece}").len();
            match locators.last_mut() {
                Some(last) if last.lease == lease && text_bytes + piece_bytes <= LOCATOR_BYTES_MAX => {
                    last.pieces.push(piece);
                    text_bytes += piece_bytes;
                }
                _ => {
                    let locator = Self { lease, generation, pieces: vec![piece] };
                    text_bytes = locator.to_string().len();
                    locators.push(locator);
                }
            }
        }
        locators
    }
}

/// The bytes of an object that each of its locators names, in their order.
pub fn ranges(locators: &[Locator]) -> impl Iterator<Item = (&Locator, Range<u64>)> {
    locators.iter().scan(0, |position, locator| {
        let begin = *position;
        *position += locator.bytes();
        Some((locator, begin..*position))
    })
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.block, self.length)
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}/", self.lease, self.generation)?;
        for (number, piece) in self.pieces.iter().enumerate() {
            write!(f, "{}{piece}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Locator {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        if text.len() > LOCATOR_BYTES_MAX {
            return Err(Malformed);
        }
        let (lease, rest) = split(text.strip_prefix(PREFIX).ok_or(Malformed)?, '/')?;
        let (generation, pieces) = split(rest, '/')?;
        let pieces = pieces.split(',').map(parse_piece).collect::<Result<_, _>>()?;
        Ok(Self { lease: parse_lease(lease)?, generation: generation.parse()?, pieces })
    }
}

fn parse_lease(text: &str) -> Result<Lease, Malformed> {
    let (volume, rest) = split(text, '.')?;
    let (segment, epoch) = split(rest, '.')?;
    let segment = SegmentId { volume: VolumeId(number(volume)?), number: number(segment)? };
    Ok(Lease { segment, epoch: number(epoch)? })
}

fn parse_piece(text: &str) -> Result<Piece, Malformed> {
    let (block, length) = split(text, '+')?;
    let piece = Piece { block: number(block)?, length: number(length)? };
    if (1..=EXTENT_BYTES_MAX).contains(&piece.length) { Ok(piece) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease(volume: u32, number: u32, epoch: u64) -> Lease {
        Lease { segment: SegmentId { volume: VolumeId(volume), number }, epoch }
    }

    /// Neighbours are often of one segment.
    fn extents() -> impl Strategy<Value = Vec<(Extent, u64)>> {
        let place = (0..2u32, 0..2u32, 0..2u64, any::<u32>(), 1..=EXTENT_BYTES_MAX);
        let extent = place.prop_map(|(volume, number, epoch, block, length)| {
            (Extent { segment: SegmentId { volume: VolumeId(volume), number }, block, length }, epoch)
        });
        let repeated = (extent, 1..200usize).prop_map(|(extent, count)| vec![extent; count]);
        proptest::collection::vec(repeated, 1..5).prop_map(|runs| runs.concat())
    }

    #[test]
    fn text_stays_as_it_is() {
        let locator = Locator {
            lease: lease(3, 12, 7),
            generation: Generation { timeline: 1, id: 1030 },
            pieces: vec![Piece { block: 204_800, length: 8192 }, Piece { block: 0, length: 1 }],
        };
        let text = "v1:3.12.7/1.1030/204800+8192,0+1";
        assert_eq!(locator.to_string(), text);
        assert_eq!(text.parse(), Ok(locator));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "v1:",
            "v1:3.4.5/1.2/",
            "v1:3.4.5/1/5+6",
            "v1:3.4/1.2/5+6",
            "v1:3.4.5/1.2/5",
            "v1:3.4.5/5+6",
            "v1:3.4.5/1.2/5+6,",
            "v1:03.4.5/1.2/5+6",
            "v1:3.4.5/+1.2/5+6",
            "v1:3.4.5/1.2/5+0",
            "v1:3.4.5/1.2/5+67108865",
            "v1:4294967296.4.5/1.2/5+6",
            "v1:3.4.18446744073709551616/1.2/5+6",
            "v2:3.4.5/1.2/5+6",
            "v1:3.4.5.6/1.2/5+7",
            "v1:3.4.5/1.2/5+6 ",
            " v1:3.4.5/1.2/5+6",
            "v1:3.4.5/1.2/-5+6",
            "v1:3.4.5/1.2/5+6/7",
            "v1:1.2/3.4.5+6",
            "objects/00/1030",
            "manifest:1030",
        ] {
            assert_eq!(text.parse::<Locator>(), Err(Malformed), "{text}");
        }
        let long = format!("v1:3.4.5/1.2/{}5+6", "5+6,".repeat(600));
        assert_eq!(long.parse::<Locator>(), Err(Malformed));
    }

    #[test]
    fn the_longest_numbers_fit_as_often_as_is_said() {
        let segment = SegmentId { volume: VolumeId(u32::MAX), number: u32::MAX };
        let longest = (Extent { segment, block: u32::MAX, length: EXTENT_BYTES_MAX }, u64::MAX);
        let generation = Generation { timeline: u32::MAX, id: u64::MAX };
        let count = |extents| Locator::of(generation, &vec![longest; extents]).len();
        assert_eq!([count(LOCATOR_EXTENTS_MIN), count(LOCATOR_EXTENTS_MIN + 1)], [1, 2]);
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_canonical(text in "(v1:)?[0-9.+,/]{0,60}") {
            if let Ok(locator) = text.parse::<Locator>() {
                prop_assert_eq!(locator.to_string(), text);
            }
        }

        #[test]
        fn locators_name_what_the_extents_are(extents in extents(), timeline in any::<u32>(), id in any::<u64>()) {
            let generation = Generation { timeline, id };
            let (mut seen, mut position) = (Vec::new(), 0);
            let locators = Locator::of(generation, &extents);
            for (locator, range) in ranges(&locators) {
                let text = locator.to_string();
                prop_assert!(text.len() <= LOCATOR_BYTES_MAX);
                prop_assert_eq!(text.parse::<Locator>(), Ok(locator.clone()));
                prop_assert_eq!(range, position..position + locator.bytes());
                prop_assert_eq!(locator.generation, generation);
                position += locator.bytes();
                seen.extend(locator.extents().map(|extent| (extent, locator.lease.epoch)));
            }
            prop_assert_eq!(seen, extents);
        }
    }
}
