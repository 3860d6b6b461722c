//! Leases more segments before puts need them: first those that are leased to nobody, then new ones by which the volume grows.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mantle_types::{ErrorCode, Result, limits::VOLUME_SEGMENTS_MAX};
use mantle_volumes::{Geometry, MountError, Volume};
use tokio::task::spawn_blocking;

use super::{Keeper, broken};

/// Time after which another attempt to grow follows a failed one. Without room it costs one system call.
const STUCK: Duration = Duration::from_secs(10);

impl Keeper<'_> {
    /// Leases more segments if the leased ones are nearly full.
    pub(super) async fn make_room(&mut self) -> Result<()> {
        let volume = self.volumes.store().volume(self.mount.volume).map_err(|cause| broken(&cause))?;
        if volume.is_read_only() {
            self.volumes.set_can_grow(false);
            return Ok(());
        }
        if !self.pending.is_empty() {
            // A PostgreSQL node does not answer. Meanwhile segments without bytes may be used, if another node answers.
            if !self.horizons.is_empty() && !self.has_open_segments()? {
                let mut leased = self.store.lease_segments(&self.mount, 1, true).await?;
                // After a failover of the coordinator, for instance, there are none but those by which the volume grows.
                if leased.is_empty() && self.grow(&volume).await? {
                    leased = self.store.lease_segments(&self.mount, 1, true).await?;
                }
                self.take_new_into_use(&leased).await?;
            }
            return Ok(());
        }
        loop {
            let Some(space) = self.volumes.space_wanted() else { return Ok(()) };
            if !space.is_over(self.volumes.settings().grow_percent) {
                self.volumes.set_can_grow(true);
                return Ok(());
            }
            let count = self.volumes.settings().growth_segments;
            let leased = self.store.lease_segments(&self.mount, count, false).await?;
            if !leased.is_empty() {
                self.take_new_into_use(&leased).await?;
            } else if !self.grow(&volume).await? {
                self.volumes.set_can_grow(false);
                self.volumes.has_changed();
                return Ok(());
            }
        }
    }

    /// `false` if the volume cannot grow now.
    async fn grow(&mut self, volume: &Arc<Volume>) -> Result<bool> {
        if self.stuck.is_some_and(|stuck| stuck.elapsed() < STUCK) {
            return Ok(false);
        }
        let settings = self.volumes.settings();
        let most = segments_max(settings.bytes_max, volume.geometry());
        let mut more = settings.growth_segments.min(most.saturating_sub(volume.segments()));
        loop {
            if more == 0 {
                return Ok(false);
            }
            let growing = volume.clone();
            match spawn_blocking(move || growing.grow(more)).await {
                Ok(Ok(())) => break,
                // What is left of a device, or of a file system, may have room for fewer.
                Ok(Err(MountError::Io(cause))) if cause.kind() == std::io::ErrorKind::StorageFull && more > 1 => {
                    more /= 2
                }
                Ok(Err(MountError::Io(cause))) if cause.kind() == std::io::ErrorKind::StorageFull => {
                    if self.stuck.is_none() {
                        tracing::warn!(%cause, "there is no room for a larger volume");
                    }
                    self.stuck = Some(Instant::now());
                    return Ok(false);
                }
                Ok(Err(cause)) => {
                    tracing::error!(%cause, "the volume cannot grow");
                    self.stuck = Some(Instant::now());
                    return Ok(false);
                }
                Err(panic) => {
                    tracing::error!(%panic, "the volume cannot grow");
                    return Err(ErrorCode::Internal.into());
                }
            }
        }
        self.stuck = None;
        self.mount.segments = volume.segments();
        self.store.mount_volume(&self.mount).await?;
        tracing::info!(segments = self.mount.segments, "the volume has grown");
        Ok(true)
    }
}

/// How many segments a volume may have: as `bytes_max` says, and as PostgreSQL takes.
pub(super) fn segments_max(bytes_max: u64, geometry: Geometry) -> u32 {
    let most = match bytes_max {
        0 => u64::MAX,
        bytes => bytes / geometry.segment_bytes(),
    };
    u32::try_from(most.min(VOLUME_SEGMENTS_MAX as u64)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_not_larger_than_it_may_be() {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        let segments = [0, 1 << 20, (3 << 20) + 5, u64::MAX].map(|bytes_max| segments_max(bytes_max, geometry));
        assert_eq!(segments, [1 << 24, 1, 3, 1 << 24]);
    }
}
