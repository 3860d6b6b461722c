//! Clients: they act as gateways and their users do. Each client does one thing after another, and all run at once.

use std::time::Duration;

use futures::future::join_all;
use mantle_index_client::{
    check_outcome,
    proto::{
        AwaitRequest, Lineage, PrepareRenameRequest, PrepareRenameResponse, ReleaseRenameRequest, ResolveRequest,
        ResolveResponse, await_request::What, index_client::IndexClient,
    },
    wire_code,
};
use mantle_indexnode::raft::peers::PeerChannel;
use mantle_types::{Caller, DirectoryId, Epoch, ErrorCode, Lsn, NamespaceId, Permission, RequestKey};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::{
    answers::{Answer, Committed, Position, Prepared, Refusal},
    history::{History, Lookup},
    network::{HostId, Network},
    postgres::{NAMESPACE, Postgres, ROOT, SYSTEM},
    trace::Trace,
    tree::Walk,
    upstream::{SOURCE, Server},
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const DEPTH_MAX: usize = 5;
const LOOKUP_TIMEOUT_MS: u32 = 500;
const CALL_TIMEOUT: Duration = Duration::from_millis(700);
const AWAIT_MS: u32 = 500;
/// How long a client waits for an acknowledgement, over all leaders.
const AWAIT_MAX: Duration = Duration::from_millis(2500);
/// Most attempts of a change whose outcome is unknown.
const ATTEMPTS_MAX: usize = 3;
const RETRY_MS_MAX: u64 = 1000;
const MODES: [u16; 6] = [0o755, 0o750, 0o700, 0o711, 0o777, 0o1777];
/// Share of the lookups whose caller is not root, and may be denied.
const STRANGERS: f64 = 0.4;
/// Share of the lookups whose misses have to be final.
const SETTLES: f64 = 0.3;
/// Share of the renames whose caller is not root: whether it may depends on the rule.
const STRANGE_RENAMES: f64 = 0.2;
/// Share of the renames that are prepared several at a time, so that the leader makes one entry of some (`Command::Prepares`).
const RENAMES_AT_ONCE: f64 = 0.3;
const AT_ONCE: usize = 4;
/// Share of the changes that are large transactions: several log entries each.
const LARGE: f64 = 0.3;

/// The world that all clients share.
#[derive(Clone)]
pub struct ClientWorld {
    pub network: Network,
    pub server: Server,
    pub history: History,
    pub trace: Trace,
    /// Number of replicas, on the first hosts.
    pub replicas: usize,
}

pub struct Client {
    pub id: usize,
    pub rng: StdRng,
    pub world: ClientWorld,
    /// The last known leader.
    leader: HostId,
    stops: tokio::sync::watch::Receiver<bool>,
}

/// A caller in the group of all directories, or in none. The directories belong to root.
fn stranger(rng: &mut StdRng) -> Caller {
    Caller { uid: 7, gids: if rng.random_bool(0.5) { vec![0] } else { Vec::new() } }
}

fn root_caller() -> Caller {
    Caller { uid: 0, gids: Vec::new() }
}

impl Client {
    pub fn new(id: usize, rng: StdRng, world: ClientWorld, stops: tokio::sync::watch::Receiver<bool>) -> Self {
        Self { id, rng, world, leader: 0, stops }
    }

    /// Acts at random until it is told to stop.
    pub async fn run(mut self) {
        while !*self.stops.borrow() {
            sleep(Duration::from_millis(self.rng.random_range(0..30))).await;
            match self.rng.random_range(0..100) {
                0..50 => {
                    let path = self.path();
                    let replica = self.rng.random_range(0..self.world.replicas);
                    let caller = if self.rng.random_bool(STRANGERS) { stranger(&mut self.rng) } else { root_caller() };
                    self.lookup(replica, path, caller).await;
                }
                50..68 if self.rng.random_bool(LARGE) => self.mkdirs().await,
                50..68 => self.mkdir().await,
                68..84 if self.rng.random_bool(RENAMES_AT_ONCE) => self.renames_at_once().await,
                68..84 => self.rename().await,
                84..94 => self.rmdir().await,
                _ => self.setattr().await,
            }
        }
    }

    /// Asks one replica for one path again and again.
    pub async fn keep_asking(mut self, replica: HostId, path: Vec<String>) {
        while !*self.stops.borrow() {
            self.lookup(replica, path.clone(), root_caller()).await;
            sleep(Duration::from_millis(3)).await;
        }
    }

    /// Makes one directory in the root and waits until it is visible. Asks `leader` first.
    pub async fn make(mut self, name: String, leader: HostId) {
        self.leader = leader;
        let (request, timeline) = (self.request(), self.timeline());
        self.carry_out("mkdir", request, timeline, |postgres, timeline| postgres.mkdir(request, timeline, ROOT, &name))
            .await;
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.world.trace.note(format_args!("client {} {what}", self.id));
    }

    fn index(&self, replica: HostId) -> IndexClient<PeerChannel> {
        IndexClient::new(self.world.network.channel(self.world.replicas, replica))
    }

    fn request(&mut self) -> RequestKey {
        let id = Uuid::from_u128(self.rng.random());
        RequestKey { principal: self.id as u32 + 1, ns: NamespaceId(ROOT.0), id }
    }

    /// A path that exists mostly, or existed a moment ago.
    fn path(&mut self) -> Vec<String> {
        if self.rng.random_bool(0.2) {
            let depth = self.rng.random_range(1..=3);
            return (0..depth).map(|_| self.name()).collect();
        }
        let tree = self.world.server.with(|postgres| postgres.tree().clone());
        let at = self.rng.random_range(0..tree.records().len());
        tree.records().nth(at).and_then(|record| tree.path(record.id)).unwrap_or_default()
    }

    fn name(&mut self) -> String {
        NAMES.choose(&mut self.rng).map(|name| (*name).to_owned()).unwrap_or_default()
    }

    /// PostgreSQL's timeline, which a gateway learns before it resolves a path.
    fn timeline(&self) -> u32 {
        self.world.server.with(|postgres| postgres.timelines.now)
    }

    /// Looks up a path on a replica, and records the answer.
    async fn lookup(&mut self, replica: HostId, path: Vec<String>, caller: Caller) -> Option<Walk> {
        let timeline = self.timeline();
        // A gateway that does not know the timeline may see what a failover without a synchronous standby has lost.
        let knows_timeline =
            self.rng.random_bool(0.7) || !self.world.server.with(|postgres| postgres.standby.is_required);
        let lineage = Lineage { source: SOURCE.0, system_identifier: SYSTEM, timeline };
        let settles = self.rng.random_bool(SETTLES);
        let request = ResolveRequest {
            timeout_ms: LOOKUP_TIMEOUT_MS,
            path_bytes: vec![path.join("/").len() as u32],
            paths: path.join("/"),
            namespaces: vec![NAMESPACE.to_owned()],
            namespace_queries: vec![1],
            callers: vec![(&caller).into()],
            caller_queries: vec![1],
            lineages: knows_timeline.then_some(lineage).into_iter().collect(),
            settles,
            ..ResolveRequest::default()
        };
        let history = self.world.history.clone();
        let asked = history.now();
        let below = Lsn(history.acknowledged().0.saturating_sub(1));
        let (mut acknowledged, shown) = self
            .world
            .server
            .with(|postgres| (postgres.timelines.committed_through(timeline, below), postgres.shown_on(timeline)));
        let answer = timeout(CALL_TIMEOUT, self.resolve(replica, request)).await;
        let Some((walk, is_settled)) = answer.ok().flatten() else {
            history.failed();
            return None;
        };
        if is_settled {
            history.settled();
            acknowledged = acknowledged.max(shown);
        }
        let (timeline, acknowledged, committed) = self.world.server.with(|postgres| {
            let judged = if knows_timeline { timeline } else { postgres.timelines.now };
            let acknowledged = postgres.timelines.count_on(judged, timeline, acknowledged);
            (judged, acknowledged, postgres.visible_on(judged))
        });
        let uid = caller.uid;
        self.note(format_args!(
            "lookup {path:?} of {uid} on {replica}: {walk:?}, {timeline}: {acknowledged}..={committed}"
        ));
        let (answered, client) = (history.now(), self.id);
        history.answered(Lookup {
            client,
            replica,
            asked,
            answered,
            timeline,
            acknowledged,
            committed,
            path,
            caller,
            walk: walk.clone(),
        });
        Some(walk)
    }

    /// The answer, and whether it shows all that PostgreSQL showed before (P58).
    async fn resolve(&self, replica: HostId, request: ResolveRequest) -> Option<(Walk, bool)> {
        let batches = tokio_stream::once(request);
        let mut answers = self.index(replica).resolve(batches).await.ok()?.into_inner();
        let answer = answers.message().await.ok()??;
        check_outcome(answer.outcome.as_ref()).ok()?;
        Some((walk(&answer)?, answer.settled))
    }

    async fn found(&mut self, path: Vec<String>) -> Option<DirectoryId> {
        let replica = self.rng.random_range(0..self.world.replicas);
        self.lookup(replica, path, root_caller()).await.filter(|walk| walk.is_found).map(|walk| walk.id)
    }

    async fn mkdir(&mut self) {
        let (parent, timeline) = (self.path(), self.timeline());
        if parent.len() >= DEPTH_MAX {
            return;
        }
        let Some(parent) = self.found(parent).await else { return };
        let (request, name) = (self.request(), self.name());
        let what = format!("mkdir {parent}/{name}");
        self.carry_out(&what, request, timeline, |postgres, timeline| postgres.mkdir(request, timeline, parent, &name))
            .await;
    }

    /// Several directories in one transaction, which changes one of them again and removes another.
    async fn mkdirs(&mut self) {
        let (parent, timeline) = (self.path(), self.timeline());
        if parent.len() >= DEPTH_MAX {
            return;
        }
        let Some(parent) = self.found(parent).await else { return };
        let (request, mode) = (self.request(), MODES.choose(&mut self.rng).copied().unwrap_or(0o755));
        let what = format!("mkdirs in {parent}");
        let statement = |postgres: &mut Postgres, timeline| postgres.mkdirs(request, timeline, parent, &NAMES, mode);
        self.carry_out(&what, request, timeline, statement).await;
    }

    async fn rmdir(&mut self) {
        let (mut path, timeline) = (self.path(), self.timeline());
        let Some(name) = path.pop() else { return };
        let Some(parent) = self.found(path).await else { return };
        let request = self.request();
        let what = format!("rmdir {parent}/{name}");
        self.carry_out(&what, request, timeline, |postgres, timeline| postgres.rmdir(request, timeline, parent, &name))
            .await;
    }

    async fn setattr(&mut self) {
        let (path, timeline) = (self.path(), self.timeline());
        let Some(id) = self.found(path).await else { return };
        let (request, mode) = (self.request(), MODES.choose(&mut self.rng).copied().unwrap_or(0o755));
        let what = format!("setattr {id}");
        self.carry_out(&what, request, timeline, |postgres, timeline| postgres.setattr(request, timeline, id, mode))
            .await;
    }

    /// Source and destination of a rename.
    fn paths(&mut self) -> Option<(Vec<String>, Vec<String>)> {
        let (source, mut destination) = (self.path(), self.path());
        destination.push(self.name());
        let is_possible = !source.is_empty() && source != destination && destination.len() <= DEPTH_MAX;
        is_possible.then_some((source, destination))
    }

    /// Prepares renames at the same time, at the leader alone, then carries them out one after the other.
    async fn renames_at_once(&mut self) {
        let timeline = self.timeline();
        let lock_ms = self.rng.random_range(500..1500);
        let mut asked = Vec::new();
        for _ in 0..AT_ONCE {
            let Some((source, destination)) = self.paths() else { continue };
            let request = self.request();
            let message = self.prepare_message(request, &source, &destination, lock_ms);
            let mut index = self.index(self.leader);
            asked.push(async move {
                let answer = timeout(CALL_TIMEOUT, index.prepare_rename(message)).await.ok()?.ok()?.into_inner();
                check_outcome(answer.outcome.as_ref()).ok()?;
                Some((request, granted(&answer, timeline, &source, &destination)))
            });
        }
        for (request, prepared) in join_all(asked).await.into_iter().flatten() {
            let what = format!("one of several renames, attempt {}", prepared.attempt);
            if !self.carry_out(&what, request, timeline, |postgres, _| postgres.rename(request, &prepared)).await {
                self.release(request, prepared.attempt).await;
            }
        }
    }

    async fn rename(&mut self) {
        let Some((source, destination)) = self.paths() else { return };
        let (request, timeline) = (self.request(), self.timeline());
        let lock_ms = self.rng.random_range(200..1500);
        let Some(prepared) = self.prepare(request, timeline, &source, &destination, lock_ms).await else { return };
        match self.rng.random_range(0..10) {
            // The gateway dies.
            0 => return,
            // The gateway is slow: the lock may have expired.
            1 => sleep(Duration::from_millis(u64::from(lock_ms) + self.rng.random_range(0..800))).await,
            _ => sleep(Duration::from_millis(self.rng.random_range(0..40))).await,
        }
        let what = format!("rename {source:?} to {destination:?}, attempt {}", prepared.attempt);
        if !self.carry_out(&what, request, timeline, |postgres, _| postgres.rename(request, &prepared)).await {
            self.release(request, prepared.attempt).await;
        }
    }

    fn prepare_message(
        &mut self,
        request: RequestKey,
        source: &[String],
        destination: &[String],
        lock_ms: u32,
    ) -> PrepareRenameRequest {
        let is_strange = self.rng.random_bool(STRANGE_RENAMES);
        let caller = if is_strange { stranger(&mut self.rng) } else { root_caller() };
        PrepareRenameRequest {
            group: 0,
            request: Some(request.into()),
            namespace: NAMESPACE.to_owned(),
            source: source.to_vec(),
            destination: destination.to_vec(),
            caller: Some((&caller).into()),
            lock_ms,
            overwrite: false,
            remove: false,
            below: Vec::new(),
        }
    }

    async fn prepare(
        &mut self,
        request: RequestKey,
        timeline: u32,
        source: &[String],
        destination: &[String],
        lock_ms: u32,
    ) -> Option<Prepared> {
        let message = self.prepare_message(request, source, destination, lock_ms);
        for _ in 0..self.world.replicas {
            let mut index = self.index(self.leader);
            if let Ok(Ok(answer)) = timeout(CALL_TIMEOUT, index.prepare_rename(message.clone())).await {
                let answer = answer.into_inner();
                match check_outcome(answer.outcome.as_ref()) {
                    Ok(()) => return Some(granted(&answer, timeline, source, destination)),
                    Err(e) if e.code() == ErrorCode::NotLeader => {}
                    Err(_) => return None,
                }
            }
            self.leader = (self.leader + 1) % self.world.replicas;
        }
        None
    }

    async fn release(&mut self, request: RequestKey, attempt: u64) {
        let message = ReleaseRenameRequest { request: Some(request.into()), attempt, group: 0 };
        // If this fails, the lock expires.
        let _ = timeout(CALL_TIMEOUT, self.index(self.leader).release_rename(message)).await;
    }

    /// Makes a change and waits until it is visible; `false` if it is refused. If the session ends, asks again with the same
    /// request id.
    async fn carry_out(
        &mut self,
        what: &str,
        request: RequestKey,
        resolved_on: u32,
        statement: impl Fn(&mut Postgres, u32) -> Answer + Sync,
    ) -> bool {
        let mut timeline = resolved_on;
        for _ in 0..ATTEMPTS_MAX {
            let answer = self.execute(|postgres| statement(postgres, timeline)).await;
            self.note(format_args!("{what}: {answer:?}"));
            match answer {
                Ok(committed) => {
                    let is_visible = self.settle(request, committed).await;
                    // Sometimes a user does not receive the answer, and sends the request again.
                    if is_visible && self.rng.random_bool(0.92) {
                        return true;
                    }
                }
                Err(Refusal::Unknown) => {}
                Err(_) => return false,
            }
            sleep(Duration::from_millis(self.rng.random_range(10..RETRY_MS_MAX))).await;
            // The id is permanent: it does not matter if the path leads elsewhere by now.
            timeline = self.timeline();
        }
        true
    }

    /// Runs a statement, and waits as its commit does for the standby.
    async fn execute(&self, statement: impl Fn(&mut Postgres) -> Answer + Sync) -> Answer {
        let server = &self.world.server;
        let (answer, restarts) = server.with(|postgres| (statement(postgres), postgres.restarts));
        let is_durable = server.commit_survives(answer?.position).await;
        let is_alive = server.with(|postgres| postgres.restarts == restarts);
        if is_durable && is_alive { answer } else { Err(Refusal::Unknown) }
    }

    /// Waits until a committed change is visible, and records that.
    async fn settle(&mut self, request: RequestKey, committed: Committed) -> bool {
        let Position { timeline, lsn } = committed.position;
        let by_request = !committed.is_repeat && self.rng.random_bool(0.7);
        let what = if by_request { What::Request(request.into()) } else { What::Lsn(lsn.0) };
        let began = Instant::now();
        while began.elapsed() < AWAIT_MAX {
            let message = AwaitRequest { what: Some(what.clone()), timeout_ms: AWAIT_MS, source: SOURCE.0, group: 0 };
            if let Ok(Ok(answer)) = timeout(CALL_TIMEOUT, self.index(self.leader).r#await(message)).await
                && check_outcome(answer.into_inner().outcome.as_ref()).is_ok()
            {
                // Without a synchronous standby, a failover may have lost acknowledged changes.
                let timelines =
                    |postgres: &mut Postgres| postgres.timelines.position_on(postgres.timelines.now, timeline, lsn);
                let kept = self.world.server.with(timelines);
                self.note(format_args!("acknowledged {lsn} of {timeline}, {kept}"));
                self.world.history.acknowledge(kept);
                return true;
            }
            self.leader = (self.leader + 1) % self.world.replicas;
            sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

/// The result of a lookup.
fn walk(answer: &ResolveResponse) -> Option<Walk> {
    let code = *answer.codes.first()?;
    let [not_found, denied] = [ErrorCode::NotFound, ErrorCode::AccessDenied].map(wire_code);
    assert!([0, not_found, denied].contains(&code), "a lookup answered {code}");
    let (owner, group) = (*answer.owners.first()?, *answer.groups.first()?);
    Some(Walk {
        is_found: code == 0,
        is_denied: code == denied,
        id: DirectoryId(*answer.ids.first()?),
        depth: *answer.depths.first()? as usize,
        version: *answer.versions.first()?,
        permission: Permission { owner, group, mode: *answer.modes.first()? as u16 },
    })
}

fn granted(answer: &PrepareRenameResponse, timeline: u32, source: &[String], destination: &[String]) -> Prepared {
    Prepared {
        attempt: answer.attempt,
        epoch: Epoch(answer.epoch),
        timeline,
        source: DirectoryId(answer.source_id),
        source_parent: DirectoryId(answer.source_pid),
        source_name: source.last().cloned().unwrap_or_default(),
        destination_parent: DirectoryId(answer.destination_pid),
        destination_name: destination.last().cloned().unwrap_or_default(),
    }
}
