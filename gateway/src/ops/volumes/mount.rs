//! Finds the volume in its folder, or makes one, and mounts it. It locks the folder first, so that two gateways never make two
//! volumes there, and then the file, so no other gateway of this machine has it. The mount epoch, in the superblock and in
//! PostgreSQL, grows with each mount: an old copy of the file has a lower one.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use mantle_volumes::{Expected, FolderLock, Geometry, NewVolume, RealFile, Volume, VolumeId, file_of, volumes_in};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::room::segments_max;
use crate::{
    app::Gateway,
    data::{
        folder::{create_folder, sync_folder},
        volumes::Volumes,
    },
    store::Mount,
};

/// Beginning of the name of a file that is not a volume yet.
const UNFINISHED: &str = "unfinished-";

/// Why it cannot be mounted now.
type Why = String;

/// A mounted volume, and the lock of its folder.
pub(super) struct Mounted {
    pub(super) mount: Mount,
    #[expect(dead_code, reason = "it holds the lock")]
    lock: FolderLock,
}

/// Mounts the volume. Without one in the folder it makes one.
pub(super) async fn mount(gateway: &Gateway, volumes: &Volumes, owner: Uuid) -> Result<Mounted, Why> {
    let cluster = gateway.cluster().await.map_err(text)?;
    volumes.set_cluster(cluster);
    let folder = volumes.settings().folder.clone();
    let (lock, found, folder) = blocking(move || lock_and_find(&folder).map(|(lock, found)| (lock, found, folder))).await?;
    let id = match found[..] {
        [] => create(gateway, volumes, cluster).await?,
        [one] => one,
        _ => return Err(format!("{} has several volumes; give each gateway one", folder.display())),
    };
    let path = file_of(&folder, id);
    let file = blocking(move || RealFile::open(&path)).await?;
    let known = gateway.store.known_mount(id).await.map_err(text)?;
    let known = known.ok_or_else(|| format!("the database knows no volume {id}"))?;
    let expected = Expected { cluster, volume: id, mount_epoch: known };
    let volume = blocking(move || Volume::mount(Arc::new(file), expected)).await?;
    let (epoch, geometry, segments) = (volume.mount_epoch(), volume.geometry(), volume.segments());
    let mount = Mount { cluster, volume: id, epoch, geometry, segments, owner };
    gateway.store.mount_volume(&mount).await.map_err(text)?;
    volumes.mounted(volume).await.map_err(text)?;
    Ok(Mounted { mount, lock })
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

async fn create(gateway: &Gateway, volumes: &Volumes, cluster: Uuid) -> Result<VolumeId, Why> {
    let settings = volumes.settings();
    let folder = settings.folder.clone();
    let geometry = settings.geometry().ok_or("there can be no such blocks or segments")?;
    let segments = settings.growth_segments.min(segments_max(settings.bytes_max, geometry));
    let name = folder.display().to_string();
    let id = gateway.store.register_volume(cluster, &name, geometry, segments).await.map_err(text)?;
    let new = NewVolume { cluster, volume: id, geometry, segments };
    blocking(move || make(&folder, new)).await?;
    tracing::info!(volume = %id, segments, "a volume was made");
    Ok(id)
}

/// Makes a volume. The file gets its name when it is complete.
fn make(folder: &Path, new: NewVolume) -> anyhow::Result<()> {
    let unfinished = folder.join(format!("{UNFINISHED}{}", new.volume));
    let file = RealFile::create(&unfinished)?;
    Volume::create(&file, new)?;
    std::fs::rename(&unfinished, file_of(folder, new.volume))?;
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
        make(&path, new(3)).unwrap();
        assert_eq!(find(&path), [VolumeId(3)]);
        assert!(!path.join("unfinished-4").exists());
        make(&path, new(12)).unwrap();
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
        assert!(flushed.contains(&folder.path().to_owned()) && flushed.contains(&folder.path().join("a")), "{flushed:?}");
    }
}
