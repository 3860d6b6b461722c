//! The beginning of a locator of bytes in volumes: the segment that has the bytes, and the epoch under which it was
//! leased (P59). PostgreSQL reads only this part of the text (docs/formats.md).

use std::str::FromStr;

/// The beginning of each locator of bytes in volumes.
pub const VOLUME_LOCATOR_PREFIX: &str = "v1:";

/// A segment of a volume, and the epoch of a lease of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeasedSegment {
    /// The volume's number in the cluster.
    pub volume: u32,
    /// The segment's number in the volume.
    pub segment: u32,
    /// The lease's epoch.
    pub epoch: u64,
}

impl LeasedSegment {
    /// Reads `v1:<volume>.<segment>.<epoch>/`, and answers what follows, too. Numbers are decimal without leading zeros. `None` for
    /// any other text.
    pub fn of_locator(text: &str) -> Option<(Self, &str)> {
        let (place, rest) = text.strip_prefix(VOLUME_LOCATOR_PREFIX)?.split_once('/')?;
        let (volume, place) = place.split_once('.')?;
        let (segment, epoch) = place.split_once('.')?;
        Some((Self { volume: number(volume)?, segment: number(segment)?, epoch: number(epoch)? }, rest))
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    if is_canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_read_and_the_rest_left() {
        let read = LeasedSegment::of_locator("v1:3.12.1048577/1.1030/204800+8192,0+1");
        let segment = LeasedSegment { volume: 3, segment: 12, epoch: 1_048_577 };
        assert_eq!(read, Some((segment, "1.1030/204800+8192,0+1")));
        let largest = LeasedSegment { volume: u32::MAX, segment: u32::MAX, epoch: u64::MAX };
        assert_eq!(LeasedSegment::of_locator("v1:4294967295.4294967295.18446744073709551615/"), Some((largest, "")));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "v1:",
            "v1:3.12.5",
            "v1:3.12/1.2/",
            "v1:3.12.5.6/1.2/",
            "v1:3..5/1.2/",
            "v1:03.12.5/1.2/",
            "v1:+3.12.5/1.2/",
            "v1:3.12.05/1.2/",
            "v1:4294967296.12.5/",
            "v1:3.12.18446744073709551616/",
            "v2:3.12.5/1.2/",
            " v1:3.12.5/1.2/",
            "manifest:7",
        ] {
            assert_eq!(LeasedSegment::of_locator(text), None, "{text}");
        }
    }
}
