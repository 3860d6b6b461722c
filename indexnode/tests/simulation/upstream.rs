//! The model of PostgreSQL behind the traits through which a leader reaches the real one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use mantle_indexnode::source::upstream::{ChangeStream, IndexGroup, Session, Slot, Statements, Upstream};
use mantle_types::{
    Epoch, Lsn, RequestKey,
    message::{DirectoryRecord, MESSAGE_PREFIX, encode},
};
use parking_lot::Mutex;
use pgwire_replication::ReplicationEvent;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::async_trait;

use crate::{
    network::HostId,
    postgres::{Postgres, SLOT, SYSTEM},
};

/// How long a statement waits for a server that does not answer.
const NO_ANSWER: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_millis(300);
const COPY_CHUNK: usize = 7;

struct Inner {
    postgres: Postgres,
    rng: StdRng,
    /// Hosts that cannot reach it.
    unreachable: Vec<HostId>,
}

/// PostgreSQL, as all hosts see it; clones share it.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Mutex<Inner>>,
}

impl Server {
    /// A server with one empty namespace.
    pub fn new(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ 0x706f_7374_6772_6573);
        let inner = Inner { postgres: Postgres::new(), rng, unreachable: Vec::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Looks at the model, or changes it.
    pub fn with<T>(&self, work: impl FnOnce(&mut Postgres) -> T) -> T {
        work(&mut self.inner.lock().postgres)
    }

    /// Cuts hosts off, or lets them back.
    pub fn set_reachable(&self, host: HostId, is_reachable: bool) {
        let mut inner = self.inner.lock();
        inner.unreachable.retain(|h| *h != host);
        if !is_reachable {
            inner.unreachable.push(host);
        }
    }

    /// What a host's replica connects to.
    pub fn seen_from(&self, host: HostId) -> Arc<dyn Upstream> {
        Arc::new(Route { server: self.clone(), host })
    }

    fn is_reachable(&self, host: HostId) -> bool {
        !self.inner.lock().unreachable.contains(&host)
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.inner.lock().rng.random_range(0..3))
    }
}

#[derive(Clone)]
struct Route {
    server: Server,
    host: HostId,
}

impl Route {
    /// A round trip; what it waits for may be lost on either way.
    async fn travel(&self) -> Result<()> {
        sleep(self.server.delay()).await;
        if !self.server.is_reachable(self.host) {
            sleep(NO_ANSWER).await;
            bail!("PostgreSQL does not answer");
        }
        Ok(())
    }
}

#[async_trait]
impl Upstream for Route {
    async fn connect(&self) -> Result<Session> {
        self.travel().await?;
        let restarts = self.server.with(|postgres| postgres.restarts);
        Ok(Box::new(Connection { route: self.clone(), restarts }))
    }

    async fn replication(&self, slot: &str, start: Lsn) -> Result<Box<dyn ChangeStream>> {
        ensure!(slot == SLOT, "slot {slot} is not known");
        self.travel().await?;
        let (pid, restarts) = self.server.with(|postgres| (postgres.new_pid(), postgres.restarts));
        let (sent, told) = (Lsn::INVALID, Lsn::INVALID);
        Ok(Box::new(Walsender {
            route: self.clone(),
            pid,
            restarts,
            start,
            sent,
            told,
            exported: None,
            events: VecDeque::new(),
        }))
    }
}

/// A session for statements.
struct Connection {
    route: Route,
    restarts: u64,
}

impl Connection {
    async fn run<T>(&self, statement: impl FnOnce(&mut Postgres) -> T + Send) -> Result<T> {
        self.route.travel().await?;
        let result = self.route.server.with(|postgres| {
            let is_alive = postgres.restarts == self.restarts;
            is_alive.then(|| statement(postgres))
        });
        let result = result.context("the session ended")?;
        // The answer may be lost although the statement is done.
        self.route.travel().await?;
        Ok(result)
    }
}

#[async_trait]
impl Statements for Connection {
    async fn system(&self) -> Result<(u64, u32)> {
        self.run(|_| SYSTEM).await
    }

    async fn index_group(&self) -> Result<IndexGroup> {
        self.run(|postgres| IndexGroup {
            epoch: postgres.epoch,
            cluster_id: postgres.cluster_id.clone(),
            slot_name: SLOT.to_owned(),
        })
        .await
    }

    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>> {
        self.run(|postgres| postgres.raise_epoch(expected, cluster_id)).await
    }

    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool> {
        self.run(|postgres| postgres.abort_rename(request, attempt)).await
    }

    async fn slot(&self, _: &str) -> Result<Option<Slot>> {
        self.run(|postgres| {
            let slot = postgres.slot.as_ref()?;
            Some(Slot { active_pid: slot.active_pid, is_lost: false, confirmed: slot.confirmed })
        })
        .await
    }

    async fn terminate(&self, pid: i32) -> Result<()> {
        self.run(|postgres| postgres.terminate(pid)).await
    }

    async fn drop_slot(&self, _: &str) -> Result<()> {
        let dropped = self.run(|postgres| {
            if postgres.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some()) {
                return false;
            }
            postgres.slot = None;
            true
        });
        ensure!(dropped.await?, "the slot is in use");
        Ok(())
    }

    async fn copy_directories(&self, snapshot: &str, chunks: mpsc::Sender<Vec<DirectoryRecord>>) -> Result<()> {
        let tree = self.run(|postgres| postgres.snapshots.get(snapshot).cloned()).await?;
        let tree = tree.context("the snapshot is gone")?;
        let records: Vec<_> = tree.records().cloned().collect();
        for chunk in records.chunks(COPY_CHUNK) {
            self.run(|_| ()).await?;
            if chunks.send(chunk.to_vec()).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// A replication connection.
struct Walsender {
    route: Route,
    pid: i32,
    restarts: u64,
    start: Lsn,
    /// Transactions that end at or below were sent.
    sent: Lsn,
    /// The last position that the reader was told of.
    told: Lsn,
    exported: Option<String>,
    events: VecDeque<ReplicationEvent>,
}

fn on_wire(lsn: Lsn) -> pgwire_replication::Lsn {
    pgwire_replication::Lsn(lsn.0)
}

impl Walsender {
    fn check(&self) -> Result<()> {
        ensure!(self.route.server.is_reachable(self.route.host), "the connection is dead");
        let is_alive =
            self.route.server.with(|postgres| postgres.restarts == self.restarts && !postgres.is_terminated(self.pid));
        ensure!(is_alive, "terminating connection due to administrator command");
        Ok(())
    }

    /// Puts the next transaction into the events, or the position when there is none.
    fn decode_next(&mut self) {
        self.route.server.with(|postgres| {
            let at = postgres.wal.partition_point(|transaction| transaction.end_lsn <= self.sent);
            if let Some(transaction) = postgres.wal.get(at) {
                let (final_lsn, end_lsn) = (on_wire(transaction.commit_lsn), on_wire(transaction.end_lsn));
                self.sent = transaction.end_lsn;
                self.told = transaction.end_lsn;
                self.events.push_back(ReplicationEvent::Begin { final_lsn, xid: at as u32, commit_time_micros: 0 });
                self.events.push_back(ReplicationEvent::Message {
                    transactional: true,
                    lsn: final_lsn,
                    prefix: MESSAGE_PREFIX.to_owned(),
                    content: encode(&transaction.ops).into(),
                });
                self.events.push_back(ReplicationEvent::Commit { lsn: final_lsn, end_lsn, commit_time_micros: 0 });
            } else if postgres.insert_lsn() > self.told {
                self.told = postgres.insert_lsn();
                let wal_end = on_wire(self.told);
                self.events.push_back(ReplicationEvent::KeepAlive {
                    wal_end,
                    reply_requested: false,
                    server_time_micros: 0,
                });
            }
        });
    }
}

impl Drop for Walsender {
    fn drop(&mut self) {
        self.route.server.with(|postgres| {
            if let Some(name) = &self.exported {
                // A snapshot that a session took over stays with it; the model hands it out at once.
                postgres.snapshots.remove(name);
            }
        });
    }
}

#[async_trait]
impl ChangeStream for Walsender {
    async fn create_slot(&mut self, _: &str) -> Result<(Lsn, String)> {
        self.route.travel().await?;
        self.check()?;
        let created = self.route.server.with(Postgres::create_slot).context("the slot exists")?;
        self.exported = Some(created.1.clone());
        Ok(created)
    }

    async fn start(&mut self) -> Result<()> {
        self.route.travel().await?;
        self.check()?;
        let mut inner = self.route.server.inner.lock();
        // A slot may send again what the reader has had: it goes by its own position.
        let repeats = inner.rng.random_bool(0.5);
        let slot = inner.postgres.slot.as_mut().context("the slot does not exist")?;
        ensure!(slot.active_pid.is_none(), "the slot is active for another session");
        slot.active_pid = Some(self.pid);
        self.sent = if repeats { slot.confirmed } else { slot.confirmed.max(self.start) };
        Ok(())
    }

    async fn recv(&mut self) -> Result<Option<ReplicationEvent>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            self.check()?;
            sleep(self.route.server.delay()).await;
            self.check()?;
            self.decode_next();
            if self.events.is_empty() {
                let wake = self.route.server.with(|postgres| postgres.wake.clone());
                // Woken by new WAL, or in time to find that the connection is dead.
                let _ = timeout(KEEP_ALIVE, wake.notified()).await;
            }
        }
    }

    fn confirm(&self, position: Lsn) {
        self.route.server.with(|postgres| {
            if let Some(slot) = &mut postgres.slot
                && slot.active_pid == Some(self.pid)
            {
                slot.confirmed = slot.confirmed.max(position);
            }
        });
    }
}
