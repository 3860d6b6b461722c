//! The PostgreSQL nodes. Without Citus there is one, the configured node. With Citus each directory's calls go straight
//! to the node that has its partition. Invariant: an old shard map makes calls slower, never wrong. Another node
//! forwards the call, or refuses it with `wrong_node` if the shard moved meanwhile. After a node fails the map is read
//! again, at most twice a second, because Patroni writes a promoted standby there.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mantle_tls::PostgresConnector;
use mantle_types::{ErrorCode, PartitionId, Result};
use parking_lot::{Mutex, RwLock};

use super::{
    database::{Database, Waits},
    rows,
    shards::{Address, ShardMap},
    sql,
};
use crate::config::Postgres;

/// How old a map may grow. Until then, calls for a shard that moved go to its old node.
const MAP_AGE_MAX: Duration = Duration::from_secs(10);
/// How old it must be to be read again because a node failed: the node's standby may have taken over.
const MAP_AGE_MIN: Duration = Duration::from_millis(500);

pub struct Node {
    pub address: Address,
    pub database: Database,
}

struct Known {
    shards: ShardMap,
    read: Instant,
}

pub struct Nodes {
    config: Postgres,
    tls: PostgresConnector,
    application_name: String,
    waits: Waits,
    /// The configured node.
    pub main: Arc<Node>,
    known: RwLock<Option<Arc<Known>>>,
    /// Held while the map is read, so that one caller reads it.
    reading: tokio::sync::Mutex<()>,
    others: Mutex<HashMap<Address, Arc<Node>>>,
    /// Since the map was read, a node that has directories did not answer as a primary.
    suspect: Arc<AtomicBool>,
}

impl Nodes {
    /// Connects at the first statement.
    pub fn new(
        config: &Postgres,
        tls: PostgresConnector,
        application_name: &str,
        waits: Waits,
    ) -> anyhow::Result<Self> {
        let address = Address { host: config.host.clone(), port: config.port };
        let database = Database::new(config, &tls, (application_name, true), waits, Arc::default())?;
        Ok(Self {
            main: Arc::new(Node { address, database }),
            config: config.clone(),
            tls,
            application_name: application_name.to_owned(),
            waits,
            known: RwLock::new(None),
            reading: tokio::sync::Mutex::new(()),
            others: Mutex::new(HashMap::new()),
            suspect: Arc::default(),
        })
    }

    /// For statements about no directory.
    pub fn main(&self) -> &Database {
        &self.main.database
    }

    /// All nodes that have directories, except the configured one.
    pub async fn others(&self) -> Result<Vec<Arc<Node>>> {
        let nodes = self.with_directories().await?;
        Ok(nodes.into_iter().filter(|node| !Arc::ptr_eq(node, &self.main)).collect())
    }

    /// All nodes that have directories.
    pub async fn with_directories(&self) -> Result<Vec<Arc<Node>>> {
        let known = self.current().await?;
        if known.shards.is_empty() {
            return Ok(vec![self.main.clone()]);
        }
        known.shards.nodes().into_iter().map(|address| self.node(address)).collect()
    }

    /// The configured node, then the others.
    pub async fn all(&self) -> Result<Vec<Arc<Node>>> {
        let mut all = vec![self.main.clone()];
        all.extend(self.others().await?);
        Ok(all)
    }

    /// Reads the address of the node that has a partition, as far as is known.
    pub fn at_address_of<T>(&self, pid: PartitionId, read: impl FnOnce(&Address) -> T) -> T {
        let known = self.known.read();
        read(known.as_ref().and_then(|known| known.shards.node_of(pid)).unwrap_or(&self.main.address))
    }

    /// Whether two partitions are on different nodes, as far as is known.
    pub fn are_apart(&self, one: PartitionId, other: PartitionId) -> bool {
        self.at_address_of(one, Address::clone) != self.at_address_of(other, Address::clone)
    }

    /// Whether the configured node has all directories, as far as is known.
    pub async fn is_single(&self) -> Result<bool> {
        Ok(self.current().await?.shards.is_empty())
    }

    /// The node that has a partition.
    pub async fn of(&self, pid: PartitionId) -> Result<Arc<Node>> {
        match self.current().await?.shards.node_of(pid) {
            None => Ok(self.main.clone()),
            Some(address) => self.node(address),
        }
    }

    /// The map, read again when it is old.
    async fn current(&self) -> Result<Arc<Known>> {
        let known = self.known.read().clone();
        let age_max = if self.suspect.load(Ordering::Acquire) { MAP_AGE_MIN } else { MAP_AGE_MAX };
        match known {
            Some(known) if known.read.elapsed() < age_max => Ok(known),
            // Another caller reads it; the old map is good enough.
            Some(known) if self.reading.try_lock().is_err() => Ok(known),
            // The coordinator may be down while the nodes that have directories are up.
            Some(known) => Ok(self.read(Some(known.clone())).await.unwrap_or(known)),
            None => self.read(None).await,
        }
    }

    /// A node failed: the map may have changed.
    pub fn suspect(&self) {
        self.suspect.store(true, Ordering::Release);
    }

    /// Reads the map again, because it was found out of date.
    pub async fn refresh(&self) -> Result<()> {
        let before = self.known.read().clone();
        self.read(before).await.map(drop)
    }

    /// Reads the map unless another caller has since `before`.
    async fn read(&self, before: Option<Arc<Known>>) -> Result<Arc<Known>> {
        let _one = self.reading.lock().await;
        let now = self.known.read().clone();
        if let Some(now) = now
            && before.is_none_or(|before| before.read != now.read)
        {
            return Ok(now);
        }
        // A failure from here on may be newer than the map.
        self.suspect.store(false, Ordering::Release);
        let rows = match self.main().query(&sql::SHARD_MAP, &[], false).await {
            // An older version of the extension has one node.
            Err(error) if error.code() == ErrorCode::NotImplemented => Vec::new(),
            answer => answer?,
        };
        let shard = |row| {
            let port = self.config.node_port.map_or_else(|| rows::get::<i32>(row, "port").map(|p| p as u16), Ok)?;
            Ok((rows::get(row, "hash_from")?, Address { host: rows::get(row, "host")?, port }))
        };
        let shards = ShardMap::new(rows.iter().map(shard).collect::<Result<_>>()?);
        let known = Arc::new(Known { shards, read: Instant::now() });
        *self.known.write() = Some(known.clone());
        Ok(known)
    }

    fn node(&self, address: &Address) -> Result<Arc<Node>> {
        if *address == self.main.address {
            return Ok(self.main.clone());
        }
        let mut others = self.others.lock();
        if let Some(node) = others.get(address) {
            return Ok(node.clone());
        }
        let config = Postgres { host: address.host.clone(), port: address.port, ..self.config.clone() };
        let named = (&*self.application_name, false);
        let database = Database::new(&config, &self.tls, named, self.waits, self.suspect.clone());
        let database = database.map_err(|cause| {
            tracing::error!(host = address.host, port = address.port, %cause, "no pool for a node");
            ErrorCode::Internal
        })?;
        let node = Arc::new(Node { address: address.clone(), database });
        others.insert(address.clone(), node.clone());
        Ok(node)
    }
}

#[cfg(test)]
mod tests;
