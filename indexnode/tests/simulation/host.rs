//! A host: a clock, a disk, and at times a process: the replica as it is, on a runtime of its own.
//!
//! Invariant: when the process is killed, everything in it ends at once, and nothing of it runs on. Its clock goes on.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::{BodyExt, Collected};
use mantle_index_client::proto::index_server::IndexServer;
use mantle_indexnode::{
    config::{Config, LookupSettings, PostgresSettings, RaftSettings, RenameSettings},
    groups::Groups,
    node::Node,
    process,
    proto::peer::peer_server::PeerServer,
    raft::{disk_executor::DiskExecutor, identity::DataDir},
    replica::Replica,
    server::{index_service::IndexService, peer_service::PeerService},
};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, advance, sleep_until},
};
use tower::ServiceExt;

use crate::{
    disk::{self, Disk, Image},
    network::{HostId, Network, Request},
    shim,
    upstream::Server,
};

/// Smaller than in production, so that short histories have snapshots, and followers that need one.
const SNAPSHOT_LOG_ENTRIES: u64 = 25;
/// Two operations: most transactions go in one entry each, and large ones in several.
const ENTRY_BYTES_MAX: usize = 250;
/// The trees are flat.
const CACHE_LEVELS: usize = 1;
/// The only group.
pub const GROUP: u64 = 1;
const LOCK_MS_MAX: u32 = 2000;
/// The time of day when everything begins, in milliseconds since 1970.
const DAY_MS: i64 = 1_764_000_000_000;

/// A process.
struct Process {
    runtime: Runtime,
    /// The runtime's time when it began.
    began: Instant,
    /// The host's time when it began, in milliseconds.
    began_ms: u64,
    served: Option<Served>,
    /// Why the replica ended, once it has.
    end: Arc<Mutex<Option<String>>>,
}

#[derive(Clone)]
struct Served {
    replica: Arc<Replica>,
    peer: PeerServer<PeerService>,
    index: IndexServer<IndexService>,
}

/// A host.
pub struct Host {
    id: HostId,
    config: Arc<Config>,
    disk: Option<Disk>,
    process: Option<Process>,
    /// The host's clock, in milliseconds.
    clock_ms: u64,
    /// How fast it is, in millionths more or less.
    pub drift_ppm: i64,
    /// By how much the time of day differs from that, in milliseconds: somebody may set it, forward and back.
    pub day_ms: i64,
    /// What the drift has not yet made a whole millisecond of.
    remainder: i64,
    /// Not running until then (simulation's time), though alive.
    pub paused_until_ms: u64,
    network: Network,
    server: Server,
    rng: Arc<Mutex<StdRng>>,
    /// Longest time of a flush, in milliseconds.
    pub flush_ms_max: Arc<Mutex<u64>>,
}

impl Host {
    /// A host with an empty disk and no process.
    /// The hosts from `voters` on have learners.
    pub fn new(
        id: HostId,
        (addresses, voters): (&[String], usize),
        folder: &Path,
        seed: u64,
        network: Network,
        server: Server,
    ) -> Self {
        let folder: PathBuf = folder.join(format!("host-{id}"));
        fs::create_dir_all(&folder).expect("a folder in memory");
        let config = Config {
            groups: vec![GROUP],
            data_dir: folder.clone(),
            listen: addresses[id].clone(),
            http_listen: String::new(),
            peers: addresses[..voters].to_vec(),
            threads: 1,
            learner: id >= voters,
            postgres: PostgresSettings {
                host: String::new(),
                port: 0,
                database: String::new(),
                user: String::new(),
                password_file: PathBuf::new(),
            },
            raft: RaftSettings {
                snapshot_log_entries: SNAPSHOT_LOG_ENTRIES,
                entry_bytes_max: ENTRY_BYTES_MAX,
                ..RaftSettings::default()
            },
            rename: RenameSettings { lock_ms_max: LOCK_MS_MAX },
            lookup: LookupSettings { cache_levels: CACHE_LEVELS, ..LookupSettings::default() },
        };
        Self {
            id,
            config: Arc::new(config),
            disk: Some(Disk::new(&folder)),
            process: None,
            clock_ms: 0,
            drift_ppm: 0,
            day_ms: 0,
            remainder: 0,
            paused_until_ms: 0,
            network,
            server,
            rng: Arc::new(Mutex::new(StdRng::seed_from_u64(seed ^ (id as u64 + 1) << 32))),
            flush_ms_max: Arc::new(Mutex::new(1)),
        }
    }

    /// Does a process run?
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The disk.
    pub fn disk(&mut self) -> &mut Disk {
        self.disk.as_mut().expect("the disk is attached during the host's turn only")
    }

    /// The node, while one runs.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.process.as_ref()?.served.as_ref()?.replica.node()
    }

    /// Runs something as this host: on its runtime, with its disk.
    fn turn<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        disk::attach(self.disk.take().expect("one turn at a time"));
        shim::set_time_of_day(DAY_MS + self.clock_ms as i64 + self.day_ms);
        let result = work(self);
        self.disk = Some(disk::detach());
        result
    }

    /// Is it to have a learner?
    pub fn is_learner(&self) -> bool {
        self.config.learner
    }

    /// Starts the process.
    pub fn start(&mut self) -> Result<()> {
        self.turn(|host| {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
            let began = runtime.block_on(async { Instant::now() });
            let end = Arc::new(Mutex::new(None));
            let served = {
                let _context = runtime.enter();
                let folder = DataDir::open(&host.config.data_dir).context("data folder")?;
                let (dial, database) = (host.network.dial(host.id), host.server.seen_from(host.id));
                let identity = folder.identity().context("identity")?;
                let replica = Replica::new(host.config.clone(), GROUP, identity, database, dial, host.disk_executor());
                let (running, told) = (replica.clone(), end.clone());
                runtime.spawn(async move {
                    let ended = process::incarnations(&running, &folder).await;
                    *told.lock() = Some(ended.map_or_else(|e| format!("{e:#}"), |()| "stopped".to_owned()));
                });
                let groups = Groups::new([replica.clone()]);
                let peer = PeerServer::new(PeerService::new(groups.clone()));
                let index = IndexServer::new(IndexService::new(groups));
                Served { replica, peer, index }
            };
            let began_ms = host.clock_ms;
            host.process = Some(Process { runtime, began, began_ms, served: Some(served), end });
            Ok(())
        })
    }

    fn disk_executor(&self) -> DiskExecutor {
        let (rng, flush_ms_max) = (self.rng.clone(), self.flush_ms_max.clone());
        DiskExecutor::Inline(Arc::new(move || Duration::from_millis(rng.lock().random_range(0..=*flush_ms_max.lock()))))
    }

    /// Why the replica ended by itself, if it did.
    pub fn end(&self) -> Option<String> {
        self.process.as_ref()?.end.lock().clone()
    }

    /// Ends the process. What it wrote stays; at a loss of power, what it flushed.
    pub fn kill(&mut self, power_is_lost: bool) -> Result<()> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let image: Image = if power_is_lost {
            let mut rng = self.rng.lock();
            self.disk.as_ref().context("a disk")?.image_after_power_loss(&mut rng)?
        } else {
            self.disk.as_ref().context("a disk")?.image()?
        };
        // What its destructors do to the disk did not happen.
        drop(process);
        self.disk().restore(&image)?;
        Ok(())
    }

    /// Forgets everything on the disk of a host without a process.
    pub fn wipe(&mut self) -> Result<()> {
        Ok(self.disk().restore(&Image::default())?)
    }

    /// Lets the clock go on, and the process run until it stands there.
    pub fn tick(&mut self, now_ms: u64, step_ms: u64) {
        self.remainder += self.drift_ppm * step_ms as i64;
        self.clock_ms += step_ms;
        if self.remainder.abs() >= 1_000_000 {
            let step = self.remainder.signum();
            self.remainder -= step * 1_000_000;
            self.clock_ms = self.clock_ms.saturating_add_signed(step);
        }
        if self.process.is_some() && self.paused_until_ms <= now_ms {
            self.turn(|host| {
                let Some(process) = &host.process else { return };
                let until = process.began + Duration::from_millis(host.clock_ms - process.began_ms);
                process.runtime.block_on(async {
                    // Whoever stood still finds the clock where it is now, before anything of what came meanwhile is looked at:
                    // by the clock of then a lease would hold that is over.
                    let behind = until.saturating_duration_since(Instant::now());
                    if behind > Duration::from_millis(2 * step_ms) {
                        advance(behind).await;
                    }
                    sleep_until(until).await;
                });
            });
        }
    }

    /// Lets the replica make a snapshot now.
    pub fn make_snapshot(&self) {
        if let (Some(process), Some(node)) = (&self.process, self.node()) {
            process.runtime.spawn(async move { node.raft.trigger().snapshot().await });
        }
    }

    /// Gives a request to the process, which answers it in its own time. `false`: nobody listens.
    pub fn serve(&mut self, call: u64, request: Request) -> bool {
        let network = self.network.clone();
        let Some(process) = &self.process else { return false };
        let Some(served) = process.served.clone() else { return false };
        process.runtime.spawn(async move {
            let request = request.map(tonic::body::Body::new);
            let answered = if request.uri().path().starts_with("/mantle.peer.") {
                served.peer.oneshot(request).boxed()
            } else {
                served.index.oneshot(request).boxed()
            };
            let Ok(response) = answered.await;
            let (parts, body) = response.into_parts();
            let collected: Result<Collected<Bytes>, _> = body.collect().await;
            network.respond(call, collected.ok().map(|body| http::Response::from_parts(parts, body)));
        });
        true
    }
}

/// A host of clients: a runtime without a replica.
pub struct ClientHost {
    runtime: Runtime,
    began: Instant,
}

impl ClientHost {
    /// One whose clock begins now.
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let began = runtime.block_on(async { Instant::now() });
        Self { runtime, began }
    }

    /// Starts a client.
    pub fn spawn(&self, client: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(client);
    }

    /// Lets the clients run until this time.
    pub fn tick(&self, now_ms: u64) {
        self.runtime.block_on(async { sleep_until(self.began + Duration::from_millis(now_ms)).await });
    }
}
