//! Derives which blocks of a segment are used from the locators that rows name. Nothing else records it (P61).

use std::collections::{BTreeMap, BTreeSet};

use mantle_volumes::{Geometry, Locator, Run, SegmentId, Usage};

use crate::store::NamedIn;

/// What rows name in a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Each run once, also if several rows name it.
    pub(super) used: Vec<Run>,
    /// Locators with a freed row that is obsolete: another write has the blocks.
    pub(super) obsolete: Vec<String>,
}

/// `None` if a locator is malformed or of another segment.
pub(super) fn read(named: &[NamedIn], segment: SegmentId, geometry: Geometry) -> Option<Named> {
    let (mut freed, mut live) = (Vec::new(), BTreeSet::new());
    for NamedIn { locator: text, is_freed } in named {
        let locator: Locator = text.parse().ok()?;
        if locator.lease.segment != segment {
            return None;
        }
        let runs: Vec<Run> = locator.extents().map(|extent| extent.run(geometry).ok()).collect::<Option<_>>()?;
        match is_freed {
            true => freed.push((locator.generation, text, runs)),
            false => live.extend(runs),
        }
    }
    let mut taken: Vec<Run> = live.into_iter().collect();
    let mut obsolete = Vec::new();
    // Of two freed locators with the same blocks the later one is valid.
    freed.sort_unstable_by_key(|(generation, ..)| std::cmp::Reverse(*generation));
    let mut occupied = Occupied::new(&taken);
    for (_, text, runs) in freed {
        match occupied.has_any_of(&runs) {
            true => obsolete.push(text.clone()),
            false => {
                occupied.add(&runs);
                taken.extend(runs);
            }
        }
    }
    taken.sort_unstable();
    Some(Named { used: taken, obsolete })
}

/// Runs by their first block.
struct Occupied(BTreeMap<u32, u32>);

impl Occupied {
    fn new(runs: &[Run]) -> Self {
        let mut occupied = Self(BTreeMap::new());
        occupied.add(runs);
        occupied
    }

    fn add(&mut self, runs: &[Run]) {
        self.0.extend(runs.iter().map(|run| (run.first, run.blocks)));
    }

    fn has_any_of(&self, runs: &[Run]) -> bool {
        let has = |run: &Run| {
            let end = u64::from(run.first) + u64::from(run.blocks);
            let mut before = self.0.range(..u32::try_from(end).unwrap_or(u32::MAX));
            before.next_back().is_some_and(|(first, blocks)| u64::from(*first) + u64::from(*blocks) > run.first.into())
        };
        runs.iter().any(has)
    }
}

/// Whether blocks are used that no row names, no put has reserved and no freed extent waits with.
pub(super) fn has_unnamed(usage: Usage, named: &[Run]) -> bool {
    let named: u64 = named.iter().map(|run| u64::from(run.blocks)).sum();
    usage.used.saturating_sub(usage.unsettled).saturating_sub(usage.waiting) > named
}

#[cfg(test)]
mod tests {
    use mantle_volumes::VolumeId;

    use super::*;

    const SEGMENT: SegmentId = SegmentId { volume: VolumeId(3), number: 12 };

    fn geometry() -> Geometry {
        Geometry::new(4096, 1 << 20).unwrap()
    }

    fn named(texts: &[(&str, bool)]) -> Option<Named> {
        let named = |(text, is_freed): &(&str, bool)| NamedIn { locator: (*text).to_owned(), is_freed: *is_freed };
        read(&texts.iter().map(named).collect::<Vec<_>>(), SEGMENT, geometry())
    }

    fn run(first: u32, blocks: u32) -> Run {
        Run { first, blocks }
    }

    #[test]
    fn blocks_follow_from_locators() {
        let found = named(&[
            ("v1:3.12.7/1.1030/20+8192,4+1", false),
            // A copy: two rows name the same.
            ("v1:3.12.7/1.1030/20+8192,4+1", false),
            ("v1:3.12.6/1.9/30+4000", true),
        ]);
        let used = vec![run(4, 1), run(20, 3), run(30, 1)];
        assert_eq!(found, Some(Named { used, obsolete: vec![] }));
        for malformed in
            ["v1:3.13.7/1.1030/20+8192", "v1:3.12.7/1.1030/20", "v1:3.12.7/1.1030/255+8192", "objects/00/a"]
        {
            assert_eq!(named(&[(malformed, false)]), None, "{malformed}");
        }
    }

    /// A standby was promoted that lacked the end of the deletes' records: it knows as freed what was used again.
    #[test]
    fn what_is_named_is_not_free() {
        let reused = [("v1:3.12.7/1.1030/20+8192", false), ("v1:3.12.6/1.1029/22+4000", true)];
        assert_eq!(
            named(&reused),
            Some(Named { used: vec![run(20, 3)], obsolete: vec!["v1:3.12.6/1.1029/22+4000".into()] })
        );
        let freed_twice = [("v1:3.12.6/1.1029/20+8192", true), ("v1:3.12.7/2.1000/21+4000", true)];
        assert_eq!(
            named(&freed_twice),
            Some(Named { used: vec![run(21, 1)], obsolete: vec!["v1:3.12.6/1.1029/20+8192".into()] })
        );
    }

    #[test]
    fn blocks_that_nobody_names_are_noticed() {
        let usage = Usage { used: 10, unsettled: 2, waiting: 1 };
        assert!(has_unnamed(usage, &[run(0, 6)]));
        assert!(!has_unnamed(usage, &[run(0, 7)]));
        assert!(!has_unnamed(usage, &[run(0, 9)]));
    }
}
