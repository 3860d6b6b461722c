//! The text under which the metadata keeps where an object's bytes are: the generation, and its extents in the object's order.
//!
//! ```text
//! v1:<timeline>.<id>/<volume>.<segment>.<block>+<bytes>,<volume>.<segment>.<block>+<bytes>,…
//! ```
//!
//! Numbers are decimal without leading zeros, so equal texts are equal values, and SQL can take the text apart.

use std::{fmt, ops::Range, str::FromStr};

use mantle_types::limits::LOCATOR_BYTES_MAX;

use crate::{
    decimal::{Malformed, number, split},
    extent::EXTENT_BYTES_MAX,
    generation::Generation,
    place::{Extent, SegmentId, VolumeId},
};

/// The beginning of each locator of this kind.
pub const PREFIX: &str = "v1:";
/// So many extents fit in a locator, whatever their numbers are. With usual numbers there is room for twice as many.
pub const LOCATOR_EXTENTS_MIN: usize = 47;

/// Prefix, generation and slash at their longest.
const LONGEST_BEGIN_BYTES: usize = PREFIX.len() + 10 + 1 + 20 + 1;
/// An extent and its comma at their longest.
const LONGEST_EXTENT_BYTES: usize = 3 * (10 + 1) + 8 + 1;
const _: () = assert!(LONGEST_BEGIN_BYTES + LOCATOR_EXTENTS_MIN * LONGEST_EXTENT_BYTES - 1 <= LOCATOR_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES_MAX < 100_000_000);

/// Bytes of one write: its generation, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locator {
    /// The write.
    pub generation: Generation,
    /// Where its bytes are, in their order; at least one.
    pub extents: Vec<Extent>,
}

/// Part of an object that one locator names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The locator's text, of at most [`LOCATOR_BYTES_MAX`] bytes.
    pub locator: String,
    /// Which bytes of the object.
    pub range: Range<u64>,
}

impl Locator {
    /// Bytes that it names.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.length)).sum()
    }

    /// The texts of as many locators as these extents need. An object of one part is named by that text; one of more needs a
    /// manifest with a row for each.
    pub fn parts(&self) -> Vec<Part> {
        let (mut parts, mut position) = (Vec::new(), 0);
        for extent in &self.extents {
            let end = position + u64::from(extent.length);
            let text = format!(",{extent}");
            match parts.last_mut() {
                Some(Part { locator, range }) if locator.len() + text.len() <= LOCATOR_BYTES_MAX => {
                    locator.push_str(&text);
                    range.end = end;
                }
                _ => {
                    let locator = format!("{PREFIX}{}/{extent}", self.generation);
                    parts.push(Part { locator, range: position..end });
                }
            }
            position = end;
        }
        parts
    }
}

/// Without regard to the limit of a locator's length.
impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/", self.generation)?;
        for (number, extent) in self.extents.iter().enumerate() {
            write!(f, "{}{extent}", if number == 0 { "" } else { "," })?;
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
        let (generation, extents) = split(text.strip_prefix(PREFIX).ok_or(Malformed)?, '/')?;
        let extents = extents.split(',').map(parse_extent).collect::<Result<_, _>>()?;
        Ok(Self { generation: generation.parse()?, extents })
    }
}

fn parse_extent(text: &str) -> Result<Extent, Malformed> {
    let (place, length) = split(text, '+')?;
    let (volume, place) = split(place, '.')?;
    let (segment, block) = split(place, '.')?;
    let segment = SegmentId { volume: VolumeId(number(volume)?), number: number(segment)? };
    let extent = Extent { segment, block: number(block)?, length: number(length)? };
    if (1..=EXTENT_BYTES_MAX).contains(&extent.length) { Ok(extent) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let extent = (any::<u32>(), any::<u32>(), any::<u32>(), 1..=EXTENT_BYTES_MAX).prop_map(
            |(volume, number, block, length)| Extent {
                segment: SegmentId { volume: VolumeId(volume), number },
                block,
                length,
            },
        );
        proptest::collection::vec(extent, 1..200)
    }

    fn extent(segment: u32, block: u32, length: u32) -> Extent {
        Extent { segment: SegmentId { volume: VolumeId(3), number: segment }, block, length }
    }

    #[test]
    fn text_stays_as_it_is() {
        let locator = Locator {
            generation: Generation { timeline: 1, id: 1030 },
            extents: vec![extent(12, 204_800, 8192), extent(0, 0, 1)],
        };
        let text = "v1:1.1030/3.12.204800+8192,3.0.0+1";
        assert_eq!(locator.to_string(), text);
        assert_eq!(text.parse(), Ok(locator));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "v1:",
            "v1:1.2/",
            "v1:1/3.4.5+6",
            "v1:1.2/3.4.5",
            "v1:1.2/3.4+6",
            "v1:1.2/3.4.5+6,",
            "v1:1.2/03.4.5+6",
            "v1:+1.2/3.4.5+6",
            "v1:1.2/3.4.5+0",
            "v1:1.2/3.4.5+67108865",
            "v1:1.2/4294967296.4.5+6",
            "v2:1.2/3.4.5+6",
            "v1:1.2/3.4.5.6+7",
            "v1:1.2/3.4.5+6 ",
            " v1:1.2/3.4.5+6",
            "v1:1.2/3.4.-5+6",
            "objects/00/1030",
            "manifest:1030",
        ] {
            assert_eq!(text.parse::<Locator>(), Err(Malformed), "{text}");
        }
        let long = format!("v1:1.2/{}3.4.5+6", "3.4.5+6,".repeat(300));
        assert_eq!(long.parse::<Locator>(), Err(Malformed));
    }

    #[test]
    fn the_longest_numbers_fit_as_often_as_is_said() {
        let longest = Extent {
            segment: SegmentId { volume: VolumeId(u32::MAX), number: u32::MAX },
            block: u32::MAX,
            length: EXTENT_BYTES_MAX,
        };
        let generation = Generation { timeline: u32::MAX, id: u64::MAX };
        let parts = |count| Locator { generation, extents: vec![longest; count] }.parts().len();
        assert_eq!([parts(LOCATOR_EXTENTS_MIN), parts(LOCATOR_EXTENTS_MIN + 1)], [1, 2]);
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_canonical(text in "(v1:)?[0-9.+,/]{0,60}") {
            if let Ok(locator) = text.parse::<Locator>() {
                prop_assert_eq!(locator.to_string(), text);
            }
        }

        #[test]
        fn parts_name_what_the_whole_names(extents in extents(), timeline in any::<u32>(), id in any::<u64>()) {
            let whole = Locator { generation: Generation { timeline, id }, extents };
            let (mut seen, mut position) = (Vec::new(), 0);
            for Part { locator, range } in whole.parts() {
                prop_assert!(locator.len() <= LOCATOR_BYTES_MAX);
                let part: Locator = locator.parse().unwrap();
                prop_assert_eq!(range, position..position + part.bytes());
                prop_assert_eq!(part.generation, whole.generation);
                position += part.bytes();
                seen.extend(part.extents);
            }
            prop_assert_eq!(seen, whole.extents);
        }
    }
}
