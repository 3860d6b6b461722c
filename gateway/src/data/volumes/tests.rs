//! The volumes without a database: leases are given by hand.

use std::{
    io::{self, IoSlice},
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use mantle_types::ErrorCode;
use mantle_volumes::{Expected, Generation, Geometry, Locator, NewVolume, RealFile, SegmentId, VolumeFile, file_of};
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;

use super::{
    super::{Stored, body::Body},
    *,
};
use crate::data::{Expected as Digests, UploadError};

const CLUSTER: Uuid = Uuid::from_u128(7);
const OWN: VolumeId = VolumeId(3);
const SEGMENT: SegmentId = SegmentId { volume: OWN, number: 0 };
const MIB: u64 = 1 << 20;
const ANSWER_WAIT: Duration = Duration::from_secs(6);

fn settings(folder: &Path, read_folders: &[&Path]) -> config::Volumes {
    let read_folders: Vec<_> = read_folders.iter().map(|folder| folder.display().to_string()).collect();
    let text = format!("folder = {:?}\nread_folders = {read_folders:?}\nsegment_bytes = {}", folder.display(), 4 * MIB);
    toml::from_str(&text).unwrap()
}

fn open(folder: &Path) -> RealFile {
    let path = file_of(folder, OWN);
    if !path.exists() {
        let geometry = Geometry::new(4096, 4 * MIB).unwrap();
        let new = NewVolume { cluster: CLUSTER, volume: OWN, geometry, segments: 1 };
        Volume::create(&RealFile::create(&path).unwrap(), new).unwrap();
    }
    RealFile::open(&path).unwrap()
}

fn mount(folder: &Path) -> Volume {
    mount_file(Arc::new(open(folder)))
}

fn mount_file(file: Arc<dyn VolumeFile>) -> Volume {
    Volume::mount(file, Expected { cluster: CLUSTER, volume: OWN, mount_epoch: 0 }).unwrap()
}

/// A file on a disk that breaks.
struct Breaking {
    file: RealFile,
    is_broken: AtomicBool,
}

impl VolumeFile for Breaking {
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> usize {
        self.file.read_cached_at(buffer, at)
    }

    fn write_all_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        self.file.write_all_at(pieces, at)
    }

    /// Tells of the loss once, as Linux does.
    fn flush(&self) -> io::Result<()> {
        match self.is_broken.swap(false, Ordering::AcqRel) {
            true => Err(io::Error::other("bytes are lost")),
            false => self.file.flush(),
        }
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}

async fn volumes() -> (TempDir, Volumes) {
    let folder = tempfile::tempdir().unwrap();
    let volumes = volumes_with(folder.path(), mount(folder.path())).await;
    (folder, volumes)
}

async fn volumes_with(folder: &Path, volume: Volume) -> Volumes {
    let volumes = Volumes::new(&settings(folder, &[]), ANSWER_WAIT);
    volumes.set_cluster(CLUSTER);
    volumes.set_can_grow(false);
    volumes.mounted(volume).await.unwrap();
    volumes.store().lease(SEGMENT, 7, []).unwrap();
    volumes
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

async fn put(volumes: &Volumes, id: u64, bytes: &[u8]) -> Result<Stored, UploadError> {
    let chunks: Vec<std::io::Result<Bytes>> = bytes.chunks(64 << 10).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
    let mut body = Body::new(stream::iter(chunks), u64::MAX, Digests::default());
    volumes.put(Generation { timeline: 1, id }, &mut body).await
}

fn only(stored: &Stored) -> String {
    assert_eq!(stored.pieces.len(), 1);
    stored.pieces[0].locator.clone()
}

async fn get(volumes: &Volumes, locator: &str, range: Range<u64>) -> Result<Vec<u8>> {
    let content = volumes.get(locator, range).await?;
    let pieces: std::io::Result<Vec<Bytes>> = content.into_stream().try_collect().await;
    Ok(pieces.map_err(|cause| *cause.into_inner().unwrap().downcast::<Error>().unwrap())?.concat())
}

/// Used blocks, and of these those in doubt.
fn blocks(volumes: &Volumes) -> (u64, u64) {
    let space = volumes.space().unwrap();
    (space.used / 4096, space.in_doubt / 4096)
}

#[tokio::test]
async fn bytes_of_any_size_come_back() {
    let (_folder, volumes) = volumes().await;
    for (id, size) in [1, 4096, 8000, MIB as usize - 1, MIB as usize, 2 * MIB as usize + 5].into_iter().enumerate() {
        let bytes = content(size);
        let mut stored = put(&volumes, id as u64, &bytes).await.unwrap();
        assert_eq!((stored.size, stored.pieces[0].length), (size as u64, size as u64));
        stored.settle(true);
        let locator = only(&stored);
        assert!(get(&volumes, &locator, 0..size as u64).await.unwrap() == bytes, "{size}");
        assert_eq!(get(&volumes, &locator, size as u64 - 1..size as u64).await.unwrap(), bytes[size - 1..]);
        volumes.store().free(&locator.parse().unwrap()).unwrap();
        assert_eq!(blocks(&volumes), (0, 0));
    }
    let nothing = put(&volumes, 9, b"").await.unwrap();
    assert_eq!((only(&nothing), nothing.size), ("empty:".into(), 0));
}

/// Without it, an extent holds what came at a time.
#[tokio::test]
async fn an_announced_size_gives_one_extent() {
    let (_folder, volumes) = volumes().await;
    let bytes = content(2 * MIB as usize + 5);
    for (size, extents) in [(None, 3), (Some(bytes.len() as u64), 1)] {
        let expected = Digests { size, ..Digests::default() };
        let stream =
            stream::iter(bytes.chunks(64 << 10).map(|chunk| std::io::Result::Ok(Bytes::copy_from_slice(chunk))));
        let mut body = Body::new(stream, u64::MAX, expected);
        let stored = volumes.put(Generation { timeline: 1, id: extents }, &mut body).await.unwrap();
        let locator = only(&stored);
        assert_eq!(locator.split(',').count() as u64, extents, "{locator}");
        assert!(get(&volumes, &locator, 0..bytes.len() as u64).await.unwrap() == bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_volume_refuses_and_keeps_nothing() {
    let (_folder, volumes) = volumes().await;
    let _first = put(&volumes, 1, &content(3 * MIB as usize)).await.unwrap();
    let used = blocks(&volumes);
    for size in [MIB as usize, 2 * MIB as usize] {
        let refused = put(&volumes, 2, &content(size)).await;
        assert!(matches!(refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::StorageFull));
        assert_eq!(blocks(&volumes), used);
    }
}

#[tokio::test]
async fn a_failed_flush_ends_puts_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(Breaking { file: open(folder.path()), is_broken: AtomicBool::new(false) });
    let volumes = volumes_with(folder.path(), mount_file(file.clone())).await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let is_reported = || {
        metrics::with_local_recorder(&recorder, || volumes.report());
        let said = recorder.handle().render();
        said.lines().any(|line| line.split_once(' ') == Some(("mantle_gateway_volume_read_only", "1")))
    };
    let before = put(&volumes, 1, &content(9000)).await.unwrap();
    assert!(!is_reported());
    file.is_broken.store(true, Ordering::Release);
    for id in 2..4 {
        let refused = put(&volumes, id, &content(9000)).await;
        assert!(matches!(refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::BytesUnavailable));
        assert!(is_reported());
    }
    assert_eq!(get(&volumes, &only(&before), 0..9000).await.unwrap(), content(9000));
}

/// A node of PostgreSQL is away, so its segment cannot be leased anew. The volume is not full.
#[tokio::test(start_paused = true)]
async fn a_put_without_an_open_segment_may_come_again() {
    let (_folder, volumes) = volumes().await;
    volumes.store().pause(SEGMENT).unwrap();
    let refused = put(&volumes, 1, b"abc").await;
    assert!(matches!(refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::BytesUnavailable));
    assert_eq!(blocks(&volumes), (0, 0));
    // After a restart nothing is leased before it was read.
    volumes.store().release(SEGMENT).unwrap();
    volumes.set_reading(true);
    let refused = put(&volumes, 1, b"abc").await;
    assert!(matches!(refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::BytesUnavailable));
    volumes.store().lease(SEGMENT, 8, []).unwrap();
    volumes.set_reading(false);
    assert!(put(&volumes, 1, b"abc").await.is_ok());
}

/// PostgreSQL does not answer, so no segment can be leased. The volume is not full, and the client is told so in time.
#[tokio::test(start_paused = true)]
async fn a_put_does_not_wait_for_room_longer_than_for_an_answer() {
    let (_folder, volumes) = volumes().await;
    volumes.store().release(SEGMENT).unwrap();
    volumes.set_can_grow(true);
    let begun = tokio::time::Instant::now();
    let refused = put(&volumes, 1, b"abc").await;
    assert!(matches!(refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::BytesUnavailable));
    assert_eq!(begun.elapsed().as_secs(), ANSWER_WAIT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_put_waits_for_the_growth_of_the_volume() {
    let (_folder, volumes) = volumes().await;
    let _first = put(&volumes, 1, &content(4 * MIB as usize - (80 << 10))).await.unwrap();
    volumes.set_can_grow(true);
    let second = SegmentId { number: 1, ..SEGMENT };
    let grow = async {
        volumes.wanted().await;
        volumes.store().volume(OWN).unwrap().grow(1).unwrap();
        volumes.store().lease(second, 7, []).unwrap();
        volumes.has_changed();
    };
    // More than is left of the first segment.
    let bytes = content(100 << 10);
    let (stored, ()) = tokio::join!(put(&volumes, 2, &bytes), grow);
    let locator: Locator = only(&stored.unwrap()).parse().unwrap();
    assert_eq!(locator.lease.segment, second, "it was not refused");
}

/// A client deletes and puts again: the delete's blocks are free some rounds later.
#[tokio::test(start_paused = true)]
async fn a_put_into_a_full_volume_waits_for_deletes_before_it() {
    let (_folder, volumes) = volumes().await;
    let mut first = put(&volumes, 1, &content(4 * MIB as usize - (80 << 10))).await.unwrap();
    first.settle(true);
    let freed = first.pieces.iter().map(|piece| piece.locator.parse::<Locator>().unwrap());
    let take = async {
        for round in 1..=ROUNDS_OF_DELETES {
            volumes.wanted().await;
            if round == ROUNDS_OF_DELETES {
                freed.clone().for_each(|locator| volumes.store().free(&locator).unwrap());
            }
            volumes.took_deletes();
        }
    };
    let bytes = content(100 << 10);
    let (stored, ()) = tokio::join!(put(&volumes, 2, &bytes), take);
    assert!(stored.is_ok(), "{stored:?}");
}

/// What others are about to write counts: they would take the room together.
#[tokio::test]
async fn what_is_about_to_be_written_makes_the_volume_grow() {
    let (_folder, volumes) = volumes().await;
    volumes.set_can_grow(true);
    let grow = async {
        volumes.wanted().await;
        assert!(blocks(&volumes).0 < 1000, "more is coming than is there");
        volumes.store().volume(OWN).unwrap().grow(1).unwrap();
        volumes.store().lease(SegmentId { number: 1, ..SEGMENT }, 7, []).unwrap();
        volumes.has_changed();
    };
    let bytes = content(MIB as usize - 1);
    let puts = futures::future::join_all((0..6).map(|id| put(&volumes, id, &bytes)));
    let (stored, ()) = tokio::join!(puts, grow);
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    drop(stored);
    assert_eq!(volumes.space_wanted().unwrap().used, 0);
}

/// It has seen that there is room, and has not taken it yet.
#[tokio::test]
async fn a_put_that_has_begun_waits_while_the_segments_are_leased_anew() {
    let (_folder, volumes) = volumes().await;
    let size = MIB + 9;
    let mut polls = 0;
    let client = volumes.clone();
    let chunks = stream::poll_fn(move |_| {
        polls += 1;
        Poll::Ready(match polls {
            1 => Some(Ok::<_, std::io::Error>(Bytes::from(content(MIB as usize)))),
            2 => Some(Ok(Bytes::from(content(9)))),
            3 => None,
            _ => {
                client.store().pause(SEGMENT).unwrap();
                None
            }
        })
    });
    let mut body = Body::new(chunks, u64::MAX, Digests::default());
    let lease = async {
        volumes.wanted().await;
        volumes.store().lease(SEGMENT, 8, []).unwrap();
        volumes.has_changed();
    };
    let mut put = std::pin::pin!(volumes.put(Generation { timeline: 1, id: 1 }, &mut body));
    let stored = tokio::select! {
        refused = &mut put => refused,
        () = lease => put.await,
    };
    assert_eq!(stored.unwrap().pieces.iter().map(|piece| piece.length).sum::<u64>(), size);
}

/// After a failover, or when a segment is swept: its room is there again in a moment, also if the volume cannot grow.
#[tokio::test]
async fn a_put_waits_while_the_segments_are_leased_anew() {
    let (_folder, volumes) = volumes().await;
    volumes.store().pause(SEGMENT).unwrap();
    let lease = async {
        volumes.wanted().await;
        volumes.store().lease(SEGMENT, 8, []).unwrap();
        volumes.has_changed();
    };
    let (stored, ()) = tokio::join!(put(&volumes, 1, b"abc"), lease);
    assert_eq!(only(&stored.unwrap()), "v1:3.0.8/1.1/0+3");
}

#[tokio::test]
async fn a_put_whose_volume_is_given_up_is_told_so() {
    let (_folder, volumes) = volumes().await;
    let (begin, rest) = futures::channel::mpsc::unbounded::<std::io::Result<Bytes>>();
    begin.unbounded_send(Ok(content(MIB as usize).into())).unwrap();
    let mut body = Body::new(rest, u64::MAX, Digests::default());
    let give_up = async {
        volumes.unmounted("another gateway has it".into()).await;
        begin.unbounded_send(Ok(content(9).into())).unwrap();
        begin.close_channel();
    };
    let (refused, ()) = tokio::join!(volumes.put(Generation { timeline: 1, id: 1 }, &mut body), give_up);
    assert!(
        matches!(&refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::BytesUnavailable),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_claim_that_is_dropped_loses_no_bytes() {
    let (_folder, volumes) = volumes().await;
    drop(put(&volumes, 1, b"abc").await.unwrap());
    assert_eq!(blocks(&volumes), (0, 0), "no metadata names them");
    let mut sent = put(&volumes, 2, b"abc").await.unwrap();
    sent.sent();
    drop(sent);
    assert_eq!(blocks(&volumes), (1, 1), "metadata may name them");
    volumes.store().lease(SEGMENT, 8, []).unwrap();
    assert_eq!(blocks(&volumes), (0, 0));
    let mut refused = put(&volumes, 3, b"abc").await.unwrap();
    refused.sent();
    refused.settle(false);
    assert_eq!(blocks(&volumes), (0, 0));
}

#[tokio::test]
async fn a_put_follows_its_segment_to_another_epoch() {
    let (_folder, volumes) = volumes().await;
    let mut stored = put(&volumes, 1, b"abc").await.unwrap();
    assert_eq!(only(&stored), "v1:3.0.7/1.1/0+3");
    stored.sent();
    let lease = async {
        volumes.wanted().await;
        assert!(volumes.take_refused(), "PostgreSQL has refused the epoch that the segment has");
        volumes.store().lease(SEGMENT, 8, []).unwrap();
        volumes.has_changed();
    };
    let (renewed, ()) = tokio::join!(stored.renew(), lease);
    renewed.unwrap();
    assert_eq!(only(&stored), "v1:3.0.8/1.1/0+3");
    assert!(!volumes.take_refused());
    // Another gateway has the segment now.
    let release = async {
        volumes.wanted().await;
        volumes.store().release(SEGMENT).unwrap();
        volumes.has_changed();
    };
    let (lost, ()) = tokio::join!(stored.renew(), release);
    assert_eq!(lost.map_err(|error| error.code()), Err(ErrorCode::BytesUnavailable));
}

#[tokio::test(start_paused = true)]
async fn a_put_does_not_wait_for_ever() {
    let (_folder, volumes) = volumes().await;
    let mut stored = put(&volumes, 1, b"abc").await.unwrap();
    let refused = tokio::time::timeout(Duration::from_secs(60), stored.renew()).await.unwrap();
    assert_eq!(refused.map_err(|error| error.code()), Err(ErrorCode::StaleSegment));
}

#[tokio::test]
async fn what_does_not_match_is_never_returned() {
    let (folder, volumes) = volumes().await;
    let bytes = content(300_000);
    let mut stored = put(&volumes, 1, &bytes).await.unwrap();
    stored.settle(true);
    let locator = only(&stored);
    let other = locator.replace("/1.1/", "/1.2/");
    assert_eq!(get(&volumes, &other, 0..10).await.map_err(|e| e.code()), Err(ErrorCode::BytesMissing));
    let file = std::fs::OpenOptions::new().write(true).open(file_of(folder.path(), OWN)).unwrap();
    file.write_all_at(b"?", (64 << 10) + 290_000).unwrap();
    assert!(get(&volumes, &locator, 0..280_000).await.unwrap() == bytes[..280_000]);
    for range in [280_000..300_000, 0..300_000] {
        assert_eq!(get(&volumes, &locator, range).await.map_err(|e| e.code()), Err(ErrorCode::BytesCorrupt));
    }
    for malformed in ["v1:", "v1:3.0.7/1.1/0+0", "v1:3.9.7/1.1/0+3"] {
        assert_eq!(get(&volumes, malformed, 0..1).await.map_err(|e| e.code()), Err(ErrorCode::Internal), "{malformed}");
    }
}

#[tokio::test]
async fn another_gateways_volume_is_read() {
    let (folder, volumes) = volumes().await;
    let mut stored = put(&volumes, 1, b"abc").await.unwrap();
    stored.settle(true);
    let locator = only(&stored);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Volumes::new(&settings(elsewhere.path(), &[folder.path()]), ANSWER_WAIT);
    let code = |read: Result<Vec<u8>>| read.map_err(|error| error.code());
    assert_eq!(code(get(&other, &locator, 0..3).await), Err(ErrorCode::BytesUnavailable), "of which cluster?");
    other.set_cluster(CLUSTER);
    assert_eq!(get(&other, &locator, 0..3).await.unwrap(), b"abc");
    let refused = put(&other, 2, b"abc").await;
    assert!(matches!(refused, Err(UploadError::Store(error)) if error.code() == ErrorCode::BytesUnavailable));
    let nowhere = locator.replace("v1:3.", "v1:4.");
    assert_eq!(code(get(&other, &nowhere, 0..3).await), Err(ErrorCode::BytesUnavailable));
}

/// A copy of a volume that was lost is put in its place.
#[tokio::test]
async fn a_volume_that_is_replaced_is_opened_again() {
    let (folder, volumes) = volumes().await;
    let copied = tempfile::tempdir().unwrap();
    std::fs::copy(file_of(folder.path(), OWN), file_of(copied.path(), OWN)).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Volumes::new(&settings(elsewhere.path(), &[copied.path()]), ANSWER_WAIT);
    other.set_cluster(CLUSTER);
    let mut stored = put(&volumes, 1, b"abc").await.unwrap();
    stored.settle(true);
    let locator = only(&stored);
    assert_eq!(get(&other, &locator, 0..3).await.map_err(|error| error.code()), Err(ErrorCode::BytesCorrupt));
    other.close_replaced().await;
    assert!(get(&other, &locator, 0..3).await.is_err(), "it is still the same file");
    std::fs::remove_file(file_of(copied.path(), OWN)).unwrap();
    other.close_replaced().await;
    assert!(other.store().volume(OWN).is_ok(), "while there is none, the open one is better than nothing");
    std::fs::copy(file_of(folder.path(), OWN), file_of(copied.path(), OWN)).unwrap();
    other.close_replaced().await;
    assert_eq!(get(&other, &locator, 0..3).await.unwrap(), b"abc");
}

#[tokio::test]
async fn a_volume_is_read_before_it_is_mounted() {
    let (folder, first) = volumes().await;
    let mut stored = put(&first, 1, b"abc").await.unwrap();
    stored.settle(true);
    let locator = only(&stored);
    let second = Volumes::new(&settings(folder.path(), &[]), ANSWER_WAIT);
    second.set_cluster(CLUSTER);
    assert!(second.own().is_err());
    assert_eq!(get(&second, &locator, 0..3).await.unwrap(), b"abc");
    first.unmounted("it stops".into()).await;
    second.mounted(mount(folder.path())).await.unwrap();
    assert_eq!(second.own(), Ok(OWN));
    assert_eq!(get(&second, &locator, 0..3).await.unwrap(), b"abc");
}
