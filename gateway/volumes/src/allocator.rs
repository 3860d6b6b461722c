//! Allocates the blocks of a volume's leased segments, and frees them: not before the caller says that a delete is durable,
//! not before a delay has passed, and not while a read has the extent pinned. It has no clock and no I/O: callers pass the time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

#[cfg(test)]
use crate::tests::mutation::{self, Mutation};
use crate::{
    error::{Error, Result},
    extent::{EXTENT_BYTES_MAX, blocks_for, capacity},
    generation::Generation,
    place::{Extent, Geometry, Run, SegmentId, VolumeId},
    segment::Segment,
    space::{Space, Usage},
};

/// An extent of a write. Only with the generation it names the same bytes for ever.
pub(crate) type Written = (Extent, Generation);

struct Leased {
    segment: Segment,
    epoch: u64,
    /// Nothing is allocated from it until it is leased again.
    is_paused: bool,
}

impl Leased {
    /// Upper bound on the free runs from which may be allocated, in blocks.
    fn longest(&self) -> u32 {
        if self.is_paused { 0 } else { self.segment.longest() }
    }
}

/// A freed extent that waits for its delay or for a read.
struct Freed {
    written: Written,
    /// Not before this time.
    ready: Duration,
}

/// The reads that have an extent pinned.
#[derive(Default)]
struct Pins {
    count: u32,
    /// They have held freed blocks as long as they may.
    is_over: bool,
}

pub(crate) struct Allocator {
    volume: VolumeId,
    geometry: Geometry,
    segments: BTreeMap<u32, Leased>,
    /// The segment that was allocated from last.
    current: u32,
    /// By the time at which they become reusable.
    delayed: VecDeque<Freed>,
    /// Freed and ready, but pinned.
    held: Vec<Freed>,
    /// All of `delayed` and `held`. A second free of one of them is an error.
    freed: HashSet<Extent>,
    waiting_blocks: u64,
    /// Allocated, and it is not known yet whether metadata name them.
    reserved: HashSet<Written>,
    /// Those of `reserved` for which nobody waits any more. The segment's next lease decides.
    doubtful: HashSet<Written>,
    /// Those of `reserved` whose segment was released since. Another store may have used the blocks.
    lost: HashSet<Written>,
    pins: HashMap<Written, Pins>,
    /// How long a pin holds the blocks of a freed extent at most, from the time at which it became ready.
    pin_max: Duration,
}

impl Allocator {
    pub(crate) fn new(volume: VolumeId, geometry: Geometry, pin_max: Duration) -> Self {
        Self {
            volume,
            geometry,
            segments: BTreeMap::new(),
            current: 0,
            delayed: VecDeque::new(),
            held: Vec::new(),
            freed: HashSet::new(),
            waiting_blocks: 0,
            reserved: HashSet::new(),
            doubtful: HashSet::new(),
            lost: HashSet::new(),
            pins: HashMap::new(),
            pin_max,
        }
    }

    /// Takes a segment into use, or rebuilds it. Blocks that no row names are free, except those of writes in progress, of freed
    /// extents that still wait, and of pinned extents. Under a higher epoch the writes in doubt are settled: a transaction under the
    /// earlier epoch has committed by now, or never will.
    pub(crate) fn lease(
        &mut self,
        number: u32,
        epoch: u64,
        used: impl IntoIterator<Item = Run>,
        now: Duration,
    ) -> Result<()> {
        let id = SegmentId { volume: self.volume, number };
        let rebuilt = Segment::rebuild(self.geometry.segment_blocks(), used);
        let mut segment = rebuilt.map_err(|block| Error::Overlap { segment: id, block })?;
        let geometry = self.geometry;
        if self.segments.get(&number).is_some_and(|leased| leased.epoch < epoch) {
            let reserved = &mut self.reserved;
            self.doubtful.retain(|written| written.0.segment.number != number || !reserved.remove(written));
        }
        // If a row names the blocks of a reserved or freed extent, the extent is in use: the row came back with a restore, or the
        // commit that was in doubt has happened.
        let mut is_kept = |extent: &Extent| {
            extent.segment.number != number || extent.run(geometry).is_ok_and(|run| segment.take_free(run))
        };
        self.reserved.retain(|(extent, _)| is_kept(extent));
        self.freed.retain(&mut is_kept);
        // Bytes that copies or parts have shared get no freed row. If pinned extents overlap, only the latest can have its bytes.
        for written in self.pinned_in(number) {
            if is_kept(&written.0) && self.freed.insert(written.0) {
                self.held.push(Freed { written, ready: now });
            }
        }
        self.doubtful.retain(|written| self.reserved.contains(written));
        self.lost.retain(|written| self.reserved.contains(written));
        self.forget_unless_freed();
        self.segments.insert(number, Leased { segment, epoch, is_paused: false });
        Ok(())
    }

    /// Allocates nothing from a segment until it is leased again.
    pub(crate) fn pause(&mut self, number: u32) {
        if let Some(leased) = self.segments.get_mut(&number) {
            leased.is_paused = true;
        }
    }

    /// Allocates nothing more from it.
    pub(crate) fn release(&mut self, number: u32) {
        self.freed.retain(|extent| extent.segment.number != number);
        self.lost.extend(self.reserved.iter().filter(|(extent, _)| extent.segment.number == number));
        self.forget_unless_freed();
        self.segments.remove(&number);
    }

    /// The extents of a segment whose pins still hold blocks, the latest writes first.
    fn pinned_in(&self, number: u32) -> Vec<Written> {
        #[cfg(test)]
        if mutation::is(Mutation::ForgetPins) {
            return Vec::new();
        }
        let pins = self.pins.iter().filter(|((extent, _), pins)| extent.segment.number == number && !pins.is_over);
        let mut pinned: Vec<Written> = pins.map(|(written, _)| *written).collect();
        pinned.sort_unstable_by_key(|(extent, generation)| std::cmp::Reverse((*generation, *extent)));
        pinned
    }

    fn forget_unless_freed(&mut self) {
        self.delayed.retain(|waiting| self.freed.contains(&waiting.written.0));
        self.held.retain(|waiting| self.freed.contains(&waiting.written.0));
        let waiting = self.freed.iter().filter_map(|extent| extent.run(self.geometry).ok());
        self.waiting_blocks = waiting.map(|run| u64::from(run.blocks)).sum();
    }

    /// The epoch under which a segment is leased.
    pub(crate) fn epoch(&self, number: u32) -> Option<u64> {
        self.segments.get(&number).map(|leased| leased.epoch)
    }

    /// The segments, and the epochs under which they are leased.
    pub(crate) fn leases(&self) -> Vec<(u32, u64)> {
        self.segments.iter().map(|(number, leased)| (*number, leased.epoch)).collect()
    }

    /// Bytes of blocks that are free now.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_blocks() * u64::from(self.geometry.block_bytes())
    }

    fn free_blocks(&self) -> u64 {
        self.segments.values().map(|leased| u64::from(leased.segment.free_blocks())).sum()
    }

    pub(crate) fn space(&self) -> Space {
        let block = u64::from(self.geometry.block_bytes());
        let leased = self.segments.len() as u64 * u64::from(self.geometry.segment_blocks());
        let used = leased - self.free_blocks();
        let runs = self.doubtful.iter().filter_map(|(extent, _)| extent.run(self.geometry).ok());
        let in_doubt: u64 = runs.map(|run| u64::from(run.blocks)).sum();
        let paused = self.segments.values().filter(|leased| leased.is_paused);
        let paused: u64 = paused.map(|leased| u64::from(leased.segment.free_blocks())).sum();
        Space {
            volume: 0,
            leased: leased * block,
            used: used * block,
            waiting: self.waiting_blocks * block,
            in_doubt: in_doubt * block,
            paused: paused * block,
        }
    }

    /// Blocks for these bytes of one write: one extent if possible, else the longest free runs; all or nothing. They are reserved
    /// until [`Allocator::settle`].
    pub(crate) fn allocate(&mut self, bytes: u64, generation: Generation, now: Duration) -> Result<Vec<Extent>> {
        self.reap(now);
        let (mut extents, mut rest) = (Vec::new(), bytes);
        while rest > 0 {
            let length = rest.min(EXTENT_BYTES_MAX.into()) as u32;
            let Some(extent) = self.whole(length).or_else(|| self.piece(length)) else {
                extents.into_iter().for_each(|extent| self.give(extent));
                return Err(Error::Full { bytes });
            };
            rest -= u64::from(extent.length);
            extents.push(extent);
        }
        self.reserved.extend(extents.iter().map(|extent| (*extent, generation)));
        Ok(extents)
    }

    /// Ends the reservation of an extent: metadata name it, or certainly never will, and then its blocks are free again. Does
    /// nothing if it is not reserved any more.
    pub(crate) fn settle(&mut self, written: Written, is_named: bool) {
        self.doubtful.remove(&written);
        self.lost.remove(&written);
        if self.reserved.remove(&written) && !is_named {
            self.give(written.0);
        }
    }

    /// Says that nobody will settle this reservation. The segment's next lease will.
    pub(crate) fn leave_in_doubt(&mut self, written: Written) {
        if self.reserved.contains(&written) {
            self.doubtful.insert(written);
        }
    }

    /// The segments with writes in doubt.
    pub(crate) fn doubtful_segments(&self) -> BTreeSet<u32> {
        self.doubtful.iter().map(|(extent, _)| extent.segment.number).collect()
    }

    /// What of a segment is used, in blocks; `None` if it is not leased.
    pub(crate) fn usage(&self, number: u32) -> Option<Usage> {
        let segment = &self.segments.get(&number)?.segment;
        let blocks = |extents: &mut dyn Iterator<Item = &Extent>| -> u64 {
            let of_segment = extents.filter(|extent| extent.segment.number == number);
            of_segment.filter_map(|extent| extent.run(self.geometry).ok()).map(|run| u64::from(run.blocks)).sum()
        };
        Some(Usage {
            used: u64::from(segment.blocks() - segment.free_blocks()),
            unsettled: blocks(&mut self.reserved.iter().map(|(extent, _)| extent)),
            waiting: blocks(&mut self.freed.iter()),
        })
    }

    /// Whether an extent is reserved, and no other store can have used its blocks since it was allocated.
    pub(crate) fn is_kept(&self, written: &Written) -> bool {
        self.reserved.contains(written) && !self.lost.contains(written)
    }

    /// One extent of this length: from the segment that was allocated from last, or the next one that has such a run.
    fn whole(&mut self, length: u32) -> Option<Extent> {
        let blocks = blocks_for(self.geometry, length);
        let (number, run) = loop {
            let mut numbers = self.segments.range(self.current..).chain(self.segments.range(..self.current));
            let (number, _) = numbers.find(|(_, leased)| leased.longest() >= blocks)?;
            let number = *number;
            // A search that finds nothing has learned how long the segment's longest run is, so it is not searched again.
            if let Some(run) = self.segments.get_mut(&number)?.segment.find(blocks) {
                break (number, run);
            }
        };
        self.current = number;
        self.taken(number, run, length)
    }

    /// The longest free run, for as much of the length as it holds.
    fn piece(&mut self, length: u32) -> Option<Extent> {
        loop {
            let (number, longest) = self.longest_segment(None)?;
            let leased = self.segments.get_mut(&number)?;
            let run = leased.segment.find_longest()?;
            // The bound before the search may have been too high. Then another segment may have a longer run.
            if run.blocks < longest && self.longest_segment(Some(number)).is_some_and(|(_, other)| other > run.blocks) {
                continue;
            }
            let held = capacity(self.geometry, run.blocks).min(length);
            if held == 0 {
                return None;
            }
            let run = Run { blocks: blocks_for(self.geometry, held), ..run };
            return self.taken(number, run, held);
        }
    }

    fn longest_segment(&self, other_than: Option<u32>) -> Option<(u32, u32)> {
        let segments = self.segments.iter().filter(|(number, _)| Some(**number) != other_than);
        let (number, leased) = segments.max_by_key(|(_, leased)| leased.longest())?;
        Some((*number, leased.longest())).filter(|(_, longest)| *longest > 0)
    }

    fn taken(&mut self, number: u32, run: Run, length: u32) -> Option<Extent> {
        self.segments.get_mut(&number)?.segment.take(run);
        Some(Extent { segment: SegmentId { volume: self.volume, number }, block: run.first, length })
    }

    fn give(&mut self, extent: Extent) {
        let Ok(run) = extent.run(self.geometry) else { return };
        if let Some(leased) = self.segments.get_mut(&extent.segment.number) {
            leased.segment.give(run);
        }
    }

    /// Makes an extent's blocks reusable after the delay, and when no read has it pinned.
    ///
    /// # Errors
    /// `NotLeased`, `NotUsed`.
    pub(crate) fn free(&mut self, written: Written, delay: Duration, now: Duration) -> Result<()> {
        let (extent, _) = written;
        let run = extent.run(self.geometry)?;
        let leased = self.segments.get(&extent.segment.number).ok_or(Error::NotLeased(extent.segment))?;
        if !leased.segment.is_used(run) || !self.freed.insert(extent) {
            return Err(Error::NotUsed(extent));
        }
        // A row has named it, or it could not be freed.
        self.settle(written, true);
        self.waiting_blocks += u64::from(run.blocks);
        let ready = now + delay;
        // Nearly always the last place, since the delay is nearly always the same.
        let place = self.delayed.iter().rposition(|freed| freed.ready <= ready).map_or(0, |at| at + 1);
        self.delayed.insert(place, Freed { written, ready });
        self.reap(now);
        Ok(())
    }

    /// Makes extents reusable that have waited long enough.
    pub(crate) fn reap(&mut self, now: Duration) {
        while let Some(freed) = self.delayed.pop_front_if(|freed| freed.ready <= now) {
            if self.is_pinned(&freed.written) {
                self.held.push(freed);
            } else {
                self.reuse(freed.written.0);
            }
        }
        let (over, held) =
            std::mem::take(&mut self.held).into_iter().partition(|freed| freed.ready + self.pin_max <= now);
        self.held = held;
        for Freed { written, .. } in over {
            if let Some(pins) = self.pins.get_mut(&written) {
                pins.is_over = true;
            }
            self.reuse(written.0);
        }
    }

    fn is_pinned(&self, written: &Written) -> bool {
        #[cfg(test)]
        if mutation::is(Mutation::IgnorePins) {
            return false;
        }
        self.pins.contains_key(written)
    }

    fn reuse(&mut self, extent: Extent) {
        self.freed.remove(&extent);
        self.waiting_blocks -= extent.run(self.geometry).map_or(0, |run| u64::from(run.blocks));
        self.give(extent);
    }

    /// Keeps the blocks of an extent until it is unpinned as often as it was pinned.
    pub(crate) fn pin(&mut self, written: Written) {
        self.pins.entry(written).or_default().count += 1;
    }

    pub(crate) fn unpin(&mut self, written: Written) {
        let Some(pins) = self.pins.get_mut(&written) else { return };
        pins.count -= 1;
        if pins.count > 0 {
            return;
        }
        self.pins.remove(&written);
        if let Some(at) = self.held.iter().position(|freed| freed.written == written) {
            let freed = self.held.swap_remove(at);
            self.reuse(freed.written.0);
        }
    }

    /// The free blocks of the leased segments.
    #[cfg(test)]
    pub(crate) fn free_runs(&self) -> BTreeMap<u32, Vec<Run>> {
        let runs = |segment: &Segment| segment.free_runs(0..segment.blocks() as usize).collect();
        self.segments.iter().map(|(number, leased)| (*number, runs(&leased.segment))).collect()
    }
}
