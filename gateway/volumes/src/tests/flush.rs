//! Failed flushes of a store over files in memory. Linux tells only one flush of an open file that bytes were lost, and the flush
//! that is told may be another one's than that of the put whose bytes are lost.

use std::{
    io::{self, IoSlice},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use uuid::Uuid;

use super::oracle::content;
use crate::{
    Error, Expected, Generation, Geometry, NewBytes, NewVolume, Options, SegmentId, Store, Stored, Volume, VolumeFile,
    VolumeId,
    file::faulty::{DISK_SECTOR, Faults, FaultyFile},
};

const CLUSTER: Uuid = Uuid::from_u128(1);
const VOLUME: VolumeId = VolumeId(1);
const SIZE: usize = 10_000;

type Work = Box<dyn FnOnce() + Send>;

/// A file that tells of a loss once.
struct TellsOnce {
    file: FaultyFile,
    /// Bytes are lost, and no flush was told yet.
    is_lost: AtomicBool,
    /// Is done after the next write.
    after_write: Mutex<Option<Work>>,
    /// Whose file it is, once it is mounted.
    volume: Mutex<Weak<Volume>>,
    flushes: AtomicU32,
    /// Flushes during which the volume would have allowed another one.
    not_alone: AtomicU32,
}

impl VolumeFile for TellsOnce {
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> usize {
        self.file.read_cached_at(buffer, at)
    }

    fn write_all_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        self.file.write_all_at(pieces, at)?;
        let work = self.after_write.lock().take();
        if let Some(work) = work {
            work();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(volume) = self.volume.lock().upgrade() {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            self.not_alone.fetch_add((!volume.is_flushing()).into(), Ordering::Relaxed);
        }
        if self.is_lost.swap(false, Ordering::Relaxed) {
            return Err(rustix::io::Errno::IO.into());
        }
        self.file.flush()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}

/// A store with a volume of two segments, of which the first is leased.
fn store_over(file: Arc<dyn VolumeFile>) -> Store {
    let geometry = Geometry::new(4096, 1 << 20).unwrap();
    if file.bytes().unwrap() == 0 {
        Volume::create(&*file, NewVolume { cluster: CLUSTER, volume: VOLUME, geometry, segments: 2 }).unwrap();
    }
    let store = Store::new(Options::default());
    let expected = Expected { cluster: CLUSTER, volume: VOLUME, mount_epoch: 0 };
    store.add(Volume::mount(file, expected).unwrap()).unwrap();
    store.lease(SegmentId { volume: VOLUME, number: 0 }, 7, []).unwrap();
    store
}

fn tells_once() -> (Store, Arc<TellsOnce>) {
    let file = Arc::new(TellsOnce {
        file: FaultyFile::new(1, DISK_SECTOR),
        is_lost: AtomicBool::default(),
        after_write: Mutex::default(),
        volume: Mutex::default(),
        flushes: AtomicU32::default(),
        not_alone: AtomicU32::default(),
    });
    let store = store_over(file.clone());
    *file.volume.lock() = Arc::downgrade(&store.volume(VOLUME).unwrap());
    (store, file)
}

async fn put(store: &Store, id: u64) -> Result<Stored, Error> {
    let generation = Generation { timeline: 1, id };
    let mut writer = store.writer(NewBytes { generation, object: id, size: Some(SIZE as u64) });
    writer.write(Bytes::from(content(0, generation, SIZE))).await?;
    writer.finish().await
}

async fn is_whole(store: &Store, id: u64, stored: &Stored) -> bool {
    let mut reader = store.read(&stored.locators, 0..SIZE as u64).unwrap();
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = reader.next().await {
        bytes.extend_from_slice(&piece);
    }
    bytes == content(0, Generation { timeline: 1, id }, SIZE)
}

/// What flushes the file beside the puts.
const OTHERS: [fn(&Volume) -> bool; 2] = [|volume| volume.fill(1).is_ok(), |volume| volume.grow(1).is_ok()];

#[tokio::test]
async fn a_put_is_refused_if_another_flush_was_told_of_its_loss() {
    for other in OTHERS {
        let (store, file) = tells_once();
        let before = put(&store, 1).await.unwrap();
        let (tell, told) = mpsc::channel();
        let volume = store.volume(VOLUME).unwrap();
        let in_lane = file.clone();
        *file.after_write.lock() = Some(Box::new(move || {
            // The kernel writes the put's bytes, and the disk refuses them, before the put is flushed.
            in_lane.is_lost.store(true, Ordering::Relaxed);
            tell.send(other(&volume)).unwrap();
        }));
        let lost = put(&store, 2).await;
        assert!(!told.recv().unwrap(), "the other flush is told");
        assert!(matches!(lost, Err(Error::ReadOnly(VOLUME))), "{lost:?}");
        assert!(store.volume(VOLUME).unwrap().is_read_only());
        assert!(matches!(put(&store, 3).await, Err(Error::ReadOnly(VOLUME))));
        assert!(is_whole(&store, 1, &before).await, "what is there stays readable");
    }
}

#[tokio::test]
async fn there_is_one_flush_at_a_time() {
    let (store, file) = tells_once();
    let _stored = put(&store, 1).await.unwrap();
    let volume = store.volume(VOLUME).unwrap();
    assert!(OTHERS.into_iter().all(|other| other(&volume)));
    assert!(file.flushes.load(Ordering::Relaxed) >= 3);
    assert_eq!(file.not_alone.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_failed_flush_makes_the_volume_read_only_until_it_is_mounted_again() {
    let file = Arc::new(FaultyFile::new(1, DISK_SECTOR));
    let store = store_over(file.clone());
    let before = put(&store, 1).await.unwrap();
    file.set_faults(Faults { flush: 1000, ..Faults::default() });
    assert!(matches!(put(&store, 2).await, Err(Error::ReadOnly(VOLUME))));
    // A second flush would succeed, and say nothing of what the first one lost.
    file.set_faults(Faults::default());
    let volume = store.volume(VOLUME).unwrap();
    assert!(volume.is_read_only());
    assert!(matches!(put(&store, 3).await, Err(Error::ReadOnly(VOLUME))));
    assert!(OTHERS.into_iter().all(|other| !other(&volume)));
    assert!(volume.flush().is_err());
    assert!(is_whole(&store, 1, &before).await);
    store.remove(VOLUME).await.unwrap();
    drop(volume);

    file.restart();
    let store = store_over(file);
    assert!(is_whole(&store, 1, &before).await);
    let after = put(&store, 4).await.unwrap();
    assert!(is_whole(&store, 4, &after).await);
}
