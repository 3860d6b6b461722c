//! Finds the volume in its folder or on its device, or makes one, and mounts it. It locks the folder first, so that two gateways
//! never make two volumes there, and then the file, so no other gateway of this machine has it. The mount epoch, in the superblock
//! and in PostgreSQL, grows with each mount: an old copy of the file has a lower one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use mantle_volumes::{
    DeviceClaim, Expected, FolderLock, Geometry, HEAD_BYTES, MountError, NewVolume, OnDevice, RealFile, Volume,
    VolumeFile, VolumeId, file_of, on_device, volumes_in,
};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::room::segments_max;
use crate::{
    app::Gateway,
    config,
    data::{
        folder::{create_folder, sync_folder},
        volumes::Volumes,
    },
    store::Mount,
};

/// Beginning of the name of a file that is not a volume yet.
const UNFINISHED: &str = "unfinished-";
/// The file of a new volume, until the volume is complete.
const NEW: &str = "unfinished-volume";

/// Why it cannot be mounted now.
type Why = String;

/// A mounted volume, and the lock of its folder.
pub(super) struct Mounted {
    pub(super) mount: Mount,
    #[expect(dead_code, reason = "it holds the lock")]
    lock: FolderLock,
    #[expect(dead_code, reason = "it holds the claim")]
    claim: Option<DeviceClaim>,
}

/// The volume, before it is mounted.
struct Found {
    volume: VolumeId,
    file: RealFile,
    claim: Option<DeviceClaim>,
}

/// Mounts the volume. Without one in the folder it makes one.
pub(super) async fn mount(gateway: &Gateway, volumes: &Volumes, owner: Uuid) -> Result<Mounted, Why> {
    let cluster = gateway.cluster().await.map_err(text)?;
    volumes.set_cluster(cluster);
    let folder = volumes.settings().folder.clone();
    let (lock, known) = blocking(move || lock_and_find(&folder)).await?;
    let Found { volume: id, file, claim } = match volumes.settings().device.clone() {
        Some(device) => on_its_device(gateway, volumes, cluster, device).await?,
        None => in_its_folder(gateway, volumes, cluster, &known).await?,
    };
    let known = gateway.store.known_mount(id).await.map_err(text)?;
    let known = known.ok_or_else(|| format!("the database knows no volume {id}"))?;
    let expected = Expected { cluster, volume: id, mount_epoch: known };
    let volume = blocking(move || Volume::mount(Arc::new(file), expected)).await?;
    let (epoch, geometry, segments) = (volume.mount_epoch(), volume.geometry(), volume.segments());
    let mount = Mount { cluster, volume: id, epoch, geometry, segments, owner };
    gateway.store.mount_volume(&mount).await.map_err(text)?;
    volumes.mounted(volume).await.map_err(text)?;
    Ok(Mounted { mount, lock, claim })
}

fn text(cause: impl std::fmt::Display) -> Why {
    cause.to_string()
}

async fn blocking<T: Send + 'static, E: std::fmt::Display + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Why> {
    spawn_blocking(work).await.map_err(text)?.map_err(text)
}

/// Locks the folder, and finds the volumes in it. Creates the folder, and removes what a crash left of a volume that was being made.
fn lock_and_find(folder: &Path) -> anyhow::Result<(FolderLock, Vec<VolumeId>)> {
    create_folder(folder)?;
    let lock = FolderLock::take(folder)?;
    let lock = lock.with_context(|| format!("another gateway has the folder {}", folder.display()))?;
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
            std::fs::remove_file(file.path())?;
        }
    }
    Ok((lock, volumes_in(folder)?))
}

/// The only volume in the folder. Without one it makes one.
async fn in_its_folder(gateway: &Gateway, volumes: &Volumes, cluster: Uuid, known: &[VolumeId]) -> Result<Found, Why> {
    let folder = volumes.settings().folder.clone();
    let volume = match known {
        [] => {
            let bytes = first_bytes(volumes.settings())?;
            let place = folder.clone();
            // Before it gets a number: as long as the disk is full, each attempt would use up one.
            let file = blocking(move || reserve(&place, bytes)).await?;
            let new = register(gateway, volumes, cluster, &folder, None).await?;
            let place = folder.clone();
            blocking(move || make(&place, &file, new)).await?;
            made(new)
        }
        [one] => *one,
        _ => return Err(format!("{} has several volumes; give each gateway one", folder.display())),
    };
    let path = file_of(&folder, volume);
    let file = blocking(move || RealFile::open(&path)).await?;
    Ok(Found { volume, file, claim: None })
}

/// The volume on the device. Without one it makes one, if the device was prepared for that.
async fn on_its_device(gateway: &Gateway, volumes: &Volumes, cluster: Uuid, device: PathBuf) -> Result<Found, Why> {
    let name = device.display().to_string();
    let path = device.clone();
    let open = move || -> Result<_, MountError> {
        let claim = DeviceClaim::take(&path)?;
        let file = RealFile::open(&path)?;
        let (found, bytes) = (on_device(&file)?, file.bytes()?);
        Ok((claim, file, found, bytes))
    };
    let (claim, file, found, bytes) = blocking(open).await.map_err(|why| format!("{name}: {why}"))?;
    let (volume, file) = match found {
        OnDevice::Volume(superblock) => (superblock.volume, file),
        OnDevice::Marked => {
            let new = register(gateway, volumes, cluster, &device, Some(bytes)).await?;
            let file = blocking(move || Volume::create(&file, new).map(|()| file)).await?;
            (made(new), file)
        }
        OnDevice::Other => {
            return Err(format!("{name} has no volume, and was not prepared for one: `mantle data format` does that"));
        }
    };
    Ok(Found { volume, file, claim: Some(claim) })
}

fn made(NewVolume { volume, segments, .. }: NewVolume) -> VolumeId {
    tracing::info!(%volume, segments, "a volume was made");
    volume
}

/// Gets a number for a new volume. `bytes`: how many there are for it.
async fn register(
    gateway: &Gateway,
    volumes: &Volumes,
    cluster: Uuid,
    place: &Path,
    bytes: Option<u64>,
) -> Result<NewVolume, Why> {
    let settings = volumes.settings();
    let geometry = geometry_of(settings)?;
    let segments = first_segments(settings, geometry, bytes);
    if segments == 0 {
        return Err(format!("{} is too small for a segment ({} bytes)", place.display(), geometry.segment_bytes()));
    }
    let name = place.display().to_string();
    let volume = gateway.store.register_volume(cluster, &name, geometry, segments).await.map_err(text)?;
    Ok(NewVolume { cluster, volume, geometry, segments })
}

fn geometry_of(settings: &config::Volumes) -> Result<Geometry, Why> {
    settings.geometry().ok_or_else(|| "there can be no such blocks or segments".to_owned())
}

/// How long the file of a new volume is.
fn first_bytes(settings: &config::Volumes) -> Result<u64, Why> {
    let geometry = geometry_of(settings)?;
    let segments = first_segments(settings, geometry, None);
    geometry.volume_bytes(segments).ok_or_else(|| "the volume would not fit in a file".to_owned())
}

fn first_segments(settings: &config::Volumes, geometry: Geometry, bytes: Option<u64>) -> u32 {
    let fitting = bytes.map_or(u64::MAX, |bytes| bytes.saturating_sub(HEAD_BYTES) / geometry.segment_bytes());
    let most = segments_max(settings.bytes_max, geometry).min(u32::try_from(fitting).unwrap_or(u32::MAX));
    settings.growth_segments.min(most)
}

/// A file that becomes a volume, with its space.
fn reserve(folder: &Path, bytes: u64) -> Result<RealFile, MountError> {
    let file = RealFile::create(&folder.join(NEW))?;
    file.reserve(bytes)?;
    Ok(file)
}

/// Makes a volume of such a file. It gets its name when it is complete.
fn make(folder: &Path, file: &RealFile, new: NewVolume) -> anyhow::Result<()> {
    Volume::create(file, new)?;
    std::fs::rename(folder.join(NEW), file_of(folder, new.volume))?;
    sync_folder(folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::folder::FLUSHED;

    fn new(volume: u32) -> NewVolume {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        NewVolume { cluster: Uuid::nil(), volume: VolumeId(volume), geometry, segments: 1 }
    }

    #[test]
    fn what_a_crash_leaves_of_a_new_volume_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below");
        let find = |path: &Path| lock_and_find(path).unwrap().1;
        assert_eq!(find(&path), []);
        std::fs::write(path.join("unfinished-4"), b"x").unwrap();
        std::fs::write(path.join("volume-x"), b"x").unwrap();
        let bytes = new(1).geometry.volume_bytes(1).unwrap();
        let made = |volume| make(&path, &reserve(&path, bytes).unwrap(), new(volume)).unwrap();
        made(3);
        assert_eq!(find(&path), [VolumeId(3)]);
        assert!(!path.join("unfinished-4").exists());
        made(12);
        assert_eq!(find(&path), [VolumeId(3), VolumeId(12)]);
    }

    /// Another gateway would remove the file of a volume that this one is making, or make a second one.
    #[test]
    fn nobody_else_looks_while_a_volume_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, found) = lock_and_find(folder.path()).unwrap();
        assert_eq!(found, []);
        let unfinished = folder.path().join("unfinished-4");
        std::fs::write(&unfinished, b"x").unwrap();
        let refused = lock_and_find(folder.path()).unwrap_err().to_string();
        assert!(refused.starts_with("another gateway has the folder"), "{refused}");
        assert!(unfinished.exists());
        drop(lock);
        assert!(lock_and_find(folder.path()).is_ok() && !unfinished.exists());
    }

    /// A crash of the machine would otherwise lose the folder with acknowledged objects in it.
    #[test]
    fn the_name_of_a_new_folder_is_flushed() {
        let folder = tempfile::tempdir().unwrap();
        FLUSHED.take();
        lock_and_find(&folder.path().join("a/b")).unwrap();
        let flushed = FLUSHED.take();
        assert!(
            flushed.contains(&folder.path().to_owned()) && flushed.contains(&folder.path().join("a")),
            "{flushed:?}"
        );
    }

    #[test]
    fn a_new_volume_fits_on_its_device() {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        let segments = |more: &str, bytes| {
            let settings = toml::from_str(&format!("folder = \"a\"\n{more}")).unwrap();
            first_segments(&settings, geometry, bytes)
        };
        let device = |bytes: u64| Some(HEAD_BYTES + bytes);
        assert_eq!(segments("", None), 4);
        assert_eq!([1 << 30, (3 << 20) + 5, (1 << 20) - 1].map(|bytes| segments("", device(bytes))), [4, 3, 0]);
        assert_eq!(segments("", Some(1000)), 0, "not even a head");
        assert_eq!(segments("bytes_max = 2097152", device(1 << 30)), 2);
    }
}
