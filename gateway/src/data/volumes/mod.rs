//! Bytes in this gateway's volume, and reads of other gateways' volumes. `ops/volumes` does what needs PostgreSQL: mounts,
//! leases of segments, deleted extents. The two share [`Volumes`]: a put tells here that it needs more room or a new lease, and
//! is woken when there is one.
//!
//! - `claim`: reserved blocks of a put, until it is known what became of its metadata
//! - `read`: reads whose every byte is checked
//! - `report`: metrics of the volume
//! - `view`: other gateways' volumes
//! - `write`: a client's bytes

mod claim;
mod read;
mod report;
mod view;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mantle_types::{Error, ErrorCode, Result};
use mantle_volumes::{Lease, Options, Space, Store, Volume, VolumeId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub use self::read::Pins;
use self::view::View;
pub(super) use self::{claim::Claim, write::pieces};
use crate::config;

/// When this share of the leased segments is used, puts wait for more room, in percent.
const CROWDED_PERCENT: u8 = 97;
/// When this share is used and no more room comes, puts wait for the blocks of deleted objects, in percent.
const FULL_PERCENT: u8 = 98;
/// Rounds of asking for deletes after which everything is free that was deleted before the first of them was awaited: that one may
/// have begun before, the next one notes that the delete is over, and the third one takes it.
const ROUNDS_OF_DELETES: u64 = 3;
/// How long a put waits for more room, at most.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);

/// This gateway's volume, and those of others that it reads. A clone is the same volumes.
#[derive(Clone)]
pub struct Volumes(Arc<Inner>);

struct Inner {
    settings: config::Volumes,
    store: Store,
    cluster: OnceLock<Uuid>,
    /// This gateway's own volume, while it is mounted.
    own: Mutex<Option<VolumeId>>,
    /// Volumes of others that are open, or of this gateway before it is mounted.
    views: Mutex<BTreeMap<VolumeId, View>>,
    /// How long a put waits for more room.
    room_wait: Duration,
    /// Whether more room may come, so that a put which finds none may wait.
    can_grow: AtomicBool,
    /// Segments are leased of which it is not known yet which blocks are free.
    is_reading: AtomicBool,
    /// Bytes that puts are about to write.
    coming: AtomicU64,
    /// Rounds in which PostgreSQL was asked for deletes.
    rounds: AtomicU64,
    /// One more with each change of the leases or of the room.
    changed: watch::Sender<u64>,
    wanted: Notify,
    /// Leases whose epoch PostgreSQL has refused.
    refused: Mutex<BTreeSet<Lease>>,
    /// Why the volume is not mounted.
    problem: Mutex<Option<String>>,
}

/// Whether a locator names bytes of a volume.
pub(super) fn is_ours(locator: &str) -> bool {
    locator.starts_with(mantle_volumes::PREFIX)
}

fn unavailable(detail: impl Into<String>) -> Error {
    Error::new(ErrorCode::BytesUnavailable, detail)
}

impl Volumes {
    /// Nothing is mounted yet. A put waits for room no longer than a request waits for its answer.
    pub(super) fn new(settings: &config::Volumes, answer_wait: Duration) -> Self {
        let options = Options {
            // PostgreSQL keeps freed rows for the delay, so blocks are free when this store learns of them.
            reuse_delay: Duration::ZERO,
            pin_max: Duration::from_millis(settings.read_ms_max),
        };
        Self(Arc::new(Inner {
            settings: settings.clone(),
            store: Store::new(options),
            cluster: OnceLock::new(),
            own: Mutex::default(),
            views: Mutex::default(),
            room_wait: answer_wait.min(ROOM_WAIT_MAX),
            can_grow: AtomicBool::new(true),
            is_reading: AtomicBool::new(false),
            coming: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            changed: watch::Sender::default(),
            wanted: Notify::new(),
            refused: Mutex::default(),
            problem: Mutex::new(Some("it was not tried yet".into())),
        }))
    }

    pub fn settings(&self) -> &config::Volumes {
        &self.0.settings
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The cluster whose volumes may be read.
    pub fn set_cluster(&self, cluster: Uuid) {
        // It is the same each time.
        let _ = self.0.cluster.set(cluster);
    }

    /// Takes this gateway's volume into use.
    ///
    /// # Errors
    /// As of [`Store::add`].
    pub async fn mounted(&self, volume: Volume) -> mantle_volumes::Result<()> {
        let id = volume.id();
        let viewed = self.0.views.lock().remove(&id);
        if viewed.is_some() {
            self.0.store.remove(id).await?;
        }
        self.0.store.add(volume)?;
        *self.0.own.lock() = Some(id);
        *self.0.problem.lock() = None;
        Ok(())
    }

    /// This gateway's volume.
    ///
    /// # Errors
    /// `BytesUnavailable` while it is not mounted.
    pub fn own(&self) -> Result<VolumeId> {
        self.0.own.lock().ok_or_else(|| {
            let why = self.0.problem.lock().clone().unwrap_or_default();
            unavailable(format!("this gateway's volume is not mounted: {why}"))
        })
    }

    /// Ends the use of this gateway's volume.
    pub async fn unmounted(&self, why: String) {
        let own = self.0.own.lock().take();
        *self.0.problem.lock() = Some(why);
        if let Some(own) = own {
            // It fails only if the volume is not mounted.
            let _ = self.0.store.remove(own).await;
        }
        self.has_changed();
    }

    /// Keeps why the volume is not mounted; `true` if the reason is new.
    pub fn is_not_mounted(&self, why: &str) -> bool {
        let before = self.0.problem.lock().replace(why.to_owned());
        before.as_deref() != Some(why)
    }

    /// Wakes puts that wait for other leases, or for room.
    pub fn has_changed(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }

    /// All deletes that may be used by now were taken.
    pub fn took_deletes(&self) {
        self.0.rounds.fetch_add(1, Ordering::AcqRel);
        if self.0.changed.receiver_count() > 0 {
            self.has_changed();
        }
    }

    fn rounds(&self) -> u64 {
        self.0.rounds.load(Ordering::Acquire)
    }

    /// Whether more room may come.
    pub fn set_can_grow(&self, can_grow: bool) {
        self.0.can_grow.store(can_grow, Ordering::Release);
    }

    fn can_grow(&self) -> bool {
        self.0.can_grow.load(Ordering::Acquire)
    }

    /// Whether segments are leased that cannot be used before PostgreSQL has said which of their blocks are free.
    pub fn set_reading(&self, is_reading: bool) {
        self.0.is_reading.store(is_reading, Ordering::Release);
    }

    /// Whether there may be room soon: the volume grows, or segments cannot be used only now.
    fn is_more_to_come(&self) -> bool {
        let is_paused = || self.space().is_some_and(|space| space.paused > 0);
        self.can_grow() || self.0.is_reading.load(Ordering::Acquire) || is_paused()
    }

    /// Asks `ops/volumes` to look after the volume now.
    pub fn want(&self) {
        self.0.wanted.notify_one();
    }

    /// PostgreSQL has refused the epoch of this lease.
    fn refuse(&self, lease: Lease) {
        self.0.refused.lock().insert(lease);
        self.want();
    }

    /// Whether PostgreSQL has refused, since the last call, an epoch that its segment still has.
    pub fn take_refused(&self) -> bool {
        let refused = std::mem::take(&mut *self.0.refused.lock());
        refused.iter().any(|lease| self.0.store.epoch(lease.segment).is_ok_and(|epoch| epoch == Some(lease.epoch)))
    }

    /// Waits until a put needs room or another lease.
    pub async fn wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// The room of the mounted volume.
    pub fn space(&self) -> Option<Space> {
        let own = (*self.0.own.lock())?;
        self.0.store.space(own).ok()
    }

    /// As [`Self::space`], and counts what puts are about to write as used.
    pub fn space_wanted(&self) -> Option<Space> {
        let space = self.space()?;
        Some(Space { used: space.used + self.0.coming.load(Ordering::Acquire), ..space })
    }

    /// Whether a put should wait: nearly all is used, and the volume can grow, or segments are leased again in a moment.
    fn is_crowded(&self) -> bool {
        let Some(space) = self.space_wanted() else { return false };
        let open = Space { used: space.used + space.paused, ..space };
        self.is_more_to_come() && open.is_over(CROWDED_PERCENT)
    }

    /// Whether a put might be refused, unless blocks of deleted objects become free.
    fn is_full(&self) -> bool {
        self.space_wanted().is_some_and(|space| space.is_over(FULL_PERCENT))
    }
}

#[cfg(test)]
mod tests;
