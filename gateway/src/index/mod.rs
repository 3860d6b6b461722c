//! The index, as the use cases see it: paths to directories, rename locks, acknowledgements. Several groups serve the
//! namespaces; each namespace's is looked up in PostgreSQL and remembered (`assigned.rs`). Invariant (P5):
//! a lookup carries the group's epoch, one of the terms read from PostgreSQL at most one lease ago (`group.rs`), so that an
//! abandoned group cannot answer. The lease is renewed in the background every second, off the path of requests, and is long:
//! lookups go on while PostgreSQL fails over.

mod assignment;
mod group;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{join_all, try_join_all};
use mantle_index_client::{IndexClient, Query};
pub use mantle_index_client::{PreparedRename, RenameRequest, Resolution};
use mantle_telemetry::step;
use mantle_types::{Error, ErrorCode, GroupId, Lsn, RequestKey, Result};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

pub use self::assignment::AssignedGroup;
use self::{assignment::AssignmentCache, group::Group};
use crate::{
    config::Config,
    store::{ResolutionStart, Store, Written, pause},
};

/// How often a lookup is asked again after the terms were read anew. A second or so in all: the index may have to hear of a
/// promotion first.
const CONTEXT_RETRIES_MAX: u32 = 8;

/// How often terms are read anew; several times within the shortest lease.
const RENEWAL: Duration = Duration::from_secs(1);

/// Handle on the index groups.
pub struct Index {
    client: IndexClient,
    store: Arc<Store>,
    await_timeout: Duration,
    groups: Mutex<HashMap<GroupId, Arc<Group>>>,
    assignments: AssignmentCache,
}

impl Index {
    /// Connects when first used. Must be called within a tokio runtime.
    pub fn new(config: &Config, store: Arc<Store>) -> Result<Self> {
        Ok(Self {
            client: IndexClient::connect_lazy(config.index.replicas.clone())?,
            store,
            await_timeout: Duration::from_millis(config.limits.await_timeout_ms),
            groups: Mutex::default(),
            assignments: AssignmentCache::default(),
        })
    }

    fn group(&self, number: GroupId) -> Arc<Group> {
        let new = || Arc::new(Group::new(number, self.client.of_group(number.as_i64() as u32), self.store.clone()));
        self.groups.lock().entry(number).or_insert_with(new).clone()
    }

    /// Renews the lease of the terms of every group in use, for ever.
    pub async fn keep_lease(&self) {
        let mut ticks = tokio::time::interval(RENEWAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A failure is reported by the requests that need the terms.
            let _ = self.refresh_all().await;
        }
    }

    async fn refresh_all(&self) -> Result<()> {
        let (groups, now): (Vec<_>, _) = (self.groups.lock().values().cloned().collect(), Instant::now());
        join_all(groups.iter().map(|group| group.refresh(now))).await.into_iter().try_for_each(|read| read.map(drop))
    }

    /// Now, for what is about to be resolved in a namespace.
    pub async fn resolution_start(&self, namespace: &str) -> Result<ResolutionStart> {
        Ok(self.assigned(namespace).await?.resolution_start())
    }

    /// Reads the terms anew: something was refused under those that are known. Perhaps because its shard has moved.
    pub async fn renew(&self) -> Result<()> {
        self.store.refresh_map().await?;
        self.refresh_all().await
    }

    /// Resolves paths of directories of one namespace, one RPC for all, on any replica of its group.
    pub async fn resolve(&self, namespace: &str, queries: Vec<Query>) -> Result<(ResolutionStart, Vec<Resolution>)> {
        for attempt in 0..CONTEXT_RETRIES_MAX {
            let assigned = self.assigned(namespace).await?;
            let start = assigned.resolution_start();
            let answer = timed("resolve", assigned.group.client.resolve(start.basis().clone(), queries.clone())).await;
            match answer {
                Err(e) if e.code() == ErrorCode::StaleEpoch => {
                    if attempt > 0 {
                        pause(attempt).await;
                    }
                    self.renew().await?;
                }
                Ok(found) if found.iter().any(|r| is(&r.outcome, ErrorCode::NotServed)) => {
                    self.assignments.forget(namespace);
                    pause(attempt).await;
                    self.refresh_all().await?;
                }
                answer => return answer.map(|found| (start, found)),
            }
        }
        Err(Error::new(ErrorCode::IndexUnavailable, "the namespace's index group is being rebuilt"))
    }

    /// Resolves and locks the source of a directory rename, on the leader of its namespace's group.
    pub async fn prepare_rename(&self, request: RenameRequest) -> Result<PreparedRename> {
        let assigned = self.assigned(&request.namespace).await?;
        let namespace = request.namespace.clone();
        let prepared = timed("prepare_rename", assigned.group.client.prepare_rename(request)).await;
        if is(&prepared, ErrorCode::NotServed) {
            self.assignments.forget(&namespace);
            self.refresh_all().await?;
        }
        prepared
    }

    /// Gives a lock back whose rename is known not to have committed. If that fails, the leader's timer does it.
    pub async fn release_rename(&self, request: RequestKey, prepared: &PreparedRename) {
        let (attempt, client) = (prepared.attempt, self.group(group_of(prepared)).client.clone());
        if let Err(error) = timed("release_rename", client.release_rename(request, attempt)).await {
            tracing::debug!(%error, attempt, "the lock is left to the leader");
        }
    }

    /// Begins to wait for a change before it is committed, so that the index's answer is on its way while PostgreSQL
    /// still works. Dropped unfinished (the change was refused), it is taken back.
    pub fn begin_await(self: &Arc<Self>, namespace: &str, request: RequestKey) -> PendingAcknowledgement {
        let (index, namespace) = (self.clone(), namespace.to_owned());
        let (waiting, of) = (index.clone(), namespace.clone());
        let answer = async move { waiting.await_request(&of, request, waiting.await_timeout).await };
        let answer = tokio::spawn(answer.in_current_span());
        PendingAcknowledgement { index, namespace, request, answer: AbortOnDropHandle::new(answer) }
    }

    /// Waits until a committed change is served by every replica.
    pub async fn await_written(&self, namespace: &str, request: RequestKey, written: &Written) -> Result<()> {
        self.await_for(namespace, request, written, self.await_timeout).await
    }

    async fn await_for(&self, namespace: &str, request: RequestKey, written: &Written, limit: Duration) -> Result<()> {
        match written.replayed {
            true => late(timed("await_flushed", self.await_flushed(namespace, limit)).await),
            false => late(self.await_request(namespace, request, limit).await),
        }
    }

    async fn await_request(&self, namespace: &str, request: RequestKey, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        timed("await_request", self.in_all_groups(namespace, AwaitTarget::Request { request, deadline })).await
    }

    /// Waits for all that is committed by now: the message of a change that was made earlier may never come again.
    async fn await_flushed(&self, namespace: &str, limit: Duration) -> Result<()> {
        let positions = self.store.flushed().await?;
        self.in_all_groups(namespace, AwaitTarget::Positions { positions, limit }).await
    }

    /// Waits until the index has all that is committed by now, for a change that has not been made yet.
    pub async fn catch_up(&self, namespace: &str) -> Result<()> {
        let waited = timed("catch_up", self.await_flushed(namespace, self.await_timeout)).await;
        waited.map_err(|e| match e.code() {
            ErrorCode::AwaitTimeout => {
                Error::new(ErrorCode::IndexUnavailable, "the index has not caught up with PostgreSQL in time")
            }
            _ => e,
        })
    }

    /// Waits in every group that has to have a change. Which those are is asked again at the end: they may have become more
    /// meanwhile, and then lookups may go to one that does not have it yet.
    async fn in_all_groups(&self, namespace: &str, what: AwaitTarget) -> Result<()> {
        let mut waited: Vec<GroupId> = Vec::new();
        loop {
            let assigned = match self.assigned(namespace).await {
                // It has been removed since: there is nothing to be seen.
                Err(e) if e.code() == ErrorCode::NamespaceNotFound => return Ok(()),
                assigned => assigned?,
            };
            let mut left = assigned.acknowledging;
            left.retain(|group| !waited.contains(&group.number));
            match &left[..] {
                [] => return Ok(()),
                [group] => what.wait(group).await?,
                several => try_join_all(several.iter().map(|group| what.wait(group))).await.map(drop)?,
            }
            waited.extend(left.iter().map(|group| group.number));
        }
    }

    /// Waits for the removal of a namespace, whose assignment is that of before.
    pub async fn await_removal(&self, assigned: &AssignedGroup, request: RequestKey) -> Result<()> {
        let waits = assigned.acknowledging.iter().map(|group| group.client.await_request(request, self.await_timeout));
        late(timed("await_request", try_join_all(waits)).await.map(drop))
    }

    /// The same, of one that was answered before: nobody knows the assignment any more.
    pub async fn await_old_removal(&self) -> Result<()> {
        let what = AwaitTarget::Positions { positions: self.store.flushed().await?, limit: self.await_timeout };
        let groups: Vec<_> = self.store.hosted_groups().await?.into_iter().map(|number| self.group(number)).collect();
        late(timed("await_flushed", try_join_all(groups.iter().map(|group| what.wait(group)))).await.map(drop))
    }

    /// Does a replica answer lookups?
    pub async fn is_ready(&self) -> bool {
        self.client.status().await.iter().any(|(_, status)| status.as_ref().is_ok_and(|s| s.ready))
    }
}

/// AwaitTarget is waited for.
enum AwaitTarget {
    /// A request's change.
    Request { request: RequestKey, deadline: Instant },
    /// Everything below these positions.
    Positions { positions: Vec<(u32, Lsn)>, limit: Duration },
}

impl AwaitTarget {
    async fn wait(&self, group: &Group) -> Result<()> {
        match self {
            Self::Request { request, deadline } => {
                let left = deadline.saturating_duration_since(Instant::now());
                group.client.await_request(*request, left).await
            }
            Self::Positions { positions, limit } => {
                let waits = positions.iter().map(|(source, lsn)| group.client.await_lsn(*source, *lsn, *limit));
                try_join_all(waits).await.map(drop)
            }
        }
    }
}

/// The group that prepared a rename.
pub fn group_of(prepared: &PreparedRename) -> GroupId {
    i64::from(prepared.group).into()
}

fn is<T>(result: &Result<T>, code: ErrorCode) -> bool {
    result.as_ref().is_err_and(|e| e.code() == code)
}

/// The change is committed: whatever kept the index from saying so is a matter of time.
fn late(answer: Result<()>) -> Result<()> {
    answer.map_err(|e| match e.code() {
        ErrorCode::AwaitTimeout => e,
        _ => Error::new(ErrorCode::AwaitTimeout, format!("{} ({})", ErrorCode::AwaitTimeout.row().meaning, e.detail())),
    })
}

/// A wait that has begun.
pub struct PendingAcknowledgement {
    index: Arc<Index>,
    namespace: String,
    request: RequestKey,
    answer: AbortOnDropHandle<Result<()>>,
}

impl PendingAcknowledgement {
    /// Waits until the change, which is committed now, is served by every replica.
    pub async fn acknowledge(self, written: &Written) -> Result<()> {
        let committed = Instant::now();
        if !written.replayed && matches!(self.answer.await, Ok(Ok(()))) {
            return Ok(());
        }
        // Its time may have run out while PostgreSQL was still working: that counts from the commit.
        let left = self.index.await_timeout.saturating_sub(committed.elapsed());
        self.index.await_for(&self.namespace, self.request, written, left).await
    }
}

async fn timed<T>(call: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let answer = future.instrument(step!("index", otel.name = call, otel.kind = "client")).await;
    metrics::histogram!("mantle_gateway_index_seconds", "call" => call).record(started.elapsed());
    answer
}
