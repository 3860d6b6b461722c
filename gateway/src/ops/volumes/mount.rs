//! Finds the volume in its folder, or makes one, and mounts it. It locks the file first, so no other gateway of this machine has it.
//! The mount epoch, in the superblock and in PostgreSQL, grows with each mount: an old copy of the file has a lower one.

use std::{path::Path, sync::Arc};

use mantle_volumes::{Expected, Geometry, NewVolume, RealFile, Volume, VolumeId, file_of, volumes_in};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::{app::Gateway, data::volumes::Volumes, store::Mount};

/// Beginning of the name of a file that is not a volume yet.
const UNFINISHED: &str = "unfinished-";

/// Why it cannot be mounted now.
type Why = String;

/// Mounts the volume. Without one in the folder it makes one.
pub(super) async fn mount(gateway: &Gateway, volumes: &Volumes, owner: Uuid) -> Result<Mount, Why> {
    let cluster = gateway.cluster().await.map_err(text)?;
    volumes.set_cluster(cluster);
    let folder = volumes.settings().folder.clone();
    let (found, folder) = blocking(move || find(&folder).map(|found| (found, folder))).await?;
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
    Ok(mount)
}

fn text(cause: impl std::fmt::Display) -> Why {
    cause.to_string()
}

async fn blocking<T: Send + 'static, E: std::fmt::Display + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Why> {
    spawn_blocking(work).await.map_err(text)?.map_err(text)
}

/// The volumes in a folder. Creates the folder, and removes what a crash left of a volume that was being made.
fn find(folder: &Path) -> std::io::Result<Vec<VolumeId>> {
    std::fs::create_dir_all(folder)?;
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
            std::fs::remove_file(file.path())?;
        }
    }
    volumes_in(folder)
}

async fn create(gateway: &Gateway, volumes: &Volumes, cluster: Uuid) -> Result<VolumeId, Why> {
    let settings = volumes.settings();
    let folder = settings.folder.clone();
    let geometry = settings.geometry().ok_or("there can be no such blocks or segments")?;
    let segments = first_segments(settings.growth_segments, settings.bytes_max, geometry);
    let name = folder.display().to_string();
    let id = gateway.store.register_volume(cluster, &name, geometry, segments).await.map_err(text)?;
    let new = NewVolume { cluster, volume: id, geometry, segments };
    blocking(move || make(&folder, new)).await?;
    tracing::info!(volume = %id, segments, "a volume was made");
    Ok(id)
}

fn first_segments(wanted: u32, bytes_max: u64, geometry: Geometry) -> u32 {
    match bytes_max / geometry.segment_bytes() {
        0 if bytes_max == 0 => wanted,
        most => wanted.min(u32::try_from(most).unwrap_or(u32::MAX)),
    }
}

/// Makes a volume. The file gets its name when it is complete.
fn make(folder: &Path, new: NewVolume) -> anyhow::Result<()> {
    let unfinished = folder.join(format!("{UNFINISHED}{}", new.volume));
    let file = RealFile::create(&unfinished)?;
    Volume::create(&file, new)?;
    std::fs::rename(&unfinished, file_of(folder, new.volume))?;
    std::fs::File::open(folder)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(volume: u32) -> NewVolume {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        NewVolume { cluster: Uuid::nil(), volume: VolumeId(volume), geometry, segments: 1 }
    }

    #[test]
    fn what_a_crash_leaves_of_a_new_volume_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below");
        assert_eq!(find(&path).unwrap(), []);
        std::fs::write(path.join("unfinished-4"), b"x").unwrap();
        std::fs::write(path.join("volume-x"), b"x").unwrap();
        make(&path, new(3)).unwrap();
        assert_eq!(find(&path).unwrap(), [VolumeId(3)]);
        assert!(!path.join("unfinished-4").exists());
        make(&path, new(12)).unwrap();
        assert_eq!(find(&path).unwrap(), [VolumeId(3), VolumeId(12)]);
    }

    #[test]
    fn a_new_volume_is_not_larger_than_it_may_be() {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        let segments = |bytes_max| first_segments(4, bytes_max, geometry);
        assert_eq!([segments(0), segments(1 << 20), segments(3 << 20), segments(1 << 40)], [4, 1, 3, 4]);
    }
}
