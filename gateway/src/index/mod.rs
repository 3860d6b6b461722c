//! The index: paths to directories, rename locks, acknowledgements. Several groups serve the namespaces
//! (`assignment.rs`), each under a lease (P5, `group.rs`), which a background task renews every second. The lease is
//! long, so lookups go on while PostgreSQL fails over.

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
use mantle_tls::Tls;
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

/// How often a lookup is repeated in a new context: for about a second, as the index may have to learn of a promotion.
const CONTEXT_RETRIES_MAX: u32 = 8;
/// Interval of reading the contexts; several times within the shortest lease.
const RENEWAL: Duration = Duration::from_secs(1);

pub struct Index {
    client: IndexClient,
    store: Arc<Store>,
    await_timeout: Duration,
    groups: Mutex<HashMap<GroupId, Arc<Group>>>,
    assignments: AssignmentCache,
}

impl Index {
    /// Connects at the first call. Must be called within a tokio runtime.
    pub fn new(config: &Config, store: Arc<Store>, tls: Option<Tls>) -> Result<Self> {
        // Prometheus sees the series of each call from the start.
        CALLS.iter().for_each(|call| drop(seconds(call)));
        Ok(Self {
            client: IndexClient::connect_lazy(config.index.replicas.clone(), tls)?,
            store,
            await_timeout: Duration::from_millis(config.limits.await_timeout_ms),
            groups: Mutex::default(),
            assignments: AssignmentCache::default(),
        })
    }

    fn group(&self, number: GroupId) -> Arc<Group> {
        let new = || Arc::new(Group::new(number, self.client.of_group(number), self.store.clone()));
        self.groups.lock().entry(number).or_insert_with(new).clone()
    }

    pub async fn keep_lease(&self) {
        let mut ticks = tokio::time::interval(RENEWAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Requests that need a context report the failure.
            let _ = self.refresh_all().await;
        }
    }

    async fn refresh_all(&self) -> Result<()> {
        let (groups, now): (Vec<_>, _) = (self.groups.lock().values().cloned().collect(), Instant::now());
        join_all(groups.iter().map(|group| group.refresh(now))).await.into_iter().try_for_each(|read| read.map(drop))
    }

    pub async fn resolution_start(&self, namespace: &str) -> Result<ResolutionStart> {
        Ok(self.assigned(namespace).await?.resolution_start())
    }

    /// Reads shard map and contexts again, after a refusal in the known context. The shard may have moved.
    pub async fn renew(&self) -> Result<()> {
        self.store.refresh_map().await?;
        self.refresh_all().await
    }

    /// Resolves paths of directories of one namespace with one RPC, on any replica of its group.
    pub async fn resolve(&self, namespace: &str, queries: Vec<Query>) -> Result<(ResolutionStart, Vec<Resolution>)> {
        self.ask(namespace, queries, false).await
    }

    /// The same, once the replica has everything that PostgreSQL shows, if that does not take long (P58).
    pub async fn settle(&self, namespace: &str, queries: Vec<Query>) -> Result<(ResolutionStart, Vec<Resolution>)> {
        self.ask(namespace, queries, true).await
    }

    async fn ask(
        &self,
        namespace: &str,
        queries: Vec<Query>,
        settles: bool,
    ) -> Result<(ResolutionStart, Vec<Resolution>)> {
        for attempt in 0..CONTEXT_RETRIES_MAX {
            let assigned = self.assigned(namespace).await?;
            let start = assigned.resolution_start();
            let (context, queries) = (start.lookup_context().clone(), queries.clone());
            let client = &assigned.group.client;
            let answer = match settles {
                true => timed("settle", client.settle(context, queries)).await,
                false => timed("resolve", client.resolve(context, queries)).await,
            };
            match answer {
                Err(e) if e.code() == ErrorCode::StaleEpoch => {
                    if attempt > 0 {
                        pause(attempt).await;
                    }
                    self.renew().await?;
                }
                Ok(found) if found.iter().any(|r| failed_with(&r.outcome, ErrorCode::NotServed)) => {
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
        if failed_with(&prepared, ErrorCode::NotServed) {
            self.assignments.forget(&namespace);
            self.refresh_all().await?;
        }
        prepared
    }

    /// Releases the lock of a rename that is known not to have committed. If this fails, the leader's timer does it.
    pub async fn release_rename(&self, request: RequestKey, prepared: &PreparedRename) {
        let (attempt, client) = (prepared.attempt, self.group(prepared.group).client.clone());
        if let Err(error) = timed("release_rename", client.release_rename(request, attempt)).await {
            tracing::debug!(%error, attempt, "the lock is left to the leader");
        }
    }

    /// Begins to wait for a change before it commits, so that the index can answer while PostgreSQL still works.
    /// Dropping the result cancels the wait, for a change that was refused.
    pub fn begin_await(self: &Arc<Self>, namespace: &str, request: RequestKey) -> PendingAcknowledgement {
        let (index, namespace) = (self.clone(), namespace.to_owned());
        let (waiting, name) = (index.clone(), namespace.clone());
        let answer = async move { waiting.await_request(&name, request, waiting.await_timeout).await };
        let answer = tokio::spawn(answer.in_current_span());
        PendingAcknowledgement { index, namespace, request, answer: AbortOnDropHandle::new(answer) }
    }

    /// Waits until a committed change is served by every replica.
    pub async fn await_written(&self, namespace: &str, request: RequestKey, written: &Written) -> Result<()> {
        self.await_for(namespace, request, written.replayed, self.await_timeout).await
    }

    /// `by_position`: the message of the change may never come again.
    async fn await_for(&self, namespace: &str, request: RequestKey, by_position: bool, limit: Duration) -> Result<()> {
        let started = Instant::now();
        if !by_position {
            let waited = self.await_request(namespace, request, limit).await;
            if !is_rebuilt(&waited) {
                return as_timeout(waited);
            }
        }
        let left = limit.saturating_sub(started.elapsed());
        as_timeout(timed("await_flushed", self.await_flushed(namespace, left)).await)
    }

    async fn await_request(&self, namespace: &str, request: RequestKey, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        timed("await_request", self.in_all_groups(namespace, AwaitTarget::Request { request, deadline })).await
    }

    /// Waits for everything that is committed by now (P24): the message of an earlier change may never come again.
    async fn await_flushed(&self, namespace: &str, limit: Duration) -> Result<()> {
        let positions = self.store.flushed().await?;
        self.in_all_groups(namespace, AwaitTarget::Positions { positions, limit }).await
    }

    /// Waits until the index has everything that is committed by now, before a change.
    pub async fn catch_up(&self, namespace: &str) -> Result<()> {
        let late = || Error::new(ErrorCode::IndexUnavailable, "the index has not caught up with PostgreSQL in time");
        let waited = timed("catch_up", self.await_flushed(namespace, self.await_timeout)).await;
        waited.map_err(|e| if e.code() == ErrorCode::AwaitTimeout { late() } else { e })
    }

    /// Waits in every group that must have a change. Reads the assignment again at the end: a move may have added a
    /// group, which would answer lookups without the change.
    async fn in_all_groups(&self, namespace: &str, target: AwaitTarget) -> Result<()> {
        let mut waited: Vec<GroupId> = Vec::new();
        loop {
            let assigned = match self.assigned(namespace).await {
                // The namespace was removed meanwhile: nothing is left to show.
                Err(e) if e.code() == ErrorCode::NamespaceNotFound => return Ok(()),
                assigned => assigned?,
            };
            let mut left = assigned.acknowledging;
            left.retain(|group| !waited.contains(&group.number));
            if left.is_empty() {
                return Ok(());
            }
            target.wait(&left).await?;
            waited.extend(left.iter().map(|group| group.number));
        }
    }

    /// Waits for the removal of a namespace, with its assignment from before.
    pub async fn await_removal(&self, assigned: &AssignedGroup, request: RequestKey) -> Result<()> {
        let waits = assigned.acknowledging.iter().map(|group| group.client.await_request(request, self.await_timeout));
        as_timeout(timed("await_request", try_join_all(waits)).await.map(drop))
    }

    /// Waits for a removal that is answered again, in all groups: its assignment is gone.
    pub async fn await_old_removal(&self) -> Result<()> {
        let target = AwaitTarget::Positions { positions: self.store.flushed().await?, limit: self.await_timeout };
        let groups: Vec<_> = self.store.hosted_groups().await?.into_iter().map(|number| self.group(number)).collect();
        as_timeout(timed("await_flushed", target.wait(&groups)).await)
    }

    pub async fn is_ready(&self) -> bool {
        self.client.status().await.iter().any(|(_, status)| status.as_ref().is_ok_and(|s| s.ready))
    }
}

enum AwaitTarget {
    /// The change of a request.
    Request { request: RequestKey, deadline: Instant },
    /// Everything below these positions, by source.
    Positions { positions: Vec<(u32, Lsn)>, limit: Duration },
}

impl AwaitTarget {
    async fn wait(&self, groups: &[Arc<Group>]) -> Result<()> {
        if let [group] = groups {
            return self.wait_for_one(group).await;
        }
        try_join_all(groups.iter().map(|group| self.wait_for_one(group))).await.map(drop)
    }

    async fn wait_for_one(&self, group: &Group) -> Result<()> {
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

fn failed_with<T>(result: &Result<T>, code: ErrorCode) -> bool {
    result.as_ref().is_err_and(|e| e.code() == code)
}

/// The index was rebuilt during a wait. Its copy may have the change, whose message then never comes.
fn is_rebuilt(waited: &Result<()>) -> bool {
    failed_with(waited, ErrorCode::StaleEpoch)
}

/// The change is committed, so every failure of the wait is a timeout.
fn as_timeout(answer: Result<()>) -> Result<()> {
    answer.map_err(|e| match e.code() {
        ErrorCode::AwaitTimeout => e,
        _ => Error::new(ErrorCode::AwaitTimeout, format!("{} ({})", ErrorCode::AwaitTimeout.row().meaning, e.detail())),
    })
}

pub struct PendingAcknowledgement {
    index: Arc<Index>,
    namespace: String,
    request: RequestKey,
    answer: AbortOnDropHandle<Result<()>>,
}

impl PendingAcknowledgement {
    /// Waits until every replica serves the change, which is committed now.
    pub async fn acknowledge(self, written: &Written) -> Result<()> {
        let committed = Instant::now();
        let mut by_position = written.replayed;
        if !by_position {
            match self.answer.await {
                Ok(Ok(())) => return Ok(()),
                answered => by_position = answered.is_ok_and(|waited| is_rebuilt(&waited)),
            }
        }
        // The wait may have timed out while PostgreSQL still worked. The timeout counts from the commit.
        let left = self.index.await_timeout.saturating_sub(committed.elapsed());
        self.index.await_for(&self.namespace, self.request, by_position, left).await
    }
}

/// The calls that are timed.
const CALLS: [&str; 6] = ["resolve", "settle", "prepare_rename", "release_rename", "await_flushed", "await_request"];

async fn timed<T>(call: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    debug_assert!(CALLS.contains(&call), "{call}");
    let answer = future.instrument(step!("index", otel.name = call, otel.kind = "client")).await;
    seconds(call).record(started.elapsed());
    answer
}

fn seconds(call: &'static str) -> metrics::Histogram {
    metrics::histogram!("mantle_gateway_index_seconds", "call" => call)
}
