//! The store over real files, with its threads.

use std::{
    io::{self, IoSlice},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use uuid::Uuid;

use super::oracle::content;
use crate::{
    Error, Expected, Extent, Generation, Geometry, Lease, Locator, NewBytes, NewVolume, Options, Piece, RealFile, Run,
    Scrub, ScrubCursor, SegmentId, Space, Store, Stored, UNIT_BYTES, Volume, VolumeFile, VolumeId,
    allocator::Allocator, extent::head_bytes,
};

const CLUSTER: Uuid = Uuid::from_u128(1);

struct Fixture {
    folder: tempfile::TempDir,
    geometry: Geometry,
    store: Store,
}

impl Fixture {
    fn new(volumes: u32, block_bytes: u32, segment_bytes: u64, options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let geometry = Geometry::new(block_bytes, segment_bytes).unwrap();
        let fixture = Self { folder, geometry, store: Store::new(options) };
        for volume in (1..=volumes).map(VolumeId) {
            let new = NewVolume { cluster: CLUSTER, volume, geometry, segments: 2 };
            Volume::create(&RealFile::create(&fixture.path(volume)).unwrap(), new).unwrap();
            mount(&fixture.store, &fixture.path(volume), volume);
            for number in 0..2 {
                fixture.store.lease(SegmentId { volume, number }, 7, []).unwrap();
            }
        }
        fixture
    }

    fn path(&self, volume: VolumeId) -> PathBuf {
        self.folder.path().join(volume.to_string())
    }
}

fn mount(store: &Store, path: &Path, volume: VolumeId) {
    let expected = Expected { cluster: CLUSTER, volume, mount_epoch: 0 };
    store.add(Volume::mount(Arc::new(RealFile::open(path).unwrap()), expected).unwrap()).unwrap();
}

fn generation(id: u64) -> Generation {
    Generation { timeline: 1, id }
}

async fn put(store: &Store, id: u64, bytes: usize, piece: usize, size: Option<u64>) -> Result<Stored, Error> {
    let mut writer = store.writer(NewBytes { generation: generation(id), object: id, size });
    for piece in content(0, generation(id), bytes).chunks(piece) {
        writer.write(Bytes::copy_from_slice(piece)).await?;
    }
    writer.finish().await
}

fn extents(stored: &Stored) -> Vec<Extent> {
    stored.locators.iter().flat_map(Locator::extents).collect()
}

/// The only locator.
fn locator(stored: &Stored) -> &Locator {
    assert_eq!(stored.locators.len(), 1);
    &stored.locators[0]
}

async fn get(store: &Store, stored: &Stored, range: std::ops::Range<u64>) -> Result<Vec<u8>, Error> {
    let mut reader = store.read(&stored.locators, range)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_puts_are_read_again_and_after_a_restart() {
    let fixture = Fixture::new(1, 1024, 8 << 20, Options::default());
    let store = &fixture.store;
    let size = |id: u64| (id as usize * 7919) % 200_000 + 1;
    let stored = join_all((1..60).map(|id| put(store, id, size(id), 10_000, Some(size(id) as u64)))).await;
    let stored: Vec<Stored> = stored.into_iter().collect::<Result<_, _>>().unwrap();
    for stored in &stored {
        store.named(stored);
        let Locator { lease, generation, pieces } = locator(stored);
        assert_eq!((pieces.len(), lease.epoch), (1, 7));
        let bytes = size(generation.id) as u64;
        assert!(get(store, stored, 0..bytes).await.unwrap() == content(0, *generation, bytes as usize));
    }
    store.remove(VolumeId(1)).await.unwrap();
    let store = Store::new(Options::default());
    mount(&store, &fixture.path(VolumeId(1)), VolumeId(1));
    for stored in &stored {
        let generation = locator(stored).generation;
        let bytes = size(generation.id);
        assert!(get(&store, stored, 0..bytes as u64).await.unwrap() == content(0, generation, bytes));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_range_is_read() {
    let fixture = Fixture::new(1, 1024, 8 << 20, Options::default());
    let bytes = 300_000;
    let stored = put(&fixture.store, 5, bytes, 50_000, None).await.unwrap();
    assert!(extents(&stored).len() > 5, "its size was not announced");
    let whole = content(0, generation(5), bytes);
    for (at, length) in
        [(0, 0), (0, 1), (1, 4095), (4095, 2), (4096, 4096), (100_000, 150_000), (299_999, 1), (0, 300_000)]
    {
        let read = get(&fixture.store, &stored, at..at + length).await.unwrap();
        assert!(read == whole[at as usize..(at + length) as usize], "{at} {length}");
    }
    for (at, end) in [(0, 300_001), (2, 1), (u64::MAX, u64::MAX)] {
        assert!(matches!(get(&fixture.store, &stored, at..end).await, Err(Error::Invalid(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_goes_over_volumes_and_a_full_store_refuses() {
    let fixture = Fixture::new(2, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    // Four segments of 1 MiB.
    let bytes = 3_900_000;
    let stored = put(store, 5, bytes, 300_000, Some(bytes as u64)).await.unwrap();
    let volumes: std::collections::BTreeSet<_> = extents(&stored).iter().map(|e| e.segment.volume).collect();
    assert_eq!((volumes.len(), stored.locators.len()), (2, 4), "a locator is of one segment");
    assert!(get(store, &stored, 0..bytes as u64).await.unwrap() == content(0, generation(5), bytes));
    assert!(matches!(put(store, 6, 400_000, 10_000, None).await, Err(Error::Full { .. })));
    // What was refused left nothing.
    let used = |volume| store.space(VolumeId(volume)).unwrap().used;
    let named = |e: &Extent| u64::from(e.run(fixture.geometry).unwrap().blocks) * 4096;
    assert_eq!(used(1) + used(2), extents(&stored).iter().map(named).sum());
    store.discard(&stored);
    assert_eq!(used(1) + used(2), 0);
    // More room.
    store.volume(VolumeId(1)).unwrap().grow(3).unwrap();
    store.lease(SegmentId { volume: VolumeId(1), number: 4 }, 7, []).unwrap();
    let beyond = SegmentId { volume: VolumeId(1), number: 5 };
    assert!(matches!(store.lease(beyond, 7, []), Err(Error::Invalid(_))));
    let _ = put(store, 7, 4_900_000, 300_000, Some(4_900_000)).await.unwrap();
}

/// A file of which nothing is in the kernel's cache. It notes what it is asked to read ahead.
struct Cold {
    file: RealFile,
    ahead: Mutex<Vec<Range<u64>>>,
}

impl VolumeFile for Cold {
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    fn read_cached_at(&self, _buffer: &mut [u8], _at: u64) -> usize {
        0
    }

    fn will_read(&self, range: Range<u64>) {
        self.ahead.lock().push(range);
    }

    fn write_all_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        self.file.write_all_at(pieces, at)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}

/// And nothing that the read does not want.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_cold_range_is_read_ahead() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    let stored = put(store, 1, 100_000, 100_000, Some(100_000)).await.unwrap();
    store.remove(VolumeId(1)).await.unwrap();
    let cold = Arc::new(Cold { file: RealFile::open(&fixture.path(VolumeId(1))).unwrap(), ahead: Mutex::default() });
    let expected = Expected { cluster: CLUSTER, volume: VolumeId(1), mount_epoch: 0 };
    store.add(Volume::mount(cold.clone(), expected).unwrap()).unwrap();
    let read = get(store, &stored, 20_000..60_000).await.unwrap();
    assert!(read == content(0, generation(1), 100_000)[20_000..60_000]);
    // Units 4 to 14, in three pieces. Behind the last one nothing is wanted.
    let [extent] = extents(&stored)[..] else { panic!("{stored:?}") };
    let of = |unit: u64| extent.offset(fixture.geometry) + head_bytes(extent.length) as u64 + unit * UNIT_BYTES as u64;
    assert_eq!(*cold.ahead.lock(), [of(4)..of(15), of(8)..of(15)]);
}

/// A segment is leased again in the middle of a put. The put still names the epoch before, so the transaction refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_names_the_epochs_under_which_it_got_its_blocks() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let mut writer = fixture.store.writer(NewBytes { generation: generation(1), object: 1, size: None });
    let piece = Bytes::from(vec![1; 32 << 10]);
    writer.write(piece.clone()).await.unwrap();
    for number in 0..2 {
        fixture.store.lease(SegmentId { volume: VolumeId(1), number }, 8, []).unwrap();
    }
    writer.write(piece).await.unwrap();
    let stored = writer.finish().await.unwrap();
    let leases: Vec<_> =
        stored.locators.iter().map(|locator| (locator.lease.segment.number, locator.lease.epoch)).collect();
    assert_eq!(leases, [(0, 7), (0, 8)]);
    // Nobody else has had the blocks, so the put may go on under the new epoch.
    let renewed = fixture.store.renew(&stored).unwrap();
    assert!(renewed.locators.iter().all(|locator| locator.lease.epoch == 8));
    assert_eq!(extents(&renewed), extents(&stored));
    // Somebody else may have had them.
    let segment = stored.locators[0].lease.segment;
    fixture.store.release(segment).unwrap();
    assert!(matches!(fixture.store.renew(&stored), Err(Error::NotLeased(_))));
    fixture.store.lease(segment, 10, []).unwrap();
    assert!(matches!(fixture.store.renew(&stored), Err(Error::NotLeased(_))));
}

/// While a segment's epoch is raised nothing is allocated there, and puts in doubt are settled by the next lease.
#[tokio::test]
async fn a_lease_under_a_higher_epoch_settles_doubts() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    let segments = (0..2).map(|number| SegmentId { volume: VolumeId(1), number });
    let doubtful = [put(store, 5, 10_000, 10_000, Some(10_000)), put(store, 6, 10_000, 10_000, Some(10_000))];
    let doubtful = try_join_all(doubtful).await.unwrap();
    doubtful.iter().for_each(|stored| store.leave_in_doubt(stored));
    let under_way = put(store, 7, 10_000, 10_000, Some(10_000)).await.unwrap();
    let blocks = |space: Space| (space.used / 4096, space.in_doubt / 4096);
    assert_eq!(blocks(store.space(VolumeId(1)).unwrap()), (9, 6));
    segments.clone().for_each(|segment| store.pause(segment).unwrap());
    assert!(matches!(put(store, 8, 10, 10, Some(10)).await, Err(Error::Full { .. })));
    // The first was committed, the second was not.
    let named = extents(&doubtful[0]);
    for segment in segments {
        let used = named.iter().filter(|extent| extent.segment == segment).map(|e| e.run(fixture.geometry).unwrap());
        store.lease(segment, 8, used).unwrap();
    }
    assert_eq!(blocks(store.space(VolumeId(1)).unwrap()), (6, 0));
    store.discard(&under_way);
    assert_eq!(blocks(store.space(VolumeId(1)).unwrap()), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_sizes_are_kept() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    for (bytes, announced) in [(10, 11), (11, 10), (40_000, 50_000), (50_000, 40_000), (0, 1)] {
        let result = put(&fixture.store, 5, bytes, 1000, Some(announced)).await;
        assert!(matches!(result, Err(Error::Size { .. })), "{bytes} {announced}");
    }
    let nothing = put(&fixture.store, 5, 0, 1, Some(0)).await.unwrap();
    assert!(nothing.locators.is_empty());
    assert_eq!(fixture.store.space(VolumeId(1)).unwrap().used, 0);
}

#[tokio::test]
async fn freed_blocks_wait_for_readers_and_are_used_again() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    let stored = put(store, 5, 900_000, 900_000, Some(900_000)).await.unwrap();
    store.named(&stored);
    let mut reader = store.read(&stored.locators, 0..900_000).unwrap();
    reader.next().await.unwrap().unwrap();
    store.free(locator(&stored)).unwrap();
    assert!(matches!(store.free(locator(&stored)), Err(Error::NotUsed(_))), "freed twice");
    let other = put(store, 6, 900_000, 900_000, Some(900_000)).await.unwrap();
    assert_ne!(extents(&other), extents(&stored));
    assert!(matches!(put(store, 7, 900_000, 900_000, Some(900_000)).await, Err(Error::Full { .. })));
    while reader.next().await.unwrap().is_some() {}
    drop(reader);
    let other = put(store, 8, 900_000, 900_000, Some(900_000)).await.unwrap();
    assert_eq!(extents(&other), extents(&stored));
    let gone = get(store, &stored, 0..900_000).await;
    assert!(matches!(gone, Err(Error::Foreign { found, .. }) if found == generation(8)), "{gone:?}");
    let again = store.free(locator(&stored));
    assert!(matches!(again, Err(Error::Foreign { .. })), "these blocks are another write's by now");
}

#[tokio::test]
async fn a_pin_ends_at_its_bound() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options { pin_max: Duration::ZERO, ..Options::default() });
    let store = &fixture.store;
    let first = put(store, 5, 900_000, 900_000, Some(900_000)).await.unwrap();
    let _second = put(store, 6, 900_000, 900_000, Some(900_000)).await.unwrap();
    let mut reader = store.read(&first.locators, 0..900_000).unwrap();
    reader.next().await.unwrap().unwrap();
    store.free(locator(&first)).unwrap();
    let third = put(store, 7, 900_000, 900_000, Some(900_000)).await.unwrap();
    assert_eq!(extents(&third), extents(&first));
    assert!(matches!(reader.next().await, Err(Error::Foreign { .. })));
}

/// The rows of shared bytes are gone, and no freed row said so. A sweep or a failover leases the segment again.
#[tokio::test]
async fn a_lease_keeps_the_blocks_of_readers() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    let stored = put(store, 5, 900_000, 900_000, Some(900_000)).await.unwrap();
    let _other = put(store, 6, 900_000, 900_000, Some(900_000)).await.unwrap();
    store.named(&stored);
    let segment = extents(&stored)[0].segment;
    let blocks = extents(&stored)[0].run(fixture.geometry).unwrap().blocks.into();
    let mut reader = store.read(&stored.locators, 0..900_000).unwrap();
    let first = reader.next().await.unwrap().unwrap();
    for epoch in [8, 9] {
        store.lease(segment, epoch, []).unwrap();
        let usage = store.usage(segment).unwrap();
        assert_eq!((usage.waiting, usage.used), (blocks, blocks));
        assert!(matches!(put(store, 7, 900_000, 900_000, Some(900_000)).await, Err(Error::Full { .. })));
    }
    let mut bytes = first.to_vec();
    while let Some(piece) = reader.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    assert!(bytes == content(0, generation(5), 900_000));
    drop(reader);
    let other = put(store, 8, 900_000, 900_000, Some(900_000)).await.unwrap();
    assert_eq!(extents(&other), extents(&stored));
}

#[test]
fn leases_do_not_prolong_a_pin() {
    let second = Duration::from_secs;
    let mut allocator = Allocator::new(VolumeId(1), Geometry::new(4096, 1 << 20).unwrap(), second(10));
    allocator.lease(0, 1, [], second(0)).unwrap();
    let written = (allocator.allocate(10_000, generation(5), second(0)).unwrap()[0], generation(5));
    allocator.settle(written, true);
    allocator.pin(written);
    let mut used_after_lease = |epoch: u64, leased, seen| {
        allocator.lease(0, epoch, [], second(leased)).unwrap();
        allocator.reap(second(seen));
        allocator.usage(0).unwrap().used
    };
    assert_eq!(used_after_lease(2, 5, 5), 3);
    assert_eq!(used_after_lease(3, 14, 14), 3);
    assert_eq!(used_after_lease(4, 14, 15), 0, "the first lease made them wait");
    assert_eq!(used_after_lease(5, 16, 16), 0);
}

/// A read that learned its locator before the blocks were used again has them pinned, too.
#[tokio::test]
async fn a_lease_keeps_what_a_row_names_and_the_latest_of_what_is_pinned() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    let segment = SegmentId { volume: VolumeId(1), number: 0 };
    let run = Run { first: 0, blocks: 3 };
    let locator = |id, block, length| Locator {
        lease: Lease { segment, epoch: 7 },
        generation: generation(id),
        pieces: vec![Piece { block, length }],
    };
    let readers = [(1, 0, 10_000), (3, 4, 10_000), (2, 5, 20_000), (4, 4, 10_000)]
        .map(|(id, block, length)| store.read(&[locator(id, block, length)], 0..1).unwrap());
    store.lease(segment, 8, [run]).unwrap();
    let usage = store.usage(segment).unwrap();
    assert_eq!((usage.used, usage.waiting), (6, 3), "of generation 4");
    drop(readers);
    let usage = store.usage(segment).unwrap();
    assert_eq!((usage.used, usage.waiting), (3, 0));
}

#[tokio::test]
async fn freed_blocks_wait_for_the_delay() {
    let delay = Duration::from_secs(3600);
    let fixture = Fixture::new(1, 4096, 1 << 20, Options { reuse_delay: delay, ..Options::default() });
    let store = &fixture.store;
    let stored = put(store, 5, 900_000, 900_000, Some(900_000)).await.unwrap();
    store.free(locator(&stored)).unwrap();
    let space = store.space(VolumeId(1)).unwrap();
    assert_eq!(space.used, space.waiting);
    assert!(space.waiting > 900_000);
    // After a restart the caller knows what is left of the delay.
    let segment = extents(&stored)[0].segment;
    store.lease(segment, 8, [extents(&stored)[0].run(fixture.geometry).unwrap()]).unwrap();
    assert_eq!(store.space(VolumeId(1)).unwrap().waiting, 0);
    store.free_after(locator(&stored), Duration::ZERO).unwrap();
    assert_eq!(store.space(VolumeId(1)).unwrap().used, 0);
}

#[tokio::test]
async fn only_a_segment_that_nobody_has_is_filled() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let store = &fixture.store;
    let stored = put(store, 5, 10_000, 10_000, Some(10_000)).await.unwrap();
    let segment = extents(&stored)[0].segment;
    assert!(matches!(store.fill(segment).await, Err(Error::Invalid(_))));
    assert!(matches!(store.fill(SegmentId { number: 2, ..segment }).await, Err(Error::Invalid(_))));
    assert!(get(store, &stored, 0..10_000).await.is_ok());
    store.release(segment).unwrap();
    store.fill(segment).await.unwrap();
    let lost = get(store, &stored, 0..10_000).await;
    assert!(matches!(lost, Err(Error::Corrupt { what: crate::Damage::Header, .. })));
}

#[tokio::test]
async fn rows_that_overlap_are_refused() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let segment = SegmentId { volume: VolumeId(1), number: 1 };
    let lease = |runs: &[(u32, u32)]| {
        let runs: Vec<Run> = runs.iter().map(|(first, blocks)| Run { first: *first, blocks: *blocks }).collect();
        fixture.store.lease(segment, 7, runs)
    };
    assert!(matches!(lease(&[(0, 4), (3, 2)]), Err(Error::Overlap { block: 3, .. })));
    lease(&[(0, 4), (4, 2), (0, 4)]).unwrap();
    assert_eq!(fixture.store.space(VolumeId(1)).unwrap().used, 6 * 4096);
    // A locator that cannot be of this volume.
    let outside = |number, block| Locator {
        lease: Lease { segment: SegmentId { volume: VolumeId(1), number }, epoch: 7 },
        generation: generation(5),
        pieces: vec![Piece { block, length: 5000 }],
    };
    for (number, block) in [(2, 0), (0, 255), (0, u32::MAX)] {
        assert!(matches!(fixture.store.read(&[outside(number, block)], 0..1), Err(Error::Invalid(_))));
        assert!(fixture.store.free(&outside(number, block)).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_scrub_finds_damage_and_goes_on_where_it_was() {
    let fixture = Fixture::new(1, 4096, 1 << 20, Options::default());
    let stored = try_join_all((1..=20).map(|id| put(&fixture.store, id, 10_000, 10_000, Some(10_000)))).await.unwrap();
    let mut extents: Vec<_> = stored.iter().map(|s| (extents(s)[0], locator(s).generation)).collect();
    extents.sort_unstable();
    let (damaged, _) = extents[12];
    let file = std::fs::OpenOptions::new().write(true).open(fixture.path(VolumeId(1))).unwrap();
    file.write_all_at(b"?", damaged.offset(fixture.geometry) + 40 + 3 * 4 + UNIT_BYTES as u64).unwrap();

    let began = tokio::time::Instant::now();
    let mut scrub = Scrub::new(fixture.store.clone(), ScrubCursor::default(), 1000);
    assert!(scrub.step(extents[..10].iter().copied()).await.unwrap().is_empty());
    let mut scrub = Scrub::new(fixture.store.clone(), scrub.cursor(), 1000);
    let findings = scrub.step(extents.iter().copied()).await.unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].extent, damaged);
    assert!(matches!(findings[0].error, Error::Corrupt { what: crate::Damage::Unit(1), .. }));
    // Ten seconds an extent, none before the first of each walk.
    assert_eq!(began.elapsed().as_secs(), 180);
    assert!(scrub.step(extents).await.unwrap().is_empty());
}
