//! Volumes of other gateways, which this one only reads. Their files may be replaced while they are open, for example by a copy of a
//! volume that was lost. An open file would go on to show the old bytes, so a view is closed when its path leads elsewhere.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use mantle_types::Result;
use mantle_volumes::{MountError, OnDevice, RealFile, Volume, VolumeId, file_of, on_device};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::{Volumes, unavailable};
use crate::config;

/// A file or device, whatever its name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    file_system: u64,
    inode: u64,
    device: u64,
}

impl Identity {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { file_system: found.dev(), inode: found.ino(), device: found.rdev() })
    }
}

/// What was opened.
#[derive(Clone, Debug)]
pub(super) struct View {
    path: PathBuf,
    identity: Identity,
}

impl View {
    /// Whether the path leads to another file now. While it leads nowhere, what is open is still good.
    fn is_replaced(&self) -> bool {
        Identity::of(&self.path).is_ok_and(|now| now != self.identity)
    }
}

/// Opens a volume that is in one of the folders, or on one of the devices; `None` if it is in none.
fn open(
    settings: &config::Volumes,
    cluster: Uuid,
    volume: VolumeId,
) -> std::result::Result<Option<(Volume, View)>, MountError> {
    let config::Volumes { folder, device, read_folders, read_devices, .. } = settings;
    let mut files = read_folders.iter().chain([folder]).map(|folder| file_of(folder, volume));
    let path = files.find(|path| path.exists()).or_else(|| {
        let mut devices = read_devices.iter().chain(device);
        devices.find(|path| has(path, volume)).cloned()
    });
    let Some(path) = path else { return Ok(None) };
    // Before it is opened: if it is replaced in between, the view is closed and opened again.
    let identity = Identity::of(&path)?;
    let file = RealFile::open_to_read(&path)?;
    let opened = Volume::view(Arc::new(file), cluster, volume)?;
    Ok(Some((opened, View { path, identity })))
}

/// Whether this volume is on a device.
fn has(device: &Path, volume: VolumeId) -> bool {
    let found = RealFile::open_to_read(device).and_then(|file| on_device(&file));
    match found {
        Ok(OnDevice::Volume(found)) => found.volume == volume,
        Ok(_) => false,
        Err(cause) => {
            tracing::warn!(%cause, device = %device.display(), "a device cannot be read");
            false
        }
    }
}

impl Volumes {
    /// Makes a volume readable that another gateway has mounted.
    ///
    /// # Errors
    /// `BytesUnavailable` if it is in none of the folders and on none of the devices, or cannot be read.
    pub(super) async fn view(&self, volume: VolumeId) -> Result<()> {
        let Some(cluster) = self.0.cluster.get().copied() else {
            return Err(unavailable("the database has not said yet which cluster this is"));
        };
        let settings = self.0.settings.clone();
        let opened = spawn_blocking(move || open(&settings, cluster, volume)).await;
        let opened = opened.map_err(|panic| unavailable(panic.to_string()))?;
        let refused = |why: String| {
            tracing::error!(%volume, why, "a volume cannot be read");
            unavailable(format!("volume {volume} cannot be read here"))
        };
        let opened = opened.map_err(|cause| refused(cause.to_string()))?;
        let (opened, view) = opened.ok_or_else(|| refused("it is in none of the folders, and on no device".into()))?;
        let mut views = self.0.views.lock();
        // Somebody else may have been quicker.
        if self.0.store.add(opened).is_ok() {
            views.insert(volume, view);
        }
        Ok(())
    }

    /// Closes views whose files were replaced; the next read opens the new ones. Reads in progress go on with the old ones.
    pub async fn close_replaced(&self) {
        let views = self.0.views.lock().clone();
        if views.is_empty() {
            return;
        }
        let replaced = spawn_blocking(move || {
            views.into_iter().filter(|(_, view)| view.is_replaced()).map(|(id, _)| id).collect()
        });
        let replaced: Vec<VolumeId> = replaced.await.unwrap_or_default();
        for volume in replaced {
            // It may have become this gateway's own volume meanwhile.
            if self.0.views.lock().remove(&volume).is_some() {
                tracing::info!(%volume, "the file of another gateway's volume was replaced");
                // It fails only if the volume is not mounted.
                let _ = self.0.store.remove(volume).await;
            }
        }
    }
}
