//! One volume, and the objects that are in it.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use bytes::Bytes;
use mantle_volumes::{
    Expected, Generation, Geometry, Locator, NewBytes, NewVolume, Options, RealFile, SegmentId, Store, Volume,
    VolumeFile, VolumeId,
};
use uuid::Uuid;

use super::counted::{Calls, Counted};

const VOLUME: VolumeId = VolumeId(1);
const SEGMENT_BYTES: u64 = 128 << 20;

pub struct Objects {
    store: Store,
    file: Arc<Counted>,
    segments: u32,
    next_id: AtomicU64,
    /// What `churn` has put and not deleted.
    kept: Mutex<Vec<Vec<Locator>>>,
    /// Objects that `churn` put, and their extents.
    objects: AtomicU64,
    extents: AtomicU64,
}

impl Objects {
    pub fn create(path: &Path, block_bytes: u32, bytes: u64) -> Result<Self> {
        if path.exists() {
            fs::remove_file(path)?;
        }
        let geometry = Geometry::new(block_bytes, SEGMENT_BYTES).context("no such block size")?;
        let segments = (bytes / SEGMENT_BYTES) as u32;
        let file = Arc::new(Counted::new(RealFile::create(path)?));
        let new = NewVolume { cluster: Uuid::nil(), volume: VOLUME, geometry, segments };
        Volume::create(&*file, new)?;
        let expected = Expected { cluster: Uuid::nil(), volume: VOLUME, mount_epoch: 0 };
        let store = Store::new(Options::default());
        store.add(Volume::mount(file.clone(), expected)?)?;
        let objects = Self {
            store,
            file,
            segments,
            next_id: AtomicU64::new(1),
            kept: Mutex::default(),
            objects: AtomicU64::new(0),
            extents: AtomicU64::new(0),
        };
        objects.clear()?;
        Ok(objects)
    }

    /// Writes every block once: the file system notes then that they are written, and a flush does not need to.
    pub async fn fill(&self) -> Result<()> {
        for number in 0..self.segments {
            let segment = SegmentId { volume: VOLUME, number };
            self.store.release(segment)?;
            self.store.fill(segment).await?;
        }
        self.clear()
    }

    /// Nothing of it is in the kernel's cache.
    pub fn forget_cached(&self) -> Result<()> {
        self.file.flush()?;
        self.file.forget_cached(0..self.file.bytes()?);
        Ok(())
    }

    /// No object is in it any more.
    pub fn clear(&self) -> Result<()> {
        for number in 0..self.segments {
            self.store.lease(SegmentId { volume: VOLUME, number }, 1, [])?;
        }
        Ok(())
    }

    pub fn calls(&self) -> Calls {
        self.file.calls()
    }

    async fn put(&self, content: Bytes) -> Result<Vec<Locator>> {
        let generation = Generation { timeline: 1, id: self.next_id.fetch_add(1, Ordering::Relaxed) };
        let new = NewBytes { generation, object: generation.id, size: Some(content.len() as u64) };
        let mut writer = self.store.writer(new);
        writer.write(content).await?;
        let stored = writer.finish().await?;
        self.store.named(&stored);
        Ok(stored.locators)
    }

    fn free(&self, object: &[Locator]) -> Result<()> {
        object.iter().try_for_each(|locator| Ok(self.store.free(locator)?))
    }

    /// Returns how many bytes it put.
    pub async fn put_and_delete(&self, content: Bytes) -> Result<u64> {
        let bytes = content.len() as u64;
        self.free(&self.put(content).await?)?;
        Ok(bytes)
    }

    /// The same; before, it deletes so much that no more than `percent` of the volume are used.
    pub async fn churn(&self, content: Bytes, percent: u64, choice: usize) -> Result<u64> {
        let bytes = content.len() as u64;
        loop {
            let space = self.store.space(VOLUME)?;
            if space.used + bytes <= space.volume * percent / 100 {
                break;
            }
            let deleted = {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let count = kept.len();
                (count > 0).then(|| kept.swap_remove(choice % count))
            };
            match deleted {
                Some(object) => self.free(&object)?,
                None => break,
            }
        }
        let object = self.put(content).await?;
        self.objects.fetch_add(1, Ordering::Relaxed);
        let extents = object.iter().map(|locator| locator.pieces.len() as u64).sum();
        self.extents.fetch_add(extents, Ordering::Relaxed);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        Ok(bytes)
    }

    /// Extents of an object on average, since the last call.
    pub fn take_extents(&self) -> f64 {
        self.extents.swap(0, Ordering::Relaxed) as f64 / self.objects.swap(0, Ordering::Relaxed) as f64
    }
}
