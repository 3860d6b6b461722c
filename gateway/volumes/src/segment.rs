//! Which blocks of one segment are used: a bitmap in memory. It is derived from the extents that rows name and never stored, so
//! after a crash it cannot differ from them.

use fixedbitset::FixedBitSet;

use crate::place::Run;

/// Bits of a word of the bitmap.
const WORD_BITS: usize = usize::BITS as usize;
/// How many blocks after the first run that is long enough are searched for one that fits better.
const WINDOW_BLOCKS: usize = 16 << 10;

/// The blocks of a segment.
pub(crate) struct Segment {
    used: FixedBitSet,
    used_blocks: u32,
    /// Where the last search ended.
    cursor: usize,
    /// Upper bound on the free runs, in blocks.
    longest: u32,
}

impl Segment {
    /// A segment of which these runs are used. The same run may come more than once: several rows may name the same bytes.
    ///
    /// # Errors
    /// The first block of a run that overlaps another one, or that ends behind the segment.
    pub(crate) fn rebuild(blocks: u32, used: impl IntoIterator<Item = Run>) -> Result<Self, u32> {
        let mut segment =
            Self { used: FixedBitSet::with_capacity(blocks as usize), used_blocks: 0, cursor: 0, longest: blocks };
        let mut runs: Vec<Run> = used.into_iter().collect();
        runs.sort_unstable();
        runs.dedup();
        let mut end = 0;
        for run in runs {
            let begin = u64::from(run.first);
            if begin < end || begin + u64::from(run.blocks) > blocks.into() {
                return Err(run.first);
            }
            end = begin + u64::from(run.blocks);
            segment.take(run);
        }
        Ok(segment)
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.used.len() as u32
    }

    pub(crate) fn free_blocks(&self) -> u32 {
        self.blocks() - self.used_blocks
    }

    /// Upper bound on the free runs, in blocks.
    pub(crate) fn longest(&self) -> u32 {
        self.longest
    }

    pub(crate) fn take(&mut self, run: Run) {
        self.used.insert_range(run.range());
        self.used_blocks += run.blocks;
    }

    /// Makes blocks free. `false`, and nothing changes, if not all of them are used.
    pub(crate) fn give(&mut self, run: Run) -> bool {
        let range = run.range();
        if range.end > self.used.len() || !self.used.contains_all_in_range(range.clone()) {
            return false;
        }
        self.used.remove_range(range.clone());
        self.used_blocks -= run.blocks;
        let (begin, end) = (self.free_before(range.start), self.next(range.end, true));
        self.longest = self.longest.max((end - begin) as u32);
        true
    }

    /// Takes a run of which nothing is used; `false`, and nothing changes, if something is.
    pub(crate) fn take_free(&mut self, run: Run) -> bool {
        let is_free = run.range().end <= self.used.len() && !self.used.contains_any_in_range(run.range());
        if is_free {
            self.take(run);
        }
        is_free
    }

    pub(crate) fn is_used(&self, run: Run) -> bool {
        run.range().end <= self.used.len() && self.used.contains_all_in_range(run.range())
    }

    /// A free run of this many blocks, which the caller takes. The search begins where the last one ended, so extents that are
    /// written one after the other are neighbours, and become one write.
    pub(crate) fn find(&mut self, blocks: u32) -> Option<Run> {
        if blocks > self.longest {
            return None;
        }
        let cursor = self.cursor;
        let (behind, seen_behind) = self.best_fit(cursor..self.used.len(), blocks);
        let found = match behind {
            Some(found) => Some(found),
            None => {
                // The first search saw only a part of a run that crosses the cursor, so this one goes beyond the cursor.
                let end = self.next(cursor, true);
                let (before, seen_before) = self.best_fit(0..end, blocks);
                if before.is_none() {
                    self.longest = seen_behind.max(seen_before);
                }
                before
            }
        };
        let run = Run { first: found?, blocks };
        self.cursor = run.range().end;
        Some(run)
    }

    /// The shortest free run in the window that is long enough; and the longest that was seen.
    fn best_fit(&self, range: std::ops::Range<usize>, blocks: u32) -> (Option<u32>, u32) {
        let (mut best, mut longest): (Option<Run>, u32) = (None, 0);
        let mut end = range.end;
        for run in self.free_runs(range) {
            if run.first as usize >= end {
                break;
            }
            longest = longest.max(run.blocks);
            if run.blocks < blocks {
                continue;
            }
            if best.is_none() {
                end = end.min(run.first as usize + WINDOW_BLOCKS);
            }
            if best.is_none_or(|best| run.blocks < best.blocks) {
                best = Some(run);
            }
            if run.blocks == blocks {
                break;
            }
        }
        (best.map(|best| best.first), longest)
    }

    /// The longest free run. From now on [`Segment::longest`] is exact.
    pub(crate) fn find_longest(&mut self) -> Option<Run> {
        let longest = self.free_runs(0..self.used.len()).max_by_key(|run| run.blocks);
        self.longest = longest.map_or(0, |run| run.blocks);
        longest
    }

    /// The free runs of a range of blocks, cut off at its ends.
    pub(crate) fn free_runs(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = Run> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let begin = self.next(at, false);
            if begin >= range.end {
                return None;
            }
            at = self.next(begin, true).min(range.end);
            Some(Run { first: begin as u32, blocks: (at - begin) as u32 })
        })
    }

    /// The first block from there on that is used, or that is free; the end if there is none.
    fn next(&self, at: usize, used: bool) -> usize {
        let words = self.used.as_slice();
        let flip = if used { 0 } else { usize::MAX };
        let (mut number, shift) = (at / WORD_BITS, at % WORD_BITS);
        let Some(first) = words.get(number) else { return self.used.len() };
        let mut word = (first ^ flip) & (usize::MAX << shift);
        while word == 0 {
            number += 1;
            match words.get(number) {
                Some(next) => word = next ^ flip,
                None => return self.used.len(),
            }
        }
        (number * WORD_BITS + word.trailing_zeros() as usize).min(self.used.len())
    }

    /// The first block of the free run that ends before this block.
    fn free_before(&self, at: usize) -> usize {
        let words = self.used.as_slice();
        let (mut number, shift) = (at / WORD_BITS, at % WORD_BITS);
        let below = |word: usize, bits: usize| word & !(usize::MAX << bits);
        let mut word = words.get(number).map_or(0, |word| below(*word, shift));
        loop {
            if word != 0 {
                return number * WORD_BITS + WORD_BITS - word.leading_zeros() as usize;
            }
            if number == 0 {
                return 0;
            }
            number -= 1;
            word = words[number];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(first: u32, blocks: u32) -> Run {
        Run { first, blocks }
    }

    fn free(segment: &Segment) -> Vec<Run> {
        segment.free_runs(0..segment.blocks() as usize).collect()
    }

    #[test]
    fn runs_that_overlap_are_refused() {
        let rebuild = |runs: &[Run]| Segment::rebuild(100, runs.iter().copied()).map(|segment| free(&segment));
        assert_eq!(rebuild(&[run(10, 5), run(0, 3), run(10, 5)]), Ok(vec![run(3, 7), run(15, 85)]));
        assert_eq!(rebuild(&[run(10, 5), run(14, 3)]), Err(14));
        assert_eq!(rebuild(&[run(10, 5), run(10, 6)]), Err(10));
        assert_eq!(rebuild(&[run(99, 2)]), Err(99));
        assert_eq!(rebuild(&[run(u32::MAX, u32::MAX)]), Err(u32::MAX));
        assert_eq!(rebuild(&[run(0, 100)]), Ok(vec![]));
    }

    #[test]
    fn the_run_that_fits_best_is_taken() {
        let mut segment = Segment::rebuild(1000, [run(10, 1), run(15, 1), run(19, 1), run(100, 1)]).unwrap();
        // Free: 0..10, 11..15, 16..19, 20..100, 101..1000.
        for (blocks, first) in [(3, 16), (4, 11), (10, 0), (50, 20)] {
            let found = segment.find(blocks).unwrap();
            assert_eq!(found, run(first, blocks));
            segment.take(found);
            segment.cursor = 0;
        }
        assert_eq!(segment.find(900), None);
        assert_eq!((segment.longest(), segment.find_longest()), (899, Some(run(101, 899))));
    }

    #[test]
    fn a_run_over_the_cursor_is_found() {
        let mut segment = Segment::rebuild(100, []).unwrap();
        segment.cursor = 50;
        assert_eq!(segment.find(80), Some(run(0, 80)));
    }

    proptest! {
        /// Against a plain list of flags.
        #[test]
        fn it_does_what_a_list_does(blocks in 1u32..400, steps in proptest::collection::vec((any::<bool>(), 1u32..60, any::<prop::sample::Index>()), 1..200)) {
            let mut segment = Segment::rebuild(blocks, []).unwrap();
            let mut list = vec![false; blocks as usize];
            let mut taken: Vec<Run> = Vec::new();
            for (is_take, length, choice) in steps {
                let longest = list.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0) as u32;
                if is_take {
                    match segment.find(length) {
                        Some(found) => {
                            prop_assert!(list[found.range()].iter().all(|used| !used));
                            prop_assert_eq!(found.blocks, length);
                            list[found.range()].fill(true);
                            segment.take(found);
                            taken.push(found);
                        }
                        None => prop_assert!(longest < length),
                    }
                } else if !taken.is_empty() {
                    let given = taken.swap_remove(choice.index(taken.len()));
                    prop_assert!(segment.give(given));
                    prop_assert!(!segment.give(given));
                    list[given.range()].fill(false);
                }
                let longest = list.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0) as u32;
                prop_assert!(segment.longest() >= longest);
                prop_assert_eq!(segment.free_blocks(), list.iter().filter(|used| !**used).count() as u32);
                let again = Segment::rebuild(blocks, taken.iter().copied()).unwrap();
                prop_assert_eq!(free(&segment), free(&again));
                prop_assert_eq!(segment.find_longest().map_or(0, |run| run.blocks), longest);
            }
        }
    }
}
