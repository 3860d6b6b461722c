//! A host: a clock, a disk, and at times a process. The process is the replica as in production, on a runtime of its own.
//!
//! Invariant: a kill ends everything in the process at once. The host's clock continues.

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
    failpoints,
    groups::Groups,
    index::command::{FIRST_RULE, NEWEST_RULE},
    node::Node,
    process,
    proto::peer::peer_server::PeerServer,
    raft::{disk_executor::DiskExecutor, identity::DataDir},
    replica::Replica,
    server::{index_service::IndexService, peer_service::PeerService},
};
use mantle_types::GroupId;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, advance, sleep_until},
};
use tower::ServiceExt;

use crate::{
    disk::{self, Disk, Image, Part},
    network::{HostId, Network, Request},
    shim,
    upstream::Server,
};

/// Smaller than in production, so that short histories have snapshots, and followers that need one.
const SNAPSHOT_LOG_ENTRIES: u64 = 25;
/// Two operations: most transactions are one entry, large ones are several.
const ENTRY_BYTES_MAX: usize = 250;
/// The trees are flat.
const CACHE_LEVELS: usize = 1;
/// The only index group.
pub const GROUP: GroupId = GroupId(1);
const LOCK_MS_MAX: u32 = 2000;
/// The time of day at the beginning, in milliseconds since 1970.
const DAY_MS: i64 = 1_764_000_000_000;

struct Process {
    runtime: Runtime,
    /// The runtime's time at its start.
    began: Instant,
    /// The host's time at its start, in milliseconds.
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

pub struct Host {
    id: HostId,
    config: Arc<Config>,
    disk: Option<Disk>,
    /// A copy of the disk that an operator may put back.
    copy: Option<Image>,
    process: Option<Process>,
    /// In milliseconds.
    clock_ms: u64,
    /// Clock drift, in millionths.
    pub drift_ppm: i64,
    /// How far the time of day is set wrong, in milliseconds.
    pub day_ms: i64,
    /// The part of the drift that is not a whole millisecond yet.
    remainder: i64,
    /// The process is alive but does not run until this time of the simulation.
    pub paused_until_ms: u64,
    /// Its program is of an older release, which knows no rule but the first.
    pub is_old: bool,
    network: Network,
    server: Server,
    rng: Arc<Mutex<StdRng>>,
    /// Longest duration of a flush, in milliseconds.
    pub flush_ms_max: Arc<Mutex<u64>>,
}

impl Host {
    /// A host with an empty disk and no process. The hosts from `voters` on are learners.
    pub fn new(
        id: HostId,
        (addresses, voters): (&[String], usize),
        directory: &Path,
        seed: u64,
        network: Network,
        server: Server,
    ) -> Self {
        let directory: PathBuf = directory.join(format!("host-{id}"));
        fs::create_dir_all(&directory).expect("a directory in memory");
        let config = Config {
            groups: vec![GROUP],
            data_dir: directory.clone(),
            listen: addresses[id].clone(),
            http_listen: String::new(),
            peers: addresses[..voters].to_vec(),
            learners: addresses[voters..].to_vec(),
            tls: None,
            threads: 1,
            learner: id >= voters,
            postgres: PostgresSettings {
                host: String::new(),
                port: 0,
                database: String::new(),
                user: String::new(),
                password_file: PathBuf::new(),
                tls: None,
                plain: false,
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
            disk: Some(Disk::new(&directory)),
            copy: None,
            process: None,
            clock_ms: 0,
            drift_ppm: 0,
            day_ms: 0,
            remainder: 0,
            paused_until_ms: 0,
            is_old: false,
            network,
            server,
            rng: Arc::new(Mutex::new(StdRng::seed_from_u64(seed ^ (id as u64 + 1) << 32))),
            flush_ms_max: Arc::new(Mutex::new(1)),
        }
    }

    /// Tells whether a process runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub fn disk(&mut self) -> &mut Disk {
        self.disk.as_mut().expect("the disk is attached while the host does not run")
    }

    /// The node of the running process.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.process.as_ref()?.served.as_ref()?.replica.node()
    }

    /// Runs `work` as this host: with its disk, its program and its time of day.
    fn as_host<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        disk::attach(self.disk.take().expect("one host runs at a time"));
        failpoints::set_newest_rule(if self.is_old { FIRST_RULE } else { NEWEST_RULE });
        shim::set_time_of_day(DAY_MS + self.clock_ms as i64 + self.day_ms);
        let result = work(self);
        self.disk = Some(disk::detach());
        result
    }

    /// Tells whether this host's replica is a learner.
    pub fn is_learner(&self) -> bool {
        self.config.learner
    }

    pub fn start(&mut self) -> Result<()> {
        self.as_host(|host| {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
            let began = runtime.block_on(async { Instant::now() });
            let end = Arc::new(Mutex::new(None));
            let served = {
                let _context = runtime.enter();
                let directory = DataDir::open(&host.config.data_dir).context("data directory")?;
                let (dial, database) = (host.network.dial(host.id), host.server.seen_from(host.id));
                let identity = directory.identity().context("identity")?;
                let replica = Replica::new(host.config.clone(), GROUP, identity, database, dial, host.disk_executor());
                let (running, reported) = (replica.clone(), end.clone());
                runtime.spawn(async move {
                    let ended = process::incarnations(&running, &directory).await;
                    *reported.lock() = Some(ended.map_or_else(|e| format!("{e:#}"), |()| "stopped".to_owned()));
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

    /// Ends the process. Its writes stay; after a loss of power only what it flushed.
    pub fn kill(&mut self, power_is_lost: bool) -> Result<()> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let image: Image = if power_is_lost {
            let mut rng = self.rng.lock();
            self.disk.as_ref().context("a disk")?.image_after_power_loss(&mut rng)?
        } else {
            self.disk.as_ref().context("a disk")?.image()?
        };
        // Undoes what the destructors did to the disk.
        drop(process);
        self.disk().restore(&image)?;
        Ok(())
    }

    /// Keeps a copy of the disk as it is now, also of a running process: a machine's snapshot.
    pub fn keep_copy(&mut self) -> Result<()> {
        self.copy = Some(self.disk.as_ref().context("a disk")?.image()?);
        Ok(())
    }

    /// Puts the copy back, wholly or in part, on a host without a process. `false`: there is no copy.
    pub fn put_back(&mut self, part: Part) -> Result<bool> {
        let Some(copy) = self.copy.take() else { return Ok(false) };
        let image = self.disk().image()?.with_older(&copy, part);
        self.disk().restore(&image)?;
        Ok(true)
    }

    /// Erases the disk of a host without a process.
    pub fn wipe(&mut self) -> Result<()> {
        Ok(self.disk().restore(&Image::default())?)
    }

    /// Advances the clock, and lets the process run until then.
    pub fn tick(&mut self, now_ms: u64, step_ms: u64) {
        self.remainder += self.drift_ppm * step_ms as i64;
        self.clock_ms += step_ms;
        if self.remainder.abs() >= 1_000_000 {
            let step = self.remainder.signum();
            self.remainder -= step * 1_000_000;
            self.clock_ms = self.clock_ms.saturating_add_signed(step);
        }
        if self.process.is_some() && self.paused_until_ms <= now_ms {
            self.as_host(|host| {
                let Some(process) = &host.process else { return };
                let until = process.began + Duration::from_millis(host.clock_ms - process.began_ms);
                process.runtime.block_on(async {
                    // A process that stood still sees the current time before it reads any message that arrived meanwhile. With
                    // the old time an expired lease would seem valid.
                    let behind = until.saturating_duration_since(Instant::now());
                    if behind > Duration::from_millis(2 * step_ms) {
                        advance(behind).await;
                    }
                    sleep_until(until).await;
                });
            });
        }
    }

    /// Makes the replica build a snapshot.
    pub fn make_snapshot(&self) {
        if let (Some(process), Some(node)) = (&self.process, self.node()) {
            process.runtime.spawn(async move { node.raft.trigger().snapshot().await });
        }
    }

    /// Passes a request to the process, which answers later. `false`: no process listens.
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

/// The host of the clients: a runtime without a replica.
pub struct ClientHost {
    runtime: Runtime,
    began: Instant,
}

impl ClientHost {
    /// A host whose clock begins now.
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let began = runtime.block_on(async { Instant::now() });
        Self { runtime, began }
    }

    pub fn spawn(&self, client: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(client);
    }

    /// Lets the clients run until this time.
    pub fn tick(&self, now_ms: u64) {
        self.runtime.block_on(async { sleep_until(self.began + Duration::from_millis(now_ms)).await });
    }
}
