//! The index, as the use cases see it: paths to directories, rename locks, acknowledgements. Invariant (PROTOCOLS rule 5):
//! a lookup carries the group's epoch, one of the terms read from PostgreSQL at most one lease ago, so that an abandoned group cannot
//! answer; the lease is renewed in the background at half its time, off the path of requests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use mantle_index_client::{IndexClient, Query};
pub use mantle_index_client::{PreparedRename, RenameRequest, Resolution};
use mantle_types::{Error, ErrorCode, RequestKey, Result};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::Config,
    store::{Moment, Store, Terms, Written, pause},
};

/// How often a lookup is asked again after the terms were read anew. A second or so in all: the index may have to hear of a
/// promotion first.
const TERMS_RETRIES_MAX: u32 = 8;

/// Handle on the index group.
pub struct Index {
    client: IndexClient,
    store: Arc<Store>,
    group: u32,
    await_timeout: Duration,
    lease: Duration,
    terms: Mutex<Option<(Arc<Terms>, Instant)>>,
    refreshing: tokio::sync::Mutex<()>,
}

impl Index {
    /// Connects when first used. Must be called within a tokio runtime.
    pub fn new(config: &Config, store: Arc<Store>) -> Result<Self> {
        Ok(Self {
            client: IndexClient::connect_lazy(config.index.replicas.clone())?,
            store,
            group: config.index.group,
            await_timeout: Duration::from_millis(config.limits.await_timeout_ms),
            lease: Duration::from_millis(config.limits.epoch_lease_ms),
            terms: Mutex::new(None),
            refreshing: tokio::sync::Mutex::default(),
        })
    }

    /// The group's number.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// Renews the terms' lease for ever.
    pub async fn keep_lease(&self) {
        let mut ticks = tokio::time::interval(self.lease / 2);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A failure is reported by the requests that need the terms.
            let _ = self.refresh(Instant::now()).await;
        }
    }

    /// Now, for what is about to be resolved.
    pub async fn moment(&self) -> Result<Moment> {
        let now = Instant::now();
        let known = self.terms.lock().clone();
        let terms = match known {
            Some((terms, read)) if now.duration_since(read) < self.lease => terms,
            _ => self.refresh(now).await?,
        };
        Ok(Moment::now(terms))
    }

    /// Reads the terms anew: something was refused under those that are known. Perhaps because its shard has moved.
    pub async fn renew(&self) -> Result<()> {
        self.store.refresh_map().await?;
        self.refresh(Instant::now()).await.map(drop)
    }

    /// Reads the terms unless somebody did after `wanted`.
    async fn refresh(&self, wanted: Instant) -> Result<Arc<Terms>> {
        let _guard = self.refreshing.lock().await;
        let known = self.terms.lock().clone();
        if let Some((terms, read)) = &known
            && *read >= wanted
        {
            return Ok(terms.clone());
        }
        let started = Instant::now();
        let terms = Arc::new(self.store.terms(self.group, known.as_ref().map(|(terms, _)| &**terms)).await?);
        // The lease counts from before the read: the epoch may have been raised right after.
        *self.terms.lock() = Some((terms.clone(), started));
        Ok(terms)
    }

    /// Resolves paths of directories, one RPC for all, on any replica.
    pub async fn resolve(&self, queries: Vec<Query>) -> Result<(Moment, Vec<Resolution>)> {
        for attempt in 0..TERMS_RETRIES_MAX {
            let moment = self.moment().await?;
            match timed("resolve", self.client.resolve(moment.basis().clone(), queries.clone())).await {
                Err(e) if e.code() == ErrorCode::StaleEpoch => {
                    if attempt > 0 {
                        pause(attempt).await;
                    }
                    self.renew().await?;
                }
                answer => return answer.map(|found| (moment, found)),
            }
        }
        Err(Error::new(ErrorCode::IndexUnavailable, "the index group is being rebuilt"))
    }

    /// Resolves and locks the source of a directory rename, on the leader.
    pub async fn prepare_rename(&self, request: RenameRequest) -> Result<PreparedRename> {
        timed("prepare_rename", self.client.prepare_rename(request)).await
    }

    /// Gives a lock back whose rename is known not to have committed. If that fails, the leader's timer does it.
    pub async fn release_rename(&self, request: RequestKey, attempt: u64) {
        if let Err(error) = timed("release_rename", self.client.release_rename(request, attempt)).await {
            tracing::debug!(%error, attempt, "the lock is left to the leader");
        }
    }

    /// Begins to wait for a change before it is committed, so that the index's answer is on its way while PostgreSQL
    /// still works. Dropped unfinished (the change was refused), it is taken back.
    pub fn await_soon(self: &Arc<Self>, request: RequestKey) -> Awaited {
        let index = self.clone();
        let answer = tokio::spawn(async move {
            timed("await_request", index.client.await_request(request, index.await_timeout)).await
        });
        Awaited { index: self.clone(), request, answer: AbortOnDropHandle::new(answer) }
    }

    /// Waits until a committed change is served by every replica.
    pub async fn await_written(&self, request: RequestKey, written: &Written) -> Result<()> {
        self.await_for(request, written, self.await_timeout).await
    }

    async fn await_for(&self, request: RequestKey, written: &Written, limit: Duration) -> Result<()> {
        let answer = match written.replayed {
            true => timed("await_flushed", self.await_flushed(limit)).await,
            false => timed("await_request", self.client.await_request(request, limit)).await,
        };
        answer.map_err(|e| match e.code() {
            ErrorCode::AwaitTimeout => e,
            // The change is committed: whatever kept the index from saying so is a matter of time.
            _ => Error::new(
                ErrorCode::AwaitTimeout,
                format!("{} ({})", ErrorCode::AwaitTimeout.row().meaning, e.detail()),
            ),
        })
    }

    /// Waits for all that is committed by now: the message of a change that was made earlier may never come again.
    async fn await_flushed(&self, limit: Duration) -> Result<()> {
        let waits =
            self.store.flushed().await?.into_iter().map(|(source, lsn)| self.client.await_lsn(source, lsn, limit));
        try_join_all(waits).await.map(drop)
    }

    /// Does a replica answer lookups?
    pub async fn is_ready(&self) -> bool {
        self.client.status().await.iter().any(|(_, status)| status.as_ref().is_ok_and(|s| s.ready))
    }
}

/// A wait that has begun.
pub struct Awaited {
    index: Arc<Index>,
    request: RequestKey,
    answer: AbortOnDropHandle<Result<()>>,
}

impl Awaited {
    /// Waits until the change, which is committed now, is served by every replica.
    pub async fn written(self, written: &Written) -> Result<()> {
        let committed = Instant::now();
        if !written.replayed && matches!(self.answer.await, Ok(Ok(()))) {
            return Ok(());
        }
        // Its time may have run out while PostgreSQL was still working: that counts from the commit.
        let left = self.index.await_timeout.saturating_sub(committed.elapsed());
        self.index.await_for(self.request, written, left).await
    }
}

async fn timed<T>(call: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let answer = future.await;
    metrics::histogram!("mantle_gateway_index_seconds", "call" => call).record(started.elapsed());
    answer
}
