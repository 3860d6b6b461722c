//! The store of one host: puts, gets and frees over the volumes that it has mounted.
//!
//! **A put** allocates blocks in memory, writes, and returns when its bytes are flushed. Until then no metadata name them. Its blocks
//! stay reserved until the caller says what became of the metadata: [`Store::named`], or [`Store::discard`] if they were certainly
//! refused.
//!
//! **A delete** happens in the metadata. When it is durable on every server that may be promoted, the caller calls [`Store::free`],
//! only once for each extent: at a second call the blocks may belong to another object.
//!
//! **A get** pins its extents, so their blocks are not used again while it streams, for [`Options::pin_max`] at most. A reader that
//! finds other bytes than those of its generation ends with an error and never returns them.

mod get;
mod put;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use tokio::task::spawn_blocking;

pub use self::{
    get::Reader,
    put::{NewBytes, Stored, Writer},
};
use crate::{
    allocator::{Allocator, Written},
    error::{Error, Result},
    extent::{HEADER_BYTES, Header},
    generation::Generation,
    lane::Lane,
    locator::Locator,
    place::{Extent, Lease, Run, SegmentId, VolumeId},
    space::{Space, Usage},
    volume::Volume,
};

/// How a store behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long freed blocks are not used again. If the database is restored to a time within this delay, all bytes are there.
    pub reuse_delay: Duration,
    /// How long a get keeps the blocks of an object that was deleted meanwhile. A get that takes longer may end with an error.
    pub pin_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { reuse_delay: Duration::ZERO, pin_max: Duration::from_secs(900) }
    }
}

/// Where a part of a put goes: a volume, blocks of it, and for each extent the epoch under which its segment is leased.
struct Room {
    mounted: Arc<Mounted>,
    extents: Vec<(Extent, u64)>,
}

/// Time since some moment; it only goes on.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// A volume with its writes and its blocks.
struct Mounted {
    volume: Arc<Volume>,
    lane: Arc<Lane>,
    allocator: Mutex<Allocator>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.lane.close();
    }
}

struct Inner {
    volumes: RwLock<BTreeMap<VolumeId, Arc<Mounted>>>,
    options: Options,
    clock: Clock,
    /// In tests: no threads. Reads happen where they are awaited, and writes when the test drives them.
    is_inline: bool,
}

/// The volumes of this host. A clone is the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

impl Store {
    /// A store without volumes. Its futures need a Tokio runtime.
    pub fn new(options: Options) -> Self {
        let begin = Instant::now();
        let clock = Box::new(move || begin.elapsed());
        Self(Arc::new(Inner { volumes: RwLock::default(), options, clock, is_inline: false }))
    }

    /// A store that does nothing by itself, for the simulation.
    #[cfg(test)]
    pub(crate) fn inline(options: Options, clock: Clock) -> Self {
        Self(Arc::new(Inner { volumes: RwLock::default(), options, clock, is_inline: true }))
    }

    /// Takes a mounted volume into use. Puts need a leased segment, too.
    ///
    /// # Errors
    /// `Io` if its thread cannot be started; `Invalid` if there is one of this number.
    pub fn add(&self, volume: Volume) -> Result<()> {
        let volume = Arc::new(volume);
        let id = volume.id();
        let mut volumes = self.0.volumes.write();
        if volumes.contains_key(&id) {
            return Err(Error::Invalid("the volume is mounted already"));
        }
        let lane = Arc::new(Lane::new(volume.clone()));
        let allocator = Mutex::new(Allocator::new(id, volume.geometry(), self.0.options.pin_max));
        let thread = if self.0.is_inline {
            None
        } else {
            let lane = lane.clone();
            Some(std::thread::Builder::new().name(format!("volume-{id}")).spawn(move || lane.run())?)
        };
        volumes.insert(id, Arc::new(Mounted { volume, lane, allocator, thread: Mutex::new(thread) }));
        Ok(())
    }

    /// Writes what is queued and ends the use of a volume. Its lock ends with the last read.
    ///
    /// # Errors
    /// `NotMounted`.
    pub async fn remove(&self, volume: VolumeId) -> Result<()> {
        let mounted = self.0.volumes.write().remove(&volume).ok_or(Error::NotMounted(volume))?;
        mounted.lane.close();
        let thread = mounted.thread.lock().take();
        if let Some(thread) = thread {
            // It ends by itself; an error is a panic, which its puts have seen.
            let _ = spawn_blocking(move || thread.join()).await;
        }
        Ok(())
    }

    /// The mounted volume, to grow it.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn volume(&self, volume: VolumeId) -> Result<Arc<Volume>> {
        Ok(self.mounted(volume)?.volume.clone())
    }

    fn mounted(&self, volume: VolumeId) -> Result<Arc<Mounted>> {
        self.0.volumes.read().get(&volume).cloned().ok_or(Error::NotMounted(volume))
    }

    /// Lets the store allocate from a segment, which the database has leased to it under this epoch.
    ///
    /// `used` are the blocks of every extent that a row names, live or shared by copies. They include extents whose delete is not
    /// durable yet on every server that may be promoted, since a failover brings their rows back. They come in any order, and may
    /// come twice.
    ///
    /// A segment that is leased already is rebuilt: a failover or a restore may have changed what rows name. Blocks of puts in
    /// progress, and freed extents that wait, stay as they are unless a row names them. Extents that a get has pinned and no row
    /// names are freed, and wait for the get. Puts in doubt are settled, if the epoch is higher than before and was raised before
    /// `used` was read.
    ///
    /// # Errors
    /// `Overlap` if rows name the same blocks for different extents; then nothing changes. `NotMounted`, `Invalid`.
    pub fn lease(&self, segment: SegmentId, epoch: u64, used: impl IntoIterator<Item = Run>) -> Result<()> {
        let mounted = self.mounted(segment.volume)?;
        if segment.number >= mounted.volume.segments() {
            return Err(Error::Invalid("the volume has no such segment"));
        }
        mounted.allocator.lock().lease(segment.number, epoch, used, (self.0.clock)())
    }

    /// Writes zeros over a segment that was never used, before it is leased. The file system then marks its blocks as written, which
    /// otherwise the flush of each put would have to do. It does not check whether a row names bytes there: such bytes are lost.
    ///
    /// # Errors
    /// `Invalid` if the segment is leased, or the volume does not have it; `NotMounted`, `ReadOnly`, `Io`.
    pub async fn fill(&self, segment: SegmentId) -> Result<()> {
        let mounted = self.mounted(segment.volume)?;
        if mounted.allocator.lock().epoch(segment.number).is_some() {
            return Err(Error::Invalid("the segment is leased"));
        }
        let filled = spawn_blocking(move || mounted.volume.fill(segment.number)).await;
        filled.unwrap_or_else(|panic| Err(std::io::Error::other(panic).into()))
    }

    /// Allocates nothing from a segment until it is leased again: its epoch is being raised, so no row could name new bytes there.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn pause(&self, segment: SegmentId) -> Result<()> {
        self.mounted(segment.volume)?.allocator.lock().pause(segment.number);
        Ok(())
    }

    /// The epoch under which a segment is leased; `None` if it is not.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn epoch(&self, segment: SegmentId) -> Result<Option<u64>> {
        Ok(self.mounted(segment.volume)?.allocator.lock().epoch(segment.number))
    }

    /// Allocates no more from a segment. Puts that are under way there cannot be renewed. Its bytes stay readable.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn release(&self, segment: SegmentId) -> Result<()> {
        self.mounted(segment.volume)?.allocator.lock().release(segment.number);
        Ok(())
    }

    /// Begins a put.
    pub fn writer(&self, new: NewBytes) -> Writer {
        Writer::new(self.clone(), new)
    }

    /// Says that metadata name what was put.
    pub fn named(&self, stored: &Stored) {
        self.settle(&stored.locators, true);
    }

    /// Says that no metadata name what was put, and none ever will: its blocks are free at once. Do not call it while the outcome
    /// is unknown.
    pub fn discard(&self, stored: &Stored) {
        self.settle(&stored.locators, false);
    }

    /// Says that nobody will learn the outcome. The blocks stay reserved until the segment is leased under a higher epoch.
    pub fn leave_in_doubt(&self, stored: &Stored) {
        for locator in &stored.locators {
            let Ok(mounted) = self.mounted(locator.lease.segment.volume) else { continue };
            let mut allocator = mounted.allocator.lock();
            locator.extents().for_each(|extent| allocator.leave_in_doubt((extent, locator.generation)));
        }
    }

    /// The same bytes under the epochs that their segments have now. The blocks have stayed reserved, so nobody else has used them.
    ///
    /// # Errors
    /// `NotLeased` if a segment is not leased any more, or was released meanwhile: another store may have used the blocks.
    pub fn renew(&self, stored: &Stored) -> Result<Stored> {
        let renewed = |locator: &Locator| {
            let Lease { segment, .. } = locator.lease;
            let mounted = self.mounted(segment.volume)?;
            let allocator = mounted.allocator.lock();
            let is_kept = locator.extents().all(|extent| allocator.is_kept(&(extent, locator.generation)));
            let epoch = allocator.epoch(segment.number).filter(|_| is_kept).ok_or(Error::NotLeased(segment))?;
            Ok(Locator { lease: Lease { segment, epoch }, ..locator.clone() })
        };
        Ok(Stored { locators: stored.locators.iter().map(renewed).collect::<Result<_>>()? })
    }

    fn settle(&self, locators: &[Locator], is_named: bool) {
        for locator in locators {
            let Ok(mounted) = self.mounted(locator.lease.segment.volume) else { continue };
            let mut allocator = mounted.allocator.lock();
            locator.extents().for_each(|extent| allocator.settle((extent, locator.generation), is_named));
        }
    }

    /// Makes the blocks of a write reusable after the delay and after the gets that have them pinned. Call it only once, when the
    /// delete is durable on every server that may be promoted. All extents are tried; the first error is returned.
    ///
    /// # Errors
    /// `NotLeased`: nothing is to be done, since the next store that leases the segment derives that they are free. `NotUsed`,
    /// `Foreign`: they were freed before, and are free or belong to another write now. `NotMounted`, `Invalid`.
    pub fn free(&self, locator: &Locator) -> Result<()> {
        self.free_after(locator, self.0.options.reuse_delay)
    }

    /// The same with another delay, such as the rest of it for extents that were freed before a restart. These extents have to be
    /// among `used` when their segment is leased.
    ///
    /// # Errors
    /// As of [`Store::free`].
    pub fn free_after(&self, locator: &Locator, delay: Duration) -> Result<()> {
        let now = (self.0.clock)();
        let mounted = self.mounted(locator.lease.segment.volume)?;
        let free = |extent: Extent| {
            mounted.refuse_foreign(extent, locator.generation)?;
            mounted.allocator.lock().free((extent, locator.generation), delay, now)
        };
        let results: Vec<Result<()>> = locator.extents().map(free).collect();
        results.into_iter().collect()
    }

    /// The space of a volume, as it is now.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn space(&self, volume: VolumeId) -> Result<Space> {
        let mounted = self.mounted(volume)?;
        let bytes = u64::from(mounted.volume.segments()) * mounted.volume.geometry().segment_bytes();
        let mut allocator = mounted.allocator.lock();
        allocator.reap((self.0.clock)());
        Ok(Space { volume: bytes, ..allocator.space() })
    }

    /// What of a leased segment is used.
    ///
    /// # Errors
    /// `NotMounted`, `NotLeased`.
    pub fn usage(&self, segment: SegmentId) -> Result<Usage> {
        let mounted = self.mounted(segment.volume)?;
        let mut allocator = mounted.allocator.lock();
        allocator.reap((self.0.clock)());
        allocator.usage(segment.number).ok_or(Error::NotLeased(segment))
    }

    /// The segments of a volume in which puts are in doubt.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn doubtful_segments(&self, volume: VolumeId) -> Result<Vec<SegmentId>> {
        let numbers = self.mounted(volume)?.allocator.lock().doubtful_segments();
        Ok(numbers.into_iter().map(|number| SegmentId { volume, number }).collect())
    }

    /// The leased segments of a volume.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn leases(&self, volume: VolumeId) -> Result<Vec<Lease>> {
        let leases = self.mounted(volume)?.allocator.lock().leases();
        let lease = |(number, epoch)| Lease { segment: SegmentId { volume, number }, epoch };
        Ok(leases.into_iter().map(lease).collect())
    }

    /// Allocates from the volume with the fewest waiting writes; of equals, from that with most room.
    fn allocate(&self, bytes: u64, generation: Generation) -> Result<Room> {
        let volumes = self.0.volumes.read();
        let writable = volumes.values().filter(|mounted| !mounted.volume.is_read_only());
        let mut candidates: Vec<_> = writable
            .map(|mounted| {
                let free = mounted.allocator.lock().free_bytes();
                (mounted.lane.waiting(), std::cmp::Reverse(free), mounted)
            })
            .collect();
        candidates.sort_by_key(|(waiting, free, _)| (*waiting, *free));
        let Some((.., last)) = candidates.last() else {
            let read_only = volumes.values().next().map(|mounted| Error::ReadOnly(mounted.volume.id()));
            return Err(read_only.unwrap_or(Error::Full { bytes }));
        };
        let now = (self.0.clock)();
        let allocate = |mounted: &Arc<Mounted>| {
            let mut allocator = mounted.allocator.lock();
            let extents = allocator.allocate(bytes, generation, now)?;
            // While the lock is held: a lease of the segment raises its epoch.
            let under_epoch = |extent: Extent| Some((extent, allocator.epoch(extent.segment.number)?));
            let extents = extents.into_iter().filter_map(under_epoch).collect();
            Ok(Room { mounted: mounted.clone(), extents })
        };
        for (.., mounted) in &candidates[..candidates.len() - 1] {
            match allocate(mounted) {
                Err(Error::Full { .. }) => {}
                result => return result,
            }
        }
        allocate(last)
    }

    /// Writes what waits now, without threads. `false` if nothing waited.
    #[cfg(test)]
    pub(crate) fn drive(&self, volume: VolumeId) -> bool {
        self.mounted(volume).is_ok_and(|mounted| mounted.lane.drive())
    }

    /// Nothing of what waits is written.
    #[cfg(test)]
    pub(crate) fn crash(&self) {
        self.0.volumes.read().values().for_each(|mounted| mounted.lane.lose_waiting());
    }

    /// The free blocks of a volume's leased segments.
    #[cfg(test)]
    pub(crate) fn free_runs(&self, volume: VolumeId) -> BTreeMap<u32, Vec<Run>> {
        let mounted = self.mounted(volume).unwrap();
        let mut allocator = mounted.allocator.lock();
        allocator.reap((self.0.clock)());
        allocator.free_runs()
    }
}

impl Mounted {
    /// Notices a second free of the same extent by its header, if another write has used the blocks: what was written recently is
    /// cached. This is only a second protection, since the caller frees once.
    fn refuse_foreign(&self, extent: Extent, expected: Generation) -> Result<()> {
        extent.run(self.volume.geometry())?;
        let mut bytes = [0; HEADER_BYTES];
        let read = self.volume.file().read_cached_at(&mut bytes, extent.offset(self.volume.geometry()));
        match Header::decode(&bytes[..read]) {
            Some(Header { generation, .. }) if generation != expected => {
                Err(Error::Foreign { extent, expected, found: generation })
            }
            _ => Ok(()),
        }
    }

    fn pin(&self, written: Written) {
        self.allocator.lock().pin(written);
    }

    fn unpin(&self, written: Written) {
        self.allocator.lock().unpin(written);
    }
}
