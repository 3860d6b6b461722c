//! The model of PostgreSQL behind the traits through which a leader reaches the real one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use mantle_indexnode::{
    index::{Entry, command::SourceId},
    postgres::upstream::{
        Assigned, Assignment, ChangeStream, Database, Incarnation, IndexGroup, MovePhase, NewSlot, ReplicaProblem,
        Sampler, Server as Identity, Session, Slot, StandbyFlush, Statements, Upstream, Walsender,
    },
    progress::RebuildProgress,
};
use mantle_types::{
    DirectoryId, Epoch, Lsn, NamespaceId, RequestKey,
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
    answers::Position,
    host::GROUP,
    network::HostId,
    postgres::{Postgres, ROOT, SLOT, SlotAfter},
};

/// How long a statement waits for a server that does not answer.
const NO_ANSWER: Duration = Duration::from_secs(5);
const EPOCH_LEASE: Duration = Duration::from_secs(4);
const KEEP_ALIVE: Duration = Duration::from_millis(300);
/// The model is one node without workers.
pub const SOURCE: SourceId = SourceId(0);
const ASSIGNED: Assigned = Assigned { ns: NamespaceId(ROOT.0), is_served: true, phase: None, moves: 0 };
const COPY_CHUNK: usize = 7;
const COMMIT_POLL: Duration = Duration::from_millis(1);

struct Inner {
    postgres: Postgres,
    rng: StdRng,
    /// Hosts that cannot reach it.
    unreachable: Vec<HostId>,
}

/// PostgreSQL as all hosts see it; clones share it.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Mutex<Inner>>,
}

impl Server {
    /// A server with one empty namespace. `is_protected`: its commits wait for a standby.
    pub fn new(seed: u64, is_protected: bool) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ 0x706f_7374_6772_6573);
        let inner = Inner { postgres: Postgres::new(is_protected), rng, unreachable: Vec::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Reads or changes the model.
    pub fn with<T>(&self, work: impl FnOnce(&mut Postgres) -> T) -> T {
        work(&mut self.inner.lock().postgres)
    }

    /// Advances by a millisecond.
    pub fn tick(&self) {
        let inner = &mut *self.inner.lock();
        inner.postgres.tick(&mut inner.rng);
    }

    /// Promotes the standby. Returns where the timelines part.
    pub fn fail_over(&self, slot: SlotAfter) -> Lsn {
        let inner = &mut *self.inner.lock();
        inner.postgres.fail_over(slot, &mut inner.rng)
    }

    /// Waits as a commit does for the standby. `false`: the commit is lost.
    pub async fn commit_survives(&self, position: Position) -> bool {
        loop {
            if let Some(is_durable) = self.with(|postgres| postgres.is_durable(position)) {
                return is_durable;
            }
            sleep(COMMIT_POLL).await;
        }
    }

    /// Cuts a host off, or reconnects it.
    pub fn set_reachable(&self, host: HostId, is_reachable: bool) {
        let mut inner = self.inner.lock();
        inner.unreachable.retain(|h| *h != host);
        if !is_reachable {
            inner.unreachable.push(host);
        }
    }

    /// The connection of a host's replica.
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
    /// A round trip; the request or the answer may be lost.
    async fn round_trip(&self) -> Result<()> {
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
    fn at(&self, _: &str, _: u16) -> Database {
        unreachable!("mantle.index_sources names no other node")
    }

    async fn connect(&self) -> Result<Session> {
        self.round_trip().await?;
        let restarts = self.server.with(|postgres| postgres.restarts);
        Ok(Arc::new(Connection { route: self.clone(), restarts }))
    }

    async fn walsender(&self, slot: &str, start: Lsn) -> Result<Box<dyn Walsender>> {
        ensure!(slot == SLOT, "slot {slot} is not known");
        self.round_trip().await?;
        let (pid, restarts) = self.server.with(|postgres| (postgres.new_pid(), postgres.restarts));
        let (sent, reported) = (Lsn::INVALID, Lsn::INVALID);
        Ok(Box::new(ModelWalsender {
            route: self.clone(),
            pid,
            restarts,
            start,
            sent,
            reported,
            exported: None,
            events: VecDeque::new(),
        }))
    }

    async fn sampler(&self) -> Result<Box<dyn Sampler>> {
        self.round_trip().await?;
        let restarts = self.server.with(|postgres| postgres.restarts);
        Ok(Box::new(Connection { route: self.clone(), restarts }))
    }
}

/// A session for statements.
struct Connection {
    route: Route,
    restarts: u64,
}

impl Connection {
    async fn run<T>(&self, statement: impl FnOnce(&mut Postgres) -> T + Send) -> Result<T> {
        self.route.round_trip().await?;
        let result = self.route.server.with(|postgres| {
            let is_alive = postgres.restarts == self.restarts;
            is_alive.then(|| statement(postgres))
        });
        let result = result.context("the session ended")?;
        // The answer may be lost although the statement ran.
        self.route.round_trip().await?;
        Ok(result)
    }

    /// A statement that writes: it returns when the standby has its WAL.
    async fn write<T: Send>(&self, statement: impl FnOnce(&mut Postgres) -> T + Send) -> Result<T> {
        let (result, position) = self.run(|postgres| (statement(postgres), postgres.position())).await?;
        let is_durable = self.route.server.commit_survives(position).await;
        let is_alive = self.route.server.with(|postgres| postgres.restarts == self.restarts);
        ensure!(is_durable && is_alive, "the session ended in a commit");
        Ok(result)
    }
}

fn incarnation(postgres: &Postgres) -> Incarnation {
    Incarnation { lineage: postgres.lineage(), started_us: postgres.restarts as i64 }
}

#[async_trait]
impl Sampler for Connection {
    async fn sample(&mut self) -> Result<(Incarnation, Lsn)> {
        self.run(|postgres| (incarnation(postgres), postgres.insert_lsn())).await
    }
}

#[async_trait]
impl Statements for Connection {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.run(|postgres| incarnation(postgres)).await
    }

    async fn held_up_by(&self, _age: Duration) -> Result<Vec<String>> {
        self.run(|_| Vec::new()).await
    }

    async fn sources(&self) -> Result<Vec<(SourceId, Option<(String, u16)>)>> {
        self.run(|_| vec![(SOURCE, None)]).await
    }

    async fn directories_after(&self, id: DirectoryId, count: usize) -> Result<Vec<(DirectoryId, NamespaceId)>> {
        let after = |postgres: &mut Postgres| {
            let ids = postgres.tree().records().map(|record| (record.id, record.ns));
            ids.filter(|(other, _)| *other > id).take(count).collect()
        };
        self.run(after).await
    }

    async fn directories(&self, ids: &[DirectoryId]) -> Result<Vec<(Entry, NamespaceId)>> {
        let tree = self.run(|postgres| postgres.tree().clone()).await?;
        let entry =
            |r: &DirectoryRecord| (Entry { id: r.id, pid: r.pid, name: r.name.clone(), version: r.version }, r.ns);
        // Like `id = ANY`: each row once.
        Ok(tree.records().filter(|record| ids.contains(&record.id)).map(entry).collect())
    }

    async fn namespaces(&self) -> Result<Vec<Assigned>> {
        self.run(|_| vec![ASSIGNED]).await
    }

    async fn trash_namespaces(&self) -> Result<Vec<NamespaceId>> {
        self.run(|_| Vec::new()).await
    }

    async fn assignments(&self, namespaces: &[NamespaceId]) -> Result<Vec<Assignment>> {
        let assignment = |ns: &NamespaceId| Assignment { ns: *ns, group: GROUP, has_moved: false };
        self.run(|_| namespaces.iter().map(assignment).collect()).await
    }

    async fn assignment_changes(&self) -> Result<i64> {
        self.run(|_| 0).await
    }

    async fn advance_move(&self, _: NamespaceId, _: MovePhase) -> Result<bool> {
        unreachable!("the only group has nowhere to move a namespace to")
    }

    async fn flushed(&self) -> Result<Lsn> {
        self.run(|postgres| postgres.insert_lsn()).await
    }

    async fn standby_flush(&self) -> Result<StandbyFlush> {
        self.run(|postgres| {
            let is_required = postgres.standby.is_required;
            StandbyFlush { is_required, flushed: is_required.then(|| postgres.standby.reported()).flatten() }
        })
        .await
    }

    async fn cut(&self) -> Result<Lsn> {
        unreachable!("the only source exports a snapshot")
    }

    async fn epoch_lease(&self) -> Result<Duration> {
        Ok(EPOCH_LEASE)
    }

    async fn index_group(&self) -> Result<IndexGroup> {
        self.run(|postgres| {
            let (epoch, cluster_id) = postgres.group();
            IndexGroup { epoch, cluster_id, slot_name: SLOT.to_owned() }
        })
        .await
    }

    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>> {
        self.write(|postgres| postgres.raise_epoch(expected, cluster_id)).await
    }

    async fn prepare_key(&self) -> Result<Option<Vec<u8>>> {
        self.run(|_| Some(b"key".to_vec())).await
    }

    async fn report_replicas(&self, _: &[ReplicaProblem]) -> Result<()> {
        self.run(|_| ()).await
    }

    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool> {
        self.write(|postgres| postgres.abort_rename(request, attempt)).await
    }

    async fn slot(&self, _: &str) -> Result<Option<Slot>> {
        self.run(|postgres| {
            let slot = postgres.slot.as_ref()?;
            Some(Slot { active_pid: slot.active_pid, is_lost: false, confirmed: slot.confirmed })
        })
        .await
    }

    async fn slots_are_bounded(&self) -> Result<bool> {
        self.run(|_| true).await
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

    async fn copy_directories(
        &self,
        snapshot: Option<&str>,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        _: &RebuildProgress,
    ) -> Result<(Vec<Assigned>, u64)> {
        let snapshot = snapshot.context("a copy without a snapshot")?;
        let tree = self.run(|postgres| postgres.snapshots.get(snapshot).cloned()).await?;
        let tree = tree.context("the snapshot is gone")?;
        let records: Vec<_> = tree.records().cloned().collect();
        for chunk in records.chunks(COPY_CHUNK) {
            self.run(|_| ()).await?;
            ensure!(chunks.send(chunk.to_vec()).await.is_ok(), "the copy was given up");
        }
        Ok((vec![ASSIGNED], records.len() as u64))
    }

    async fn copy_namespace(
        &self,
        _: NamespaceId,
        _: mpsc::Sender<Vec<DirectoryRecord>>,
        _: &RebuildProgress,
    ) -> Result<u64> {
        unreachable!("the only group has no namespace to come from elsewhere")
    }
}

/// A replication connection.
struct ModelWalsender {
    route: Route,
    pid: i32,
    restarts: u64,
    start: Lsn,
    /// Transactions that end at or below this were sent.
    sent: Lsn,
    /// The last position that the reader received.
    reported: Lsn,
    exported: Option<String>,
    events: VecDeque<ReplicationEvent>,
}

fn on_wire(lsn: Lsn) -> pgwire_replication::Lsn {
    pgwire_replication::Lsn(lsn.0)
}

impl ModelWalsender {
    fn check(&self) -> Result<()> {
        ensure!(self.route.server.is_reachable(self.route.host), "the connection is dead");
        let is_alive =
            self.route.server.with(|postgres| postgres.restarts == self.restarts && !postgres.is_terminated(self.pid));
        ensure!(is_alive, "terminating connection due to administrator command");
        Ok(())
    }

    fn take_slot(&mut self) -> Result<()> {
        let mut inner = self.route.server.inner.lock();
        // A slot may send again what the reader has: the reader goes by its own position.
        let repeats = inner.rng.random_bool(0.5);
        let slot = inner.postgres.slot.as_mut().context("the slot does not exist")?;
        ensure!(slot.active_pid.is_none(), "the slot is active for another session");
        slot.active_pid = Some(self.pid);
        self.sent = if repeats { slot.confirmed } else { slot.confirmed.max(self.start) };
        Ok(())
    }

    /// Queues the next transaction as events, or the position if there is none.
    fn decode_next(&mut self) {
        self.route.server.with(|postgres| {
            let wal = postgres.timelines.wal();
            let at = wal.partition_point(|transaction| transaction.end_lsn <= self.sent);
            if let Some(transaction) = wal.get(at) {
                // All operations of a large transaction.
                let of_it = wal[at..].iter().take_while(|other| other.end_lsn == transaction.end_lsn);
                let ops: Vec<_> = of_it.flat_map(|step| step.ops.iter().cloned()).collect();
                let (final_lsn, end_lsn) = (on_wire(transaction.commit_lsn), on_wire(transaction.end_lsn));
                self.sent = transaction.end_lsn;
                self.reported = transaction.end_lsn;
                self.events.push_back(ReplicationEvent::Begin { final_lsn, xid: at as u32, commit_time_micros: 0 });
                self.events.push_back(ReplicationEvent::Message {
                    transactional: true,
                    lsn: final_lsn,
                    prefix: MESSAGE_PREFIX.to_owned(),
                    content: encode(&ops).into(),
                });
                self.events.push_back(ReplicationEvent::Commit { lsn: final_lsn, end_lsn, commit_time_micros: 0 });
            } else if postgres.insert_lsn() > self.reported {
                self.reported = postgres.insert_lsn();
                let wal_end = on_wire(self.reported);
                self.events.push_back(ReplicationEvent::KeepAlive {
                    wal_end,
                    reply_requested: false,
                    server_time_micros: 0,
                });
            }
        });
    }
}

impl Drop for ModelWalsender {
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
impl Walsender for ModelWalsender {
    async fn server(&mut self) -> Result<Identity> {
        self.route.round_trip().await?;
        self.check()?;
        Ok(self.route.server.with(|postgres| Identity {
            lineage: postgres.lineage(),
            started_us: postgres.restarts as i64,
            flushed: postgres.insert_lsn(),
            switch_points: postgres.timelines.switch_points(),
        }))
    }

    async fn create_slot(&mut self, _limit: Duration) -> Result<NewSlot> {
        self.route.round_trip().await?;
        self.check()?;
        let created = self.route.server.with(Postgres::create_slot).context("the slot exists")?;
        let (consistent_point, snapshot) = created;
        self.exported = Some(snapshot.clone());
        Ok(NewSlot { consistent_point, snapshot })
    }

    async fn start(mut self: Box<Self>) -> Result<Box<dyn ChangeStream>> {
        self.route.round_trip().await?;
        self.check()?;
        self.take_slot()?;
        Ok(self)
    }
}

#[async_trait]
impl ChangeStream for ModelWalsender {
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
