//! Client of an IndexNode group, for gateways and tools.
//!
//! Invariant: a call never outlives its time limit, whatever the replicas do; each failure names one row of the error
//! table. Lookups go to any replica (all are linearizable): to the one with the fewest waiting, so to the leader, which
//! answers without asking another one, while there is little to do, and to all under load. Lookups that arrive while an
//! RPC to the chosen replica is under way travel together in the next one: an idle client adds no delay, a loaded one
//! amortises the RPC. Calls for the leader follow it. Times are [`Duration`]s.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use mantle_types::{Caller, Epoch, RequestKey};
//! # use mantle_index_client::{IndexClient, Query};
//! # async fn example(key: RequestKey) -> mantle_types::Result<()> {
//! let index = IndexClient::connect_lazy(vec!["127.0.0.1:7411".into(), "127.0.0.1:7412".into()])?;
//! let query = Query::new("debian", ["usr", "share"], Caller { uid: 0, gids: vec![] });
//! let resolution = index.resolve_one(Epoch(0), query).await?;
//! if resolution.outcome.is_ok() {
//!     // … one SQL call below `resolution.id`, then:
//!     index.await_request(key, Duration::from_secs(2)).await?;
//! }
//! # Ok(()) }
//! ```

mod answer;
mod batch;
mod convert;
mod leader;
mod lookup_stream;
mod model;
/// The generated gRPC types of `indexnode/proto/index.proto`.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    tonic::include_proto!("mantle.index.v1");
}
mod replica;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub use answer::{Row, push as push_answer, reserve as reserve_answers};
pub use batch::{QueryRef, queries};
pub use convert::{check_outcome, outcome_of, outcome_of_result, wire_code};
use mantle_telemetry::Propagate;
use mantle_types::{DirectoryId, Epoch, Error, ErrorCode, Lsn, RequestKey, Result, message::DirectoryRecord};
use model::{Ask, Resolutions};
pub use model::{Basis, PreparedRename, Query, RenameRequest, Resolution, Status};

use smallvec::smallvec;
use tonic::{service::interceptor::InterceptedService, transport::Channel};

use crate::{leader::LeaderTracker, proto::directories_request::What, replica::Replica};

/// Most queries in one RPC; larger batches are cut.
pub const RESOLVE_QUERIES_MAX: usize = 1024;
/// How long a lookup may take over all replicas, unless [`IndexClient::with_resolve_timeout`] says otherwise.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A replica that is tried gets at least this long.
const ATTEMPT_TIMEOUT_MIN: Duration = Duration::from_millis(250);
/// How long a call to the leader may take when it has no time limit of its own.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a replica may take to tell directories.
const DIRECTORIES_TIMEOUT: Duration = Duration::from_secs(10);

/// What calls a replica; a call goes on with the trace that its caller is in.
type Stub = proto::index_client::IndexClient<InterceptedService<Channel, Propagate>>;

/// A handle on one group; clones share connections.
#[derive(Clone)]
pub struct IndexClient {
    shared: Arc<Shared>,
    resolve_timeout: Duration,
}

struct Shared {
    replicas: Vec<Arc<Replica>>,
    next: AtomicUsize,
    leader: LeaderTracker,
    epoch: AtomicU64,
}

impl Shared {
    fn new(replicas: Vec<Arc<Replica>>) -> Self {
        let next = AtomicUsize::new(rand::random_range(0..replicas.len()));
        let leader = LeaderTracker::new(replicas.clone());
        Self { replicas, next, leader, epoch: AtomicU64::new(0) }
    }
}

impl IndexClient {
    /// A client of the replicas at `host:port`, of the only group that they are of; see [`of_group`](Self::of_group). Connects when first used, and again after every loss. Must be called
    /// within a tokio runtime. Fails only when the list is empty or an address is not one.
    pub fn connect_lazy(replicas: Vec<String>) -> Result<Self> {
        if replicas.is_empty() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the list of index replicas is empty"));
        }
        let replicas =
            replicas.iter().map(|a| Replica::connect_lazy(a, 0).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        Ok(Self { shared: Arc::new(Shared::new(replicas)), resolve_timeout: RESOLVE_TIMEOUT })
    }

    /// A client of another group of the same processes, over the same connections. Must be called within a tokio runtime.
    pub fn of_group(&self, group: u32) -> Self {
        let replicas = self.shared.replicas.iter().map(|replica| Arc::new(replica.of_group(group))).collect();
        Self { shared: Arc::new(Shared::new(replicas)), resolve_timeout: self.resolve_timeout }
    }

    fn group(&self) -> u32 {
        self.shared.replicas[0].group()
    }

    /// The same connections with another time limit for lookups.
    pub fn with_resolve_timeout(mut self, timeout: Duration) -> Self {
        self.resolve_timeout = timeout;
        self
    }

    /// The highest epoch that any answer has carried; 0 before the first.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.shared.epoch.load(Ordering::Acquire))
    }

    /// Most have seen it before, and write nothing that others read.
    fn see_epoch(&self, epoch: Epoch) {
        if epoch > self.epoch() {
            self.shared.epoch.fetch_max(epoch.0, Ordering::AcqRel);
        }
    }

    /// Resolves one path; see [`resolve`](Self::resolve).
    pub async fn resolve_one(&self, basis: impl Into<Basis>, query: Query) -> Result<Resolution> {
        let mut answers = self.resolve_part(Ask { basis: basis.into(), queries: smallvec![query] }).await?;
        answers.pop().ok_or_else(|| Error::new(ErrorCode::Internal, "an index replica answered too few results"))
    }

    /// Resolves paths of directories; the answers are in the order of the queries. A replica with a lower epoch than the
    /// caller's is passed over. `stale_epoch`: the index has a higher one (then [`epoch`](Self::epoch) has it), or is fed by
    /// other nodes than the caller knows. `index_unavailable` when no replica answers in time; per-path outcomes are in
    /// [`Resolution::outcome`].
    pub async fn resolve(&self, basis: impl Into<Basis>, queries: Vec<Query>) -> Result<Vec<Resolution>> {
        let basis = basis.into();
        if queries.len() <= RESOLVE_QUERIES_MAX {
            return Ok(self.resolve_part(Ask { basis, queries: queries.into() }).await?.into_vec());
        }
        let mut answers = Vec::with_capacity(queries.len());
        for part in queries.chunks(RESOLVE_QUERIES_MAX) {
            answers.extend(self.resolve_part(Ask { basis: basis.clone(), queries: part.into() }).await?);
        }
        Ok(answers)
    }

    async fn resolve_part(&self, ask: Ask) -> Result<Resolutions> {
        let (ask, begun) = (Arc::new(ask), Instant::now());
        let mut last = Error::from(ErrorCode::IndexUnavailable);
        let (start, mut asked) = (self.shared.next.fetch_add(1, Ordering::Relaxed), Vec::new());
        while let Some((at, replica)) = self.preferred(start, &asked) {
            // The clock is read once in a lookup that meets no failure.
            let elapsed = if asked.is_empty() { Duration::ZERO } else { begun.elapsed() };
            let remaining = self.resolve_timeout.saturating_sub(elapsed);
            if remaining.is_zero() {
                break;
            }
            let left = self.shared.replicas.len() - asked.len();
            let limit = (remaining / left as u32).max(ATTEMPT_TIMEOUT_MIN).min(remaining);
            let answer = replica.resolve(ask.clone(), limit).await;
            if let Some(seen) = answer.epoch {
                self.see_epoch(seen);
            }
            match answer.result {
                Ok(resolutions) => return Ok(resolutions),
                // With the same epoch: fed by other nodes, as all replicas are.
                Err(e) if e.code() == ErrorCode::StaleEpoch && answer.epoch >= Some(ask.basis.epoch) => return Err(e),
                Err(e) => last = e,
            }
            asked.push(at);
        }
        if last.code() == ErrorCode::UnknownGroup {
            return Err(last);
        }
        Err(Error::new(ErrorCode::IndexUnavailable, format!("no index replica answers ({})", last.detail())))
    }

    /// Of those not asked yet the one with the fewest lookups waiting; of equals the leader, then in turn. Those that failed
    /// lately come last.
    fn preferred(&self, start: usize, asked: &[usize]) -> Option<(usize, &Replica)> {
        let replicas = &self.shared.replicas;
        let in_turn = (0..replicas.len()).map(|i| (start.wrapping_add(i)) % replicas.len());
        let others = in_turn.filter(|at| !asked.contains(at)).map(|at| (at, &replicas[at]));
        let best = others.min_by_key(|(_, r)| (r.is_avoided(), r.pending(), !self.shared.leader.is_current(r)));
        best.map(|(at, replica)| (at, replica.as_ref()))
    }

    /// Resolves and locks the source of a directory rename, on the leader. Repeatable under the same key: a newer
    /// prepare supersedes the older attempt. `attempt_superseded` means that an earlier attempt of this key is
    /// committed: ask PostgreSQL for the recorded answer (`mantle.replay`).
    pub async fn prepare_rename(&self, request: RenameRequest) -> Result<PreparedRename> {
        let message = proto::PrepareRenameRequest { group: self.group(), ..request.into() };
        let deadline = Instant::now() + LEADER_TIMEOUT;
        let answer = self
            .shared
            .leader
            .call(deadline, |mut client, limit| {
                let mut request = tonic::Request::new(message.clone());
                request.set_timeout(limit);
                async move { client.prepare_rename(request).await.map(|r| r.into_inner()) }
            })
            .await?;
        self.shared.epoch.fetch_max(answer.epoch, Ordering::AcqRel);
        Ok(PreparedRename { group: self.group(), ..answer.into() })
    }

    /// Gives the lock of a rename back that will not be committed. The leader writes the abort record first, so a commit
    /// under this attempt can no longer happen. `attempt_superseded` means that it is committed already.
    pub async fn release_rename(&self, request: RequestKey, attempt: u64) -> Result<()> {
        let message = proto::ReleaseRenameRequest { request: Some(request.into()), attempt, group: self.group() };
        let deadline = Instant::now() + LEADER_TIMEOUT;
        self.shared
            .leader
            .call(deadline, |mut client, limit| {
                let mut request = tonic::Request::new(message.clone());
                request.set_timeout(limit);
                async move { client.release_rename(request).await.map(|r| r.into_inner()) }
            })
            .await
            .map(|_| ())
    }

    /// Answers once the change made by `request` is applied: every later lookup, on any replica, sees it. May be called
    /// before the change is committed. `await_timeout` after `timeout`.
    pub async fn await_request(&self, request: RequestKey, timeout: Duration) -> Result<()> {
        self.await_what(proto::await_request::What::Request(request.into()), 0, timeout).await
    }

    /// Answers once everything is applied that committed below `lsn` on a PostgreSQL node (`source` as in
    /// `mantle.index_sources`, 0 without Citus): what a request needs that was answered from its record (`replayed`, with
    /// `flush_lsn`).
    pub async fn await_lsn(&self, source: u32, lsn: Lsn, timeout: Duration) -> Result<()> {
        self.await_what(proto::await_request::What::Lsn(lsn.0), source, timeout).await
    }

    async fn await_what(&self, what: proto::await_request::What, source: u32, timeout: Duration) -> Result<()> {
        let (deadline, group) = (Instant::now() + timeout, self.group());
        let answer = self
            .shared
            .leader
            .call(deadline, |mut client, limit| {
                let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
                let mut request =
                    tonic::Request::new(proto::AwaitRequest { what: Some(what.clone()), timeout_ms, source, group });
                request.set_timeout(limit);
                // The method's name is a keyword, so the generator renamed it.
                async move { client.r#await(request).await.map(|r| r.into_inner()) }
            })
            .await;
        match answer {
            Err(e) if e.code() == ErrorCode::IndexUnavailable => Err(Error::new(
                ErrorCode::AwaitTimeout,
                format!("the change is committed, but no index leader confirmed it in time ({})", e.detail()),
            )),
            other => other.map(|_| ()),
        }
    }

    /// The replicas of the group as its leader knows them, voters first.
    pub async fn members(&self) -> Result<Vec<proto::Member>> {
        let (deadline, group) = (Instant::now() + LEADER_TIMEOUT, self.group());
        let answer = self.shared.leader.call(deadline, |mut client, limit| {
            let mut request = tonic::Request::new(proto::MembersRequest { group });
            request.set_timeout(limit);
            async move { client.members(request).await.map(|r| r.into_inner()) }
        });
        answer.await.map(|answer| answer.members)
    }

    /// Changes what a replica (its address, or its id) is in the group; done already is done. `invalid_argument` when it must
    /// not be; `await_timeout` when it may still come about.
    pub async fn change_member(&self, member: &str, change: proto::MemberChange, timeout: Duration) -> Result<()> {
        let (deadline, group) = (Instant::now() + timeout, self.group());
        let answer = self.shared.leader.call(deadline, |mut client, limit| {
            let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            let (member, change) = (member.to_owned(), change.into());
            let mut request = tonic::Request::new(proto::ChangeMemberRequest { member, change, timeout_ms, group });
            request.set_timeout(limit);
            async move { client.change_member(request).await.map(|r| r.into_inner()) }
        });
        answer.await.map(drop)
    }

    /// The addresses of the configured replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &str> {
        self.shared.replicas.iter().map(|replica| replica.address())
    }

    /// Directories as the replica at an address knows them, as of all that was committed before: those of some ids. Their
    /// namespace is not told.
    pub async fn directories(&self, replica: &str, ids: &[DirectoryId]) -> Result<Vec<DirectoryRecord>> {
        let ids = proto::DirectoryIds { ids: ids.iter().map(|id| id.0).collect() };
        Ok(self.replica(replica)?.directories(What::Ids(ids), DIRECTORIES_TIMEOUT).await?.0)
    }

    /// All directories in one part of a replica's index, from 0, and how many parts there are.
    pub async fn directories_in_part(&self, replica: &str, part: u32) -> Result<(Vec<DirectoryRecord>, u32)> {
        self.replica(replica)?.directories(What::Part(part), DIRECTORIES_TIMEOUT).await
    }

    fn replica(&self, address: &str) -> Result<&Replica> {
        let found = self.shared.replicas.iter().find(|replica| replica.address() == address);
        let unknown = || Error::new(ErrorCode::InvalidArgument, format!("`{address}` is no replica of this client"));
        found.map(Arc::as_ref).ok_or_else(unknown)
    }

    /// Role and positions of every configured replica, by address.
    pub async fn status(&self) -> Vec<(String, Result<Status>)> {
        let mut tasks = Vec::new();
        for replica in &self.shared.replicas {
            let replica = replica.clone();
            tasks.push((replica.address().to_owned(), tokio::spawn(async move { replica.status().await })));
        }
        let mut answers = Vec::with_capacity(tasks.len());
        for (address, task) in tasks {
            let status = task.await.unwrap_or_else(|e| Err(Error::new(ErrorCode::Internal, e.to_string())));
            answers.push((address, status));
        }
        answers
    }
}
