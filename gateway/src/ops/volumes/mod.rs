//! Looks after this gateway's volume: mounts it, leases its segments from PostgreSQL, makes the blocks of deleted objects free, and
//! lets it grow. All of this happens before puts need it, so a put needs no round trip for it.
//!
//! - `mount`: finds or makes the volume
//! - `segments`: leases of segments
//! - `named`: which of their blocks rows name
//! - `room`: more segments before they are needed
//! - `freed`: deletes that are durable
//! - `scrub`: reads everything again, slowly, to find damage

mod freed;
mod mount;
mod named;
mod room;
mod scrub;
mod segments;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use mantle_types::{Error, ErrorCode};
use mantle_volumes::Lease;
use uuid::Uuid;

use self::scrub::Scrubber;
use crate::{
    app::Gateway,
    data::volumes::Volumes,
    metric_table,
    store::{Mount, Store},
};

/// Time between two rounds. In each, PostgreSQL is asked for deletes: with a reuse delay of 0 their blocks are used again within a
/// second.
const INTERVAL: Duration = Duration::from_millis(250);
/// The pause after a failure, and between two looks at views.
const RETRY: Duration = Duration::from_secs(1);

/// Looks after the volume for ever, and after views of others, if there is one.
pub async fn run(gateway: Arc<Gateway>) {
    let Some(volumes) = gateway.data.volumes().cloned() else { return };
    mantle_telemetry::metrics::describe(metric_table::OF_VOLUMES);
    volumes.report();
    futures::join!(look_after(&gateway, &volumes), watch_views(&volumes));
}

async fn watch_views(volumes: &Volumes) {
    loop {
        tokio::time::sleep(RETRY).await;
        volumes.close_replaced().await;
    }
}

async fn look_after(gateway: &Gateway, volumes: &Volumes) {
    let owner = Uuid::new_v4();
    loop {
        match mount::mount(gateway, volumes, owner).await {
            // The folder is locked until the volume is not used any more.
            Ok(mounted) => {
                let mount = mounted.mount;
                tracing::info!(volume = %mount.volume, epoch = mount.epoch, "the volume is mounted");
                let scrubber = Scrubber::new(&gateway.store, volumes, mount.volume);
                let why = tokio::select! {
                    why = Keeper::new(gateway, volumes, mount).keep() => why,
                    never = scrubber.run() => match never {},
                };
                tracing::error!(why, "the volume is not used any more");
                volumes.unmounted(why).await;
            }
            Err(why) => {
                if volumes.is_not_mounted(&why) {
                    tracing::warn!(why, "the volume is not mounted");
                }
            }
        }
        volumes.report();
        tokio::time::sleep(RETRY).await;
    }
}

/// The work for a mounted volume.
struct Keeper<'a> {
    store: &'a Store,
    volumes: &'a Volumes,
    mount: Mount,
    /// PostgreSQL's history under which the segments were taken over; `None` if they have to be taken over.
    lineage: Option<String>,
    /// A partition of each PostgreSQL node, which names the node in calls.
    nodes: Vec<i64>,
    /// Leases that were taken over and whose rows are not read yet. Nothing is allocated from their segments.
    pending: Vec<Lease>,
    /// Leases of segments without bytes, by the nodes that have not admitted them yet.
    away: HashMap<i64, Vec<Lease>>,
    /// Of each node: the horizon for the next call of `mantle.take_freed_delegated`. It begins with the node's history.
    horizons: HashMap<i64, String>,
    /// Nodes that may have let deletes be taken of which the answer was lost.
    unsure: HashSet<i64>,
    /// Since when there are puts in doubt.
    doubts_since: Option<Instant>,
    swept: Instant,
    sweep_interval: Duration,
    /// When the volume last failed to grow.
    stuck: Option<Instant>,
    problem: Option<String>,
}

/// Why a round ended early.
enum Trouble {
    /// The next round may succeed.
    Passing(Error),
    /// The volume was mounted again elsewhere, or PostgreSQL does not know it.
    Superseded(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Passing(error)
    }
}

impl<'a> Keeper<'a> {
    fn new(gateway: &'a Gateway, volumes: &'a Volumes, mount: Mount) -> Self {
        Self {
            store: &gateway.store,
            volumes,
            mount,
            lineage: None,
            nodes: Vec::new(),
            pending: Vec::new(),
            away: HashMap::new(),
            horizons: HashMap::new(),
            unsure: HashSet::new(),
            doubts_since: None,
            swept: Instant::now(),
            sweep_interval: Duration::from_millis(gateway.limits.sweep_interval_ms),
            stuck: None,
            problem: None,
        }
    }

    /// Makes rounds until the volume is another gateway's. Returns why it ended.
    async fn keep(mut self) -> String {
        loop {
            let pause = match self.round().await {
                Ok(()) => {
                    if self.problem.take().is_some() {
                        tracing::info!("the volume is looked after again");
                    }
                    INTERVAL
                }
                Err(Trouble::Superseded(error)) => return error.to_string(),
                Err(Trouble::Passing(error)) => {
                    if matches!(
                        error.code(),
                        ErrorCode::StaleSegment | ErrorCode::VolumeSuperseded | ErrorCode::UnknownOutcome
                    ) {
                        // PostgreSQL was promoted or restored, or another gateway has the volume. Or the answer to a call that
                        // leased segments was lost.
                        self.lineage = None;
                    }
                    self.note(&error);
                    RETRY
                }
            };
            self.volumes.report();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.volumes.wanted(), if self.problem.is_none() => {}
            }
        }
    }

    fn note(&mut self, error: &Error) {
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            tracing::warn!(%error, "the volume cannot be looked after; trying again");
            self.problem = Some(text);
        }
    }

    async fn round(&mut self) -> Result<(), Trouble> {
        let lineage = self.store.lineage().await?;
        // While leases are pending, their segments still have the earlier epochs.
        let is_refused = self.volumes.take_refused() && self.pending.is_empty();
        if self.lineage.as_ref() != Some(&lineage) || is_refused {
            self.lineage = None;
            // Records the same mount once more, which PostgreSQL refuses if there is a later one.
            self.store.mount_volume(&self.mount).await.map_err(|error| match error.code() {
                ErrorCode::VolumeSuperseded | ErrorCode::NoSuchVolume => Trouble::Superseded(error),
                _ => Trouble::Passing(error),
            })?;
            self.take_all_over().await?;
            self.lineage = Some(lineage);
        }
        let taken = self.take_pending_into_use().await;
        self.make_room().await?;
        taken?;
        self.admit_at_returned().await?;
        self.take_freed().await?;
        self.volumes.took_deletes();
        if self.lineage.is_none() {
            return Ok(());
        }
        self.settle_doubts().await?;
        self.sweep().await?;
        Ok(())
    }
}

/// The error of a call that may be sent again whatever became of it: nothing depends on an outcome that is not known.
fn repeatable(error: Error) -> Error {
    match error.code() {
        ErrorCode::UnknownOutcome => Error::new(ErrorCode::DatabaseUnavailable, error.detail()),
        _ => error,
    }
}

/// A fault of the volume itself.
fn broken(cause: &mantle_volumes::Error) -> Error {
    tracing::error!(%cause, "the volume failed");
    ErrorCode::Internal.into()
}
