//! A mounted volume: its superblock and its growth. It becomes read-only when a flush fails.
//!
//! **Old copies.** Each mount raises the mount epoch in the superblock, and the caller records it in the database before the first
//! put. A copy of the volume keeps the epoch that it had. After another mount of the original this epoch is lower than the recorded
//! one, and the copy is refused. A higher epoch is accepted: the process died before it recorded it, or the database was restored.
//!
//! **Growth.** The file's new size is on the disk before a superblock says it. So a power loss never leaves a superblock that says
//! more than there is. A file that is shorter than its newest superblock says was cut by somebody, perhaps with objects' bytes in
//! the part that is missing. It is refused, and not mounted as its older superblock says.

use std::{
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use uuid::Uuid;

#[cfg(test)]
use crate::tests::mutation::{self, Mutation};
use crate::{
    error::{Error, MountError},
    file::VolumeFile,
    place::{Geometry, VolumeId},
    superblock::{COPIES, NoSuperblock, SUPERBLOCK_BYTES, Superblock},
};

/// Bytes of zeros in one write, when a segment is filled.
const FILLED_BYTES: usize = 1 << 20;
/// Writes between two flushes, when a segment is filled. A put's flush waits for what was written before it.
const FILLED_PER_FLUSH: usize = 8;

/// The properties of a new volume.
#[derive(Clone, Copy, Debug)]
pub struct NewVolume {
    /// The cluster whose database will name the extents.
    pub cluster: Uuid,
    /// A number that no other volume of the cluster has or had.
    pub volume: VolumeId,
    /// Sizes of blocks and segments.
    pub geometry: Geometry,
    /// How many segments it has at first.
    pub segments: u32,
}

/// What the database knows of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The cluster.
    pub cluster: Uuid,
    /// The volume's number.
    pub volume: VolumeId,
    /// The mount epoch that was recorded last; 0 if none was.
    pub mount_epoch: u64,
}

/// A mounted volume.
pub struct Volume {
    file: Arc<dyn VolumeFile>,
    id: VolumeId,
    geometry: Geometry,
    superblock: Mutex<Superblock>,
    /// Held while the volume grows.
    growing: Mutex<()>,
    /// Held during a flush, and until its failure has made the volume read-only.
    flushing: Mutex<()>,
    is_read_only: AtomicBool,
    /// Another process has it mounted.
    is_view: bool,
}

impl Volume {
    /// Makes a volume of an empty file or of a device, with its space reserved.
    ///
    /// # Errors
    /// `Exists` if a superblock is there; `Invalid`, `Io`.
    pub fn create(file: &dyn VolumeFile, new: NewVolume) -> Result<(), MountError> {
        let NewVolume { cluster, volume, geometry, segments } = new;
        let bytes = geometry.volume_bytes(segments).filter(|_| segments > 0);
        let bytes = bytes.ok_or(MountError::Invalid("a volume has at least one segment, and fits in a file"))?;
        if file.bytes()? > 0 && !matches!(read_superblock(file), Err(MountError::NoSuperblock)) {
            return Err(MountError::Exists);
        }
        file.reserve(bytes)?;
        file.flush()?;
        for sequence in [1, 2] {
            write(file, &Superblock { sequence, cluster, volume, geometry, segments, mount_epoch: 0 })?;
            file.flush()?;
        }
        Ok(())
    }

    /// Mounts a volume under a new mount epoch, which is on the disk when this returns. Record [`Volume::mount_epoch`] in the
    /// database before the first put, only if what is recorded there is lower.
    ///
    /// # Errors
    /// `OldCopy`, `OtherCluster`, `OtherVolume`, `NoSuperblock`, `Version`, `Truncated`, `Io`.
    pub fn mount(file: Arc<dyn VolumeFile>, expected: Expected) -> Result<Self, MountError> {
        let found = read_superblock(&*file)?;
        check(&found, expected.cluster, expected.volume)?;
        if found.mount_epoch < expected.mount_epoch {
            return Err(MountError::OldCopy { found: found.mount_epoch, known: expected.mount_epoch });
        }
        let (found_bytes, wanted) = (file.bytes()?, found.geometry.volume_bytes(found.segments).unwrap_or(u64::MAX));
        if found_bytes < wanted {
            return Err(MountError::Truncated { found: found_bytes, wanted });
        }
        let mounted = Superblock { mount_epoch: found.mount_epoch + 1, sequence: found.sequence + 1, ..found };
        write(&*file, &mounted)?;
        file.flush()?;
        Ok(Self {
            file,
            id: mounted.volume,
            geometry: mounted.geometry,
            superblock: Mutex::new(mounted),
            growing: Mutex::default(),
            flushing: Mutex::default(),
            is_read_only: AtomicBool::new(false),
            is_view: false,
        })
    }

    /// Opens a volume to read it only, because another process has mounted it or may do so.
    ///
    /// # Errors
    /// `OtherCluster`, `OtherVolume`, `NoSuperblock`, `Version`, `Io`.
    pub fn view(file: Arc<dyn VolumeFile>, cluster: Uuid, volume: VolumeId) -> Result<Self, MountError> {
        let found = read_superblock(&*file)?;
        check(&found, cluster, volume)?;
        Ok(Self {
            file,
            id: found.volume,
            geometry: found.geometry,
            superblock: Mutex::new(found),
            growing: Mutex::default(),
            flushing: Mutex::default(),
            is_read_only: AtomicBool::new(true),
            is_view: true,
        })
    }

    /// The volume's number.
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// Sizes of blocks and segments.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The epoch of this mount.
    pub fn mount_epoch(&self) -> u64 {
        self.superblock.lock().mount_epoch
    }

    /// How many segments it has.
    pub fn segments(&self) -> u32 {
        self.superblock.lock().segments
    }

    /// Whether it has this segment. One that another process has mounted may have grown since.
    pub(crate) fn has_segment(&self, number: u32) -> bool {
        let mut superblock = self.superblock.lock();
        if number >= superblock.segments
            && self.is_view
            && let Ok(found) = read_superblock(&*self.file)
        {
            *superblock = found;
        }
        number < superblock.segments
    }

    /// Reserves space for more segments; they exist when this returns.
    ///
    /// # Errors
    /// `Io` (`StorageFull` if there is no such space: nothing has changed); `Invalid`.
    pub fn grow(&self, segments: u32) -> Result<(), MountError> {
        let _one = self.growing.lock();
        if self.is_read_only() {
            return Err(MountError::Invalid("the volume is read-only since a flush failed"));
        }
        // Reads ask for the superblock, so it is not locked while this waits for the disk. Nothing else changes it.
        let before = *self.superblock.lock();
        let count = before.segments.checked_add(segments);
        let sized = count.and_then(|count| Some((count, self.geometry.volume_bytes(count)?)));
        let (segments, bytes) = sized.ok_or(MountError::Invalid("the volume would not fit in a file"))?;
        self.file.reserve(bytes)?;
        self.flush_size()?;
        let grown = Superblock { segments, sequence: before.sequence + 1, ..before };
        write(&*self.file, &grown).inspect_err(|_| self.set_read_only())?;
        self.flush_file()?;
        *self.superblock.lock() = grown;
        Ok(())
    }

    fn flush_size(&self) -> io::Result<()> {
        #[cfg(test)]
        if mutation::is(Mutation::SkipSizeFlush) {
            return Ok(());
        }
        self.flush_file()
    }

    /// Writes zeros over a segment, and flushes.
    pub(crate) fn fill(&self, segment: u32) -> Result<(), Error> {
        if segment >= self.segments() {
            return Err(Error::Invalid("the volume has no such segment"));
        }
        if self.is_read_only() {
            return Err(Error::ReadOnly(self.id));
        }
        let zeros = vec![0; FILLED_BYTES];
        let begin = self.geometry.offset(segment, 0);
        let end = begin + self.geometry.segment_bytes();
        for (number, at) in (begin..end).step_by(FILLED_BYTES).enumerate() {
            let length = FILLED_BYTES.min((end - at) as usize);
            self.file.write_all_at(&mut [IoSlice::new(&zeros[..length])], at)?;
            if number % FILLED_PER_FLUSH == FILLED_PER_FLUSH - 1 {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// Flushes. If that fails the volume is read-only from now on.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.flush_file().map_err(|_| Error::ReadOnly(self.id))
    }

    /// Linux tells only one flush of an open file that bytes were lost, whoever wrote them. So there is one flush at a time, and
    /// none after a failed one: a flush that succeeds says something of all that was written before.
    fn flush_file(&self) -> io::Result<()> {
        let _one = self.flushing.lock();
        if self.is_read_only() {
            return Err(io::Error::other("a flush of the volume has failed before"));
        }
        self.file.flush().inspect_err(|cause| {
            tracing::error!(%cause, volume = %self.id, "a flush failed; the volume is read-only from now on");
            self.set_read_only();
        })
    }

    /// Whether a flush has failed. Then it is unknown what the disk holds: the kernel has dropped what it could not write, so
    /// another flush would succeed without it.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }

    /// Whether a flush is under way.
    #[cfg(test)]
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.is_locked()
    }

    fn set_read_only(&self) {
        self.is_read_only.store(true, Ordering::Release);
    }

    pub(crate) fn file(&self) -> &Arc<dyn VolumeFile> {
        &self.file
    }
}

fn check(found: &Superblock, cluster: Uuid, volume: VolumeId) -> Result<(), MountError> {
    if found.cluster != cluster {
        return Err(MountError::OtherCluster(found.cluster));
    }
    if found.volume != volume {
        return Err(MountError::OtherVolume(found.volume));
    }
    Ok(())
}

fn write(file: &dyn VolumeFile, superblock: &Superblock) -> io::Result<()> {
    file.write_all_at(&mut [IoSlice::new(&superblock.encode())], superblock.offset())
}

/// The newer of the copies that are whole.
pub(crate) fn read_superblock(file: &dyn VolumeFile) -> Result<Superblock, MountError> {
    let (mut newest, mut unknown): (Option<Superblock>, _) = (None, None);
    for at in COPIES {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) => {}
            // One copy is enough.
            Err(cause) => {
                tracing::warn!(%cause, at, "a copy of a volume's superblock cannot be read");
                continue;
            }
        }
        match Superblock::decode(&bytes) {
            Ok(found) if newest.is_none_or(|newest| newest.sequence < found.sequence) => newest = Some(found),
            Ok(_) | Err(NoSuperblock::Damaged) => {}
            Err(NoSuperblock::Version(version)) => unknown = Some(version),
        }
    }
    match (newest, unknown) {
        // Also if the other copy is known: it is older, or a newer release has written only one of them.
        (_, Some(version)) => Err(MountError::Version(version)),
        (Some(newest), None) => Ok(newest),
        (None, None) => Err(MountError::NoSuperblock),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::file::RealFile;

    const CLUSTER: Uuid = Uuid::from_u128(7);

    fn new() -> NewVolume {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        NewVolume { cluster: CLUSTER, volume: VolumeId(3), geometry, segments: 2 }
    }

    fn expected(mount_epoch: u64) -> Expected {
        Expected { cluster: CLUSTER, volume: VolumeId(3), mount_epoch }
    }

    fn mount(path: &std::path::Path, expected: Expected) -> Result<Volume, MountError> {
        Volume::mount(Arc::new(RealFile::open(path)?), expected)
    }

    #[test]
    fn a_volume_is_mounted_grown_and_mounted_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        Volume::create(&RealFile::create(&path).unwrap(), new()).unwrap();
        assert!(matches!(Volume::create(&RealFile::open(&path).unwrap(), new()), Err(MountError::Exists)));
        let volume = mount(&path, expected(0)).unwrap();
        assert_eq!((volume.mount_epoch(), volume.segments()), (1, 2));
        volume.grow(3).unwrap();
        assert!(matches!(volume.grow(u32::MAX), Err(MountError::Invalid(_))));
        assert!(matches!(mount(&path, expected(1)), Err(MountError::InUse)));
        drop(volume);
        let volume = mount(&path, expected(1)).unwrap();
        assert_eq!((volume.mount_epoch(), volume.segments(), volume.geometry()), (2, 5, new().geometry));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), (64 << 10) + (5 << 20));
    }

    #[test]
    fn other_volumes_and_old_copies_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("volume"), folder.path().join("copy"));
        Volume::create(&RealFile::create(&path).unwrap(), new()).unwrap();
        drop(mount(&path, expected(0)).unwrap());
        std::fs::copy(&path, &copy).unwrap();
        assert_eq!(mount(&path, expected(1)).unwrap().mount_epoch(), 2);
        assert!(matches!(mount(&copy, expected(2)), Err(MountError::OldCopy { found: 1, known: 2 })));
        let other = Expected { cluster: Uuid::nil(), ..expected(0) };
        assert!(matches!(mount(&path, other), Err(MountError::OtherCluster(CLUSTER))));
        let other = Expected { volume: VolumeId(4), ..expected(0) };
        assert!(matches!(mount(&path, other), Err(MountError::OtherVolume(VolumeId(3)))));
        // The database was restored to a time before the last mounts.
        assert_eq!(mount(&path, expected(0)).unwrap().mount_epoch(), 3);
    }

    #[test]
    fn a_view_reads_what_another_has_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        Volume::create(&RealFile::create(&path).unwrap(), new()).unwrap();
        let mounted = mount(&path, expected(0)).unwrap();
        let view = |cluster, volume| {
            let file = Arc::new(RealFile::open_to_read(&path).unwrap());
            Volume::view(file, cluster, VolumeId(volume))
        };
        assert!(matches!(view(Uuid::nil(), 3), Err(MountError::OtherCluster(CLUSTER))));
        assert!(matches!(view(CLUSTER, 4), Err(MountError::OtherVolume(VolumeId(3)))));
        let view = view(CLUSTER, 3).unwrap();
        assert!(view.is_read_only() && view.grow(1).is_err());
        assert_eq!((view.mount_epoch(), view.has_segment(1), view.has_segment(2)), (1, true, false));
        mounted.grow(1).unwrap();
        assert!(view.has_segment(2) && !view.has_segment(3));
    }

    #[test]
    fn one_whole_copy_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        Volume::create(&RealFile::create(&path).unwrap(), new()).unwrap();
        let damage = |at| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"x", at + 20).unwrap();
        };
        // The mount epochs alternate between the copies.
        for epoch in 1..5 {
            assert_eq!(mount(&path, expected(epoch - 1)).unwrap().mount_epoch(), epoch);
        }
        damage(COPIES[1]);
        assert_eq!(mount(&path, expected(4)).unwrap().mount_epoch(), 5);
        damage(COPIES[0]);
        assert_eq!(mount(&path, expected(5)).unwrap().mount_epoch(), 6);
        COPIES.into_iter().for_each(damage);
        assert!(matches!(mount(&path, expected(6)), Err(MountError::NoSuperblock)));
    }

    #[test]
    fn a_volume_that_was_cut_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        Volume::create(&RealFile::create(&path).unwrap(), new()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(matches!(mount(&path, expected(0)), Err(MountError::Truncated { .. })));
    }
}
