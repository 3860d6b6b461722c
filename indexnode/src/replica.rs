//! One group's replica in this process, through all its incarnations: what the services share of it.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    config::Config,
    node::Node,
    postgres::upstream::Database,
    raft::{
        disk_executor::DiskExecutor,
        identity::Identity,
        peers::{Dial, Peers},
    },
};

/// One group's replica: what the services of this process share of it.
pub struct Replica {
    /// The group.
    pub group: u64,
    /// The configuration.
    pub config: Arc<Config>,
    /// PostgreSQL.
    pub database: Database,
    dial: Arc<dyn Dial>,
    /// Where work that waits for the disk runs.
    pub disk: DiskExecutor,
    current: RwLock<(Identity, Option<Arc<Node>>)>,
}

impl Replica {
    /// One that does not run yet.
    pub fn new(
        config: Arc<Config>,
        group: u64,
        identity: Identity,
        database: Database,
        dial: Arc<dyn Dial>,
        disk: DiskExecutor,
    ) -> Arc<Self> {
        Arc::new(Self { group, config, database, dial, disk, current: RwLock::new((identity, None)) })
    }

    /// The identity of the folder, and the node while one runs.
    pub fn current(&self) -> (Identity, Option<Arc<Node>>) {
        self.current.read().clone()
    }

    /// The node, while one runs.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.current.read().1.clone()
    }

    /// Ways to other replicas, none of them used yet.
    pub(crate) fn peers(&self) -> Peers {
        Peers::new(self.dial.clone())
    }

    pub(crate) fn set(&self, identity: &Identity, node: Option<Arc<Node>>) {
        *self.current.write() = (identity.clone(), node);
    }
}
