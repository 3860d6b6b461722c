//! Client of an index group, for gateways and tools.
//!
//! Invariant: a call ends within its time limit, whatever the replicas do; each failure is one row of the error table.
//!
//! All replicas are linearizable. Lookups go to the leader, which answers without asking another replica, until some wait
//! there; then to the replica with the fewest, so under load they go to all. Lookups that arrive while RPCs to the chosen
//! replica are in flight share the next one, without a timer. Other calls follow the leader.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use mantle_types::{Caller, Epoch, RequestKey};
//! # use mantle_index_client::{IndexClient, Query};
//! # async fn example(key: RequestKey) -> mantle_types::Result<()> {
//! let index = IndexClient::connect_lazy(vec!["127.0.0.1:7411".into(), "127.0.0.1:7412".into()], None)?;
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
mod call_stream;
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
mod streamed;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub use answer::{Row, push as push_answer};
pub use batch::{QueryRef, queries};
use convert::milliseconds;
pub use convert::{check_outcome, outcome_of, outcome_of_result, wire_code};
use mantle_telemetry::Propagate;
use mantle_tls::Tls;
use mantle_types::{DirectoryId, Epoch, Error, ErrorCode, GroupId, Lsn, RequestKey, Result, message::DirectoryRecord};
use model::{Lookup, Resolutions};
pub use model::{LookupContext, PreparedRename, Query, RenameRequest, Resolution, Status};
pub use replica::connect_lazy;
use smallvec::smallvec;
use tonic::{service::interceptor::InterceptedService, transport::Channel};

use crate::{leader::LeaderTracker, proto::directories_request::What, replica::Replica};

/// Highest number of queries in one RPC; larger batches are split.
pub const RESOLVE_QUERIES_MAX: usize = 1024;
/// Default time limit of a lookup over all replicas; see [`IndexClient::with_resolve_timeout`].
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// So many paths that wait at a replica count as none. They are a batch, or two, that the leader answers in less time than
/// another replica takes to ask it: a path takes it about a microsecond, and the question 40.
const WAITING_FEW: usize = 64;
/// Shortest time limit of an attempt at one replica.
const ATTEMPT_TIMEOUT_MIN: Duration = Duration::from_millis(250);
/// Time limit of a call to the leader that has none of its own.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The gRPC stub of a replica; it passes on the caller's trace context.
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

/// Calls a method of the leader. `$message` makes the request of each attempt from the attempt's time limit.
macro_rules! call_leader {
    ($client:expr, $deadline:expr, $method:ident, $message:expr) => {
        $client.shared.leader.call($deadline, |replica, limit| {
            let mut stub = replica.stub();
            let mut request = tonic::Request::new($message(limit));
            request.set_timeout(limit);
            async move { stub.$method(request).await.map(tonic::Response::into_inner) }
        })
    };
}

impl IndexClient {
    /// A client of the replicas at these addresses (`host:port`), for their only group; see [`of_group`](Self::of_group). It
    /// connects when first used, and again after every loss; with TLS, if there are certificates. Fails only if the list is empty
    /// or an address is malformed. Must be called within a tokio runtime.
    pub fn connect_lazy(replicas: Vec<String>, tls: Option<Tls>) -> Result<Self> {
        if replicas.is_empty() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the list of index replicas is empty"));
        }
        let replicas = replicas
            .iter()
            .map(|a| Replica::connect_lazy(a, GroupId::ONLY, tls.clone()).map(Arc::new))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { shared: Arc::new(Shared::new(replicas)), resolve_timeout: RESOLVE_TIMEOUT })
    }

    /// A client of another group of the same processes, over the same connections. Must be called within a tokio runtime.
    pub fn of_group(&self, group: GroupId) -> Self {
        let replicas = self.shared.replicas.iter().map(|replica| Arc::new(replica.of_group(group))).collect();
        Self { shared: Arc::new(Shared::new(replicas)), resolve_timeout: self.resolve_timeout }
    }

    fn group(&self) -> GroupId {
        self.shared.replicas[0].group
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

    /// Records an epoch. Writes only if it is new, so that concurrent lookups do not share a modified cache line.
    fn see_epoch(&self, epoch: Epoch) {
        if epoch > self.epoch() {
            self.shared.epoch.fetch_max(epoch.0, Ordering::AcqRel);
        }
    }

    /// Resolves one path; see [`resolve`](Self::resolve).
    pub async fn resolve_one(&self, context: impl Into<LookupContext>, query: Query) -> Result<Resolution> {
        let lookup = Lookup { context: context.into(), queries: smallvec![query], settles: false };
        let mut answers = self.resolve_part(lookup).await?;
        answers.pop().ok_or_else(|| Error::new(ErrorCode::Internal, "an index replica answered too few results"))
    }

    /// Resolves paths of directories; the answers are in the order of the queries, each with its own [`Resolution::outcome`]. A
    /// replica with a lower epoch than the caller's is skipped. `stale_epoch`: the index has a higher epoch (then
    /// [`epoch`](Self::epoch) has it), or reads from other PostgreSQL nodes than the caller knows. `index_unavailable`: no replica
    /// answers in time.
    pub async fn resolve(&self, context: impl Into<LookupContext>, queries: Vec<Query>) -> Result<Vec<Resolution>> {
        self.resolve_all(context.into(), queries, false).await
    }

    /// The same, and what is not found is not there if [`Resolution::is_settled`] (P58). That takes a sample of PostgreSQL's
    /// position more, so it is for paths that [`resolve`](Self::resolve) did not find.
    pub async fn settle(&self, context: impl Into<LookupContext>, queries: Vec<Query>) -> Result<Vec<Resolution>> {
        self.resolve_all(context.into(), queries, true).await
    }

    async fn resolve_all(&self, context: LookupContext, queries: Vec<Query>, settles: bool) -> Result<Vec<Resolution>> {
        if queries.len() <= RESOLVE_QUERIES_MAX {
            return Ok(self.resolve_part(Lookup { context, queries: queries.into(), settles }).await?.into_vec());
        }
        let mut answers = Vec::with_capacity(queries.len());
        for part in queries.chunks(RESOLVE_QUERIES_MAX) {
            let lookup = Lookup { context: context.clone(), queries: part.into(), settles };
            answers.extend(self.resolve_part(lookup).await?);
        }
        Ok(answers)
    }

    async fn resolve_part(&self, lookup: Lookup) -> Result<Resolutions> {
        let (lookup, begun) = (Arc::new(lookup), Instant::now());
        let mut last = None;
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
            let answer = replica.resolve(lookup.clone(), limit).await;
            if let Some(seen) = answer.epoch {
                self.see_epoch(seen);
            }
            match answer.result {
                Ok(resolutions) => return Ok(resolutions),
                // With the same epoch, other PostgreSQL nodes are the reason, which holds for all replicas.
                Err(e) if e.code() == ErrorCode::StaleEpoch && answer.epoch >= Some(lookup.context.epoch) => {
                    return Err(e);
                }
                Err(e) => last = Some(e),
            }
            asked.push(at);
        }
        let last = last.unwrap_or_else(|| ErrorCode::IndexUnavailable.into());
        if last.code() == ErrorCode::UnknownGroup {
            return Err(last);
        }
        Err(Error::new(ErrorCode::IndexUnavailable, format!("no index replica answers ({})", last.detail())))
    }

    /// The replica to try next, of those not asked yet: the one with the fewest waiting paths, by steps of [`WAITING_FEW`]; of
    /// equals the leader, then in turn. Replicas that failed recently come last.
    fn preferred(&self, start: usize, asked: &[usize]) -> Option<(usize, &Replica)> {
        let replicas = &self.shared.replicas;
        let in_turn = (0..replicas.len()).map(|i| (start.wrapping_add(i)) % replicas.len());
        let others = in_turn.filter(|at| !asked.contains(at)).map(|at| (at, &replicas[at]));
        let best =
            others.min_by_key(|(_, r)| (r.is_avoided(), r.pending() / WAITING_FEW, !self.shared.leader.is_current(r)));
        best.map(|(at, replica)| (at, replica.as_ref()))
    }

    /// Resolves and locks the source of a directory rename, on the leader. May be repeated with the same key: a new prepare
    /// supersedes the older attempt. `attempt_superseded`: an earlier attempt of this key is committed, and PostgreSQL has its
    /// recorded answer (`mantle.replay`).
    pub async fn prepare_rename(&self, request: RenameRequest) -> Result<PreparedRename> {
        let message = proto::PrepareRenameRequest { group: self.group().0, ..request.into() };
        let deadline = Instant::now() + LEADER_TIMEOUT;
        let send = |replica: Arc<Replica>, limit| {
            let message = message.clone();
            async move { replica.prepares.send(replica.stub(), message, limit).await }
        };
        let answer = self.shared.leader.call(deadline, send).await?;
        self.see_epoch(Epoch(answer.epoch));
        Ok(PreparedRename { group: self.group(), ..answer.into() })
    }

    /// Releases the lock of a rename that will not be committed. The leader writes the abort record first, so that this attempt
    /// can no longer commit. `attempt_superseded`: it is already committed.
    pub async fn release_rename(&self, request: RequestKey, attempt: u64) -> Result<()> {
        let message = proto::ReleaseRenameRequest { request: Some(request.into()), attempt, group: self.group().0 };
        let deadline = Instant::now() + LEADER_TIMEOUT;
        call_leader!(self, deadline, release_rename, |_| message.clone()).await.map(drop)
    }

    /// Returns once the change of `request` is applied: every later lookup, on any replica, sees it. May be called before the
    /// change is committed. `await_timeout` after `timeout`.
    pub async fn await_request(&self, request: RequestKey, timeout: Duration) -> Result<()> {
        self.await_what(proto::await_request::What::Request(request.into()), 0, timeout).await
    }

    /// Returns once everything is applied that committed below `lsn` on a PostgreSQL node (`source` as in
    /// `mantle.index_sources`, 0 without Citus). A request whose recorded answer was replayed waits for its `flush_lsn`.
    pub async fn await_lsn(&self, source: u32, lsn: Lsn, timeout: Duration) -> Result<()> {
        self.await_what(proto::await_request::What::Lsn(lsn.0), source, timeout).await
    }

    async fn await_what(&self, what: proto::await_request::What, source: u32, timeout: Duration) -> Result<()> {
        let (deadline, group) = (Instant::now() + timeout, self.group().0);
        let message =
            |limit| proto::AwaitRequest { what: Some(what.clone()), timeout_ms: milliseconds(limit), source, group };
        let send = |replica: Arc<Replica>, limit| {
            let message = message(limit);
            async move { replica.awaits.send(replica.stub(), message, limit).await }
        };
        match self.shared.leader.call(deadline, send).await {
            Err(e) if e.code() == ErrorCode::IndexUnavailable => Err(Error::new(
                ErrorCode::AwaitTimeout,
                format!("the change is committed, but no index leader confirmed it in time ({})", e.detail()),
            )),
            other => other.map(drop),
        }
    }

    /// The replicas of the group as its leader knows them, voters first.
    pub async fn members(&self) -> Result<Vec<proto::Member>> {
        let (deadline, group) = (Instant::now() + LEADER_TIMEOUT, self.group().0);
        Ok(call_leader!(self, deadline, members, |_| proto::MembersRequest { group }).await?.members)
    }

    /// Changes the role of a replica, named by address or id; a change that is already in effect succeeds. `invalid_argument`: it
    /// is not allowed. `await_timeout`: it may still be committed.
    pub async fn change_member(&self, member: &str, change: proto::MemberChange, timeout: Duration) -> Result<()> {
        let (deadline, group) = (Instant::now() + timeout, self.group().0);
        let message = |limit| {
            let (member, change, timeout_ms) = (member.to_owned(), change.into(), milliseconds(limit));
            proto::ChangeMemberRequest { member, change, timeout_ms, group }
        };
        call_leader!(self, deadline, change_member, message).await.map(drop)
    }

    /// The addresses of the configured replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &str> {
        self.shared.replicas.iter().map(|replica| &*replica.address)
    }

    /// A replica's records of some directories, which reflect everything that was committed before. Their namespace is not set.
    pub async fn directories(&self, replica: &str, ids: &[DirectoryId]) -> Result<Vec<DirectoryRecord>> {
        let ids = proto::DirectoryIds { ids: ids.iter().map(|id| id.0).collect() };
        Ok(self.replica(replica)?.directories(What::Ids(ids)).await?.0)
    }

    /// All directories in one part of a replica's index, counted from 0, and the number of parts.
    pub async fn directories_in_part(&self, replica: &str, part: u32) -> Result<(Vec<DirectoryRecord>, u32)> {
        self.replica(replica)?.directories(What::Part(part)).await
    }

    fn replica(&self, address: &str) -> Result<&Replica> {
        let found = self.shared.replicas.iter().find(|replica| replica.address == address);
        let unknown = || Error::new(ErrorCode::InvalidArgument, format!("`{address}` is no replica of this client"));
        found.map(Arc::as_ref).ok_or_else(unknown)
    }

    /// Role and positions of every configured replica, by address.
    pub async fn status(&self) -> Vec<(String, Result<Status>)> {
        let mut tasks = Vec::new();
        for replica in &self.shared.replicas {
            let replica = replica.clone();
            tasks.push((replica.address.clone(), tokio::spawn(async move { replica.status().await })));
        }
        let mut answers = Vec::with_capacity(tasks.len());
        for (address, task) in tasks {
            answers.push((address, task.await.unwrap_or_else(|e| Err(Error::new(ErrorCode::Internal, e.to_string())))));
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lookups_go_to_the_leader_until_some_wait_there() {
        let addresses = [1, 2, 3].map(|port| format!("127.0.0.1:{port}"));
        let client = IndexClient::connect_lazy(addresses.to_vec(), None).unwrap();
        let replicas = &client.shared.replicas;
        let chosen =
            |asked: &[usize]| (0..3).map(|start| client.preferred(start, asked).unwrap().0).collect::<Vec<_>>();
        // The first is taken for the leader until a call shows another.
        assert_eq!(chosen(&[]), [0, 0, 0]);
        let few: Vec<_> = (1..WAITING_FEW).map(|_| replicas[0].count_pending(1)).collect();
        assert_eq!(chosen(&[]), [0, 0, 0]);
        let one_more = replicas[0].count_pending(1);
        assert_eq!(chosen(&[]), [1, 1, 2], "the others in turn");
        let elsewhere = replicas[1].count_pending(WAITING_FEW);
        assert_eq!(chosen(&[]), [2, 2, 2]);
        replicas[2].avoid();
        assert_eq!(chosen(&[]), [0, 0, 0], "as few wait at both");
        assert_eq!(chosen(&[0]), [1, 1, 1]);
        drop((few, one_more, elsewhere));
    }
}
