//! The database that is measured: one plain PostgreSQL, or a Citus cluster of a coordinator and two workers.

use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result};
use futures::future::try_join_all;

use crate::{
    cpu::Server,
    sql::{Call, Session, Signer, Verbs},
};

pub const CLIENTS: usize = 4;
/// Ids for a whole run; no machine uses them up.
const IDS: i64 = 1 << 24;
/// Directories that are made at the start, in batches.
const DIRECTORIES: i64 = 1536;
const BATCH: i64 = 512;

pub struct Deployment {
    /// A superuser's session on each server; the coordinator's is the first.
    admins: Vec<Session>,
    /// By server, then by client.
    clients: Vec<Vec<(Session, Verbs)>>,
    pub servers: Vec<Server>,
    ns: i64,
    /// Signs directory renames in place of the index.
    pub signer: Signer,
    /// Processors that the servers use without any client.
    pub idle: f64,
    next_id: AtomicI64,
    /// Unused directories by worker. A plain PostgreSQL has them in two parts, as if it were two workers.
    unused: [Vec<i64>; 2],
}

impl Deployment {
    /// Connects. `urls` has the plain PostgreSQL's only URL, or those of the coordinator and of two workers.
    pub async fn new(urls: &[String]) -> Result<Self> {
        let (mut admins, mut clients, mut servers) = (Vec::new(), Vec::new(), Vec::new());
        for url in urls {
            let admin = Session::connect(url).await?;
            servers.push(Server::of_child(admin.server_process().await?)?);
            admins.push(admin);
            let sessions = Session::several(url, CLIENTS).await?;
            let verbs = try_join_all(sessions.iter().map(Session::prepare_verbs)).await?;
            clients.push(sessions.into_iter().zip(verbs).collect());
        }
        let first = &admins[0];
        let ns = first.allocate_ids(1).await?;
        first.create_namespace("bench-citus", ns).await?;
        let (signer, next_id) = (Signer::new(first).await?, first.allocate_ids(IDS).await?.into());
        let mut deployment =
            Self { admins, clients, servers, ns, signer, idle: 0.0, next_id, unused: Default::default() };
        deployment.make_directories().await?;
        Ok(deployment)
    }

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

    /// Takes `count` new ids; answers the first.
    pub fn ids(&self, count: i64) -> i64 {
        self.next_id.fetch_add(count, Ordering::Relaxed)
    }

    /// Takes an unused directory on this worker.
    pub fn directory(&mut self, worker: usize) -> Result<i64> {
        self.unused[worker].pop().with_context(|| format!("no directory is left on worker {worker}"))
    }

    /// Calls as a client (from 0) that is connected to this server (from 0).
    pub async fn call(&self, server: usize, client: usize, call: &Call<'_>) -> Result<()> {
        let (session, verbs) = &self.clients[server][client];
        session.call(verbs, self.ns, call).await
    }

    /// The sums of Citus' counters over all nodes.
    pub async fn counters(&self) -> Result<[i64; 2]> {
        if !self.is_cluster() {
            return Ok([0; 2]);
        }
        let nodes = try_join_all(self.admins.iter().map(Session::counters)).await?;
        Ok([0, 1].map(|at| nodes.iter().map(|of| of[at]).sum()))
    }

    /// A superuser's session on the plain PostgreSQL or the coordinator.
    pub fn admin(&self) -> &Session {
        &self.admins[0]
    }
}
