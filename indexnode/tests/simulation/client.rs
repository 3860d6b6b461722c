//! Clients: what gateways and their users do, each one thing after the other, all at once.

use std::time::Duration;

use mantle_index_client::{
    check_outcome,
    proto::{
        AwaitRequest, PrepareRenameRequest, PrepareRenameResponse, ReleaseRenameRequest, ResolveQuery, ResolveRequest,
        await_request::What, index_client::IndexClient,
    },
};
use mantle_indexnode::raft::network::PeerChannel;
use mantle_types::{Caller, DirectoryId, Epoch, ErrorCode, Lsn, NamespaceId, RequestKey};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::{
    history::{History, Lookup},
    network::{HostId, Network},
    postgres::{NAMESPACE, Prepared, ROOT, Refusal},
    trace::Trace,
    tree::Walk,
    upstream::Server,
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const DEPTH_MAX: usize = 5;
const LOOKUP_TIMEOUT_MS: u32 = 500;
const CALL_TIMEOUT: Duration = Duration::from_millis(700);
const AWAIT_MS: u32 = 500;
/// An acknowledgement is waited for this long, over all leaders.
const AWAIT_MAX: Duration = Duration::from_millis(2500);
const MODES: [u16; 4] = [0o755, 0o750, 0o700, 0o711];

/// What all clients share.
#[derive(Clone)]
pub struct World {
    /// The ways to the replicas.
    pub network: Network,
    /// PostgreSQL.
    pub server: Server,
    /// What they hear.
    pub history: History,
    /// What they do.
    pub trace: Trace,
    /// Hosts of replicas.
    pub replicas: usize,
}

/// One client.
pub struct Client {
    /// Its number.
    pub id: usize,
    /// Its choices.
    pub rng: StdRng,
    /// Where it lives.
    pub world: World,
    /// Who led last, as far as it knows.
    leader: HostId,
    stops: tokio::sync::watch::Receiver<bool>,
}

fn root_caller() -> Caller {
    Caller { uid: 0, gids: Vec::new() }
}

impl Client {
    /// A client that acts until it is told to stop.
    pub fn new(id: usize, rng: StdRng, world: World, stops: tokio::sync::watch::Receiver<bool>) -> Self {
        Self { id, rng, world, leader: 0, stops }
    }

    /// Acts.
    pub async fn run(mut self) {
        while !*self.stops.borrow() {
            sleep(Duration::from_millis(self.rng.random_range(0..30))).await;
            match self.rng.random_range(0..100) {
                0..50 => {
                    let path = self.path();
                    let replica = self.rng.random_range(0..self.world.replicas);
                    self.lookup(replica, path).await;
                }
                50..68 => self.mkdir().await,
                68..84 => self.rename().await,
                84..94 => self.rmdir().await,
                _ => self.setattr().await,
            }
        }
    }

    /// Asks one replica for one path, again and again.
    pub async fn keep_asking(mut self, replica: HostId, path: Vec<String>) {
        while !*self.stops.borrow() {
            self.lookup(replica, path.clone()).await;
            sleep(Duration::from_millis(3)).await;
        }
    }

    /// Makes one directory in the root and waits until it is visible, asking this replica first.
    pub async fn make(mut self, name: String, leader: HostId) {
        self.leader = leader;
        let request = self.request();
        let answer = self.world.server.with(|postgres| postgres.mkdir(request, ROOT, &name));
        self.settle(request, answer).await;
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

    /// A path that exists, most of the time, or did a moment ago.
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

    /// Looks a path up on a replica; notes the answer.
    async fn lookup(&mut self, replica: HostId, path: Vec<String>) -> Option<Walk> {
        let query = ResolveQuery {
            namespace: NAMESPACE.to_owned(),
            components: path.clone(),
            caller: Some((&root_caller()).into()),
        };
        let request = ResolveRequest { epoch: 0, queries: vec![query], timeout_ms: LOOKUP_TIMEOUT_MS };
        let history = self.world.history.clone();
        let asked = history.now();
        let visible = history.acknowledged();
        let answer = timeout(CALL_TIMEOUT, self.index(replica).resolve(request)).await;
        let Ok(Ok(answer)) = answer else {
            history.failed();
            return None;
        };
        let answer = answer.into_inner();
        if check_outcome(answer.outcome.as_ref()).is_err() {
            history.failed();
            return None;
        }
        let found = answer.results.first()?;
        let is_found = match check_outcome(found.outcome.as_ref()) {
            Ok(()) => true,
            Err(e) if e.code() == ErrorCode::NotFound => false,
            Err(e) => panic!("a lookup of root answered {e}"),
        };
        let walk = Walk {
            is_found,
            id: DirectoryId(found.id),
            depth: found.depth as usize,
            version: found.version,
            permission: found.permission.unwrap_or_default().into(),
        };
        let below = |lsn: Lsn| Lsn(lsn.0.saturating_sub(1));
        let (acknowledged, committed) =
            self.world.server.with(|postgres| (postgres.committed_through(below(visible)), postgres.wal.len()));
        self.note(format_args!("lookup {path:?} on {replica}: {walk:?}, {acknowledged}..={committed}"));
        let answered = history.now();
        history.answered(Lookup {
            client: self.id,
            replica,
            asked,
            answered,
            acknowledged,
            committed,
            path,
            walk: walk.clone(),
        });
        Some(walk)
    }

    async fn found(&mut self, path: Vec<String>) -> Option<DirectoryId> {
        let replica = self.rng.random_range(0..self.world.replicas);
        self.lookup(replica, path).await.filter(|walk| walk.is_found).map(|walk| walk.id)
    }

    async fn mkdir(&mut self) {
        let parent = self.path();
        if parent.len() >= DEPTH_MAX {
            return;
        }
        let Some(parent) = self.found(parent).await else { return };
        let (request, name) = (self.request(), self.name());
        let answer = self.world.server.with(|postgres| postgres.mkdir(request, parent, &name));
        self.note(format_args!("mkdir {parent}/{name}: {answer:?}"));
        self.settle(request, answer).await;
    }

    async fn rmdir(&mut self) {
        let mut path = self.path();
        let Some(name) = path.pop() else { return };
        let Some(parent) = self.found(path).await else { return };
        let request = self.request();
        let answer = self.world.server.with(|postgres| postgres.rmdir(request, parent, &name));
        self.note(format_args!("rmdir {parent}/{name}: {answer:?}"));
        self.settle(request, answer).await;
    }

    async fn setattr(&mut self) {
        let path = self.path();
        let Some(id) = self.found(path).await else { return };
        let (request, mode) = (self.request(), MODES.choose(&mut self.rng).copied().unwrap_or(0o755));
        let answer = self.world.server.with(|postgres| postgres.setattr(request, id, mode));
        self.note(format_args!("setattr {id}: {answer:?}"));
        self.settle(request, answer).await;
    }

    async fn rename(&mut self) {
        let (source, mut destination) = (self.path(), self.path());
        destination.push(self.name());
        if source.is_empty() || source == destination || destination.len() > DEPTH_MAX {
            return;
        }
        let request = self.request();
        let lock_ms = self.rng.random_range(200..1500);
        let Some(prepared) = self.prepare(request, &source, &destination, lock_ms).await else { return };
        match self.rng.random_range(0..10) {
            // The gateway dies.
            0 => return,
            // It is slow: the lock may have expired.
            1 => sleep(Duration::from_millis(u64::from(lock_ms) + self.rng.random_range(0..800))).await,
            _ => sleep(Duration::from_millis(self.rng.random_range(0..40))).await,
        }
        let answer = self.world.server.with(|postgres| postgres.rename(request, &prepared));
        self.note(format_args!("rename {source:?} to {destination:?}, attempt {}: {answer:?}", prepared.attempt));
        if answer.is_err() {
            self.release(request, prepared.attempt).await;
        }
        self.settle(request, answer).await;
    }

    async fn prepare(
        &mut self,
        request: RequestKey,
        source: &[String],
        destination: &[String],
        lock_ms: u32,
    ) -> Option<Prepared> {
        let message = PrepareRenameRequest {
            request: Some(request.into()),
            namespace: NAMESPACE.to_owned(),
            source: source.to_vec(),
            destination: destination.to_vec(),
            caller: Some((&root_caller()).into()),
            lock_ms,
            overwrite: false,
            remove: false,
        };
        for _ in 0..self.world.replicas {
            let mut index = self.index(self.leader);
            if let Ok(Ok(answer)) = timeout(CALL_TIMEOUT, index.prepare_rename(message.clone())).await {
                let answer = answer.into_inner();
                match check_outcome(answer.outcome.as_ref()) {
                    Ok(()) => return Some(granted(&answer, source, destination)),
                    Err(e) if e.code() == ErrorCode::NotLeader => {}
                    Err(_) => return None,
                }
            }
            self.leader = (self.leader + 1) % self.world.replicas;
        }
        None
    }

    async fn release(&mut self, request: RequestKey, attempt: u64) {
        let message = ReleaseRenameRequest { request: Some(request.into()), attempt };
        // Who does not hear of it lets the lock expire.
        let _ = timeout(CALL_TIMEOUT, self.index(self.leader).release_rename(message)).await;
    }

    /// Waits until a committed change is visible, and then knows it.
    async fn settle(&mut self, request: RequestKey, answer: Result<Lsn, Refusal>) {
        let Ok(position) = answer else { return };
        let what = if self.rng.random_bool(0.7) { What::Request(request.into()) } else { What::Lsn(position.0) };
        let began = Instant::now();
        while began.elapsed() < AWAIT_MAX {
            let message = AwaitRequest { what: Some(what.clone()), timeout_ms: AWAIT_MS };
            if let Ok(Ok(answer)) = timeout(CALL_TIMEOUT, self.index(self.leader).r#await(message)).await
                && check_outcome(answer.into_inner().outcome.as_ref()).is_ok()
            {
                self.note(format_args!("acknowledged {position}"));
                self.world.history.acknowledge(position);
                return;
            }
            self.leader = (self.leader + 1) % self.world.replicas;
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn granted(answer: &PrepareRenameResponse, source: &[String], destination: &[String]) -> Prepared {
    Prepared {
        attempt: answer.attempt,
        epoch: Epoch(answer.epoch),
        source: DirectoryId(answer.source_id),
        source_parent: DirectoryId(answer.source_pid),
        source_name: source.last().cloned().unwrap_or_default(),
        destination_parent: DirectoryId(answer.destination_pid),
        destination_name: destination.last().cloned().unwrap_or_default(),
    }
}
