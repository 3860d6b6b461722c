//! Where verbs are called: one plain PostgreSQL, or a Citus cluster of a coordinator and two workers.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    cpu::Server,
    sql::{Call, Counters, Session, Signer, Verbs},
};

/// Clients, each on a session of its own.
pub const CLIENTS: usize = 4;
/// Ids for a whole run: more than any machine of today makes in it.
const IDS: i64 = 1 << 24;
/// Directories to choose from, in batches.
const DIRECTORIES: i64 = 1536;
const BATCH: i64 = 512;
const SETTLE_LOOK: Duration = Duration::from_millis(50);
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// A session with its verbs.
pub struct Client {
    session: Session,
    verbs: Verbs,
}

impl Client {
    async fn several(url: &str) -> Result<Vec<Self>> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let session = Session::connect(url).await?;
            clients.push(Self { verbs: session.prepare_verbs().await?, session });
        }
        Ok(clients)
    }
}

/// A database.
pub struct Site {
    /// On each server, the first's first.
    admins: Vec<Session>,
    /// By server.
    clients: Vec<Vec<Client>>,
    /// Its servers' processes.
    pub servers: Vec<Server>,
    /// Its namespace.
    ns: i64,
    /// Signs directory renames, as the index would.
    pub signer: Signer,
    /// Processors that its servers take idle.
    pub idle: f64,
    next_id: AtomicI64,
    /// Directories nobody has used yet, by the server that has them: of a cluster the workers, in both places of a plain one.
    unused: [Vec<i64>; 2],
}

impl Site {
    /// A plain PostgreSQL's one URL, or a cluster's: the coordinator's and two workers'.
    pub async fn new(urls: &[String]) -> Result<Self> {
        let (mut admins, mut clients, mut servers) = (Vec::new(), Vec::new(), Vec::new());
        for url in urls {
            let admin = Session::connect(url).await?;
            servers.push(Server::of_child(admin.server_process().await?)?);
            admins.push(admin);
            clients.push(Client::several(url).await?);
        }
        let first = &admins[0];
        let ns = first.allocate_ids(1).await?;
        first.create_namespace("bench-citus", ns).await?;
        let (signer, next_id) = (Signer::new(first).await?, first.allocate_ids(IDS).await?.into());
        let mut site = Self { admins, clients, servers, ns, signer, idle: 0.0, next_id, unused: Default::default() };
        site.make_directories().await?;
        Ok(site)
    }

    /// Has it shards?
    pub fn is_cluster(&self) -> bool {
        self.admins.len() > 1
    }

    async fn make_directories(&mut self) -> Result<()> {
        let first = self.ids(DIRECTORIES);
        let all: Vec<i64> = (first..).take(DIRECTORIES as usize).collect();
        for batch in all.chunks(BATCH as usize) {
            self.admins[0].mkdirs(crate::sql::Store::Mantle, self.ns, self.ns, batch).await?;
        }
        if self.is_cluster() {
            for worker in 0..2 {
                self.unused[worker] = self.admins[1 + worker].local(&all).await?;
            }
        } else {
            let (one, other) = all.split_at(all.len() / 2);
            self.unused = [one.to_vec(), other.to_vec()];
        }
        Ok(())
    }

    /// The first of so many new ids.
    pub fn ids(&self, count: i64) -> i64 {
        self.next_id.fetch_add(count, Ordering::Relaxed)
    }

    /// A directory of its own for somebody, on this worker.
    pub fn directory(&mut self, worker: usize) -> Result<i64> {
        ensure!(!self.unused[worker].is_empty(), "no directory is left on worker {worker}");
        Ok(self.unused[worker].pop().unwrap_or_default())
    }

    /// Calls as a client that is connected to this server, from 0.
    pub async fn call(&self, server: usize, client: usize, call: &Call<'_>) -> Result<()> {
        let Client { session, verbs } = &self.clients[server][client];
        session.call(verbs, self.ns, call).await
    }

    /// What Citus has counted on all nodes.
    pub async fn counters(&self) -> Result<Counters> {
        let mut all = Counters::default();
        if self.is_cluster() {
            for admin in &self.admins {
                let of = admin.counters().await?;
                all.statements += of.statements;
                all.connections += of.connections;
            }
        }
        Ok(all)
    }

    /// The first server's session, to ask it about itself.
    pub fn admin(&self) -> &Session {
        &self.admins[0]
    }

    /// Waits until no delta record is left: what one way put off should not be another's burden.
    pub async fn settle(&self) -> Result<()> {
        let started = Instant::now();
        while self.admins[0].deltas().await? > 0 {
            ensure!(started.elapsed() < SETTLE_MAX, "delta records are left {SETTLE_MAX:?} after the last change");
            tokio::time::sleep(SETTLE_LOOK).await;
        }
        Ok(())
    }
}
