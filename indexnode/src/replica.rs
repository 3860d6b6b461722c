//! One group's replica in this process, through all its incarnations.

use std::sync::Arc;

use mantle_types::GroupId;
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
    readiness::Readiness,
};

/// One group's replica: what the services of this process share of it.
pub struct Replica {
    pub(crate) group: GroupId,
    pub(crate) config: Arc<Config>,
    pub(crate) database: Database,
    dial: Arc<dyn Dial>,
    pub(crate) disk: DiskExecutor,
    pub(crate) readiness: Readiness,
    current: RwLock<(Identity, Option<Arc<Node>>)>,
}

impl Replica {
    /// A replica without a running node.
    pub fn new(
        config: Arc<Config>,
        group: GroupId,
        identity: Identity,
        database: Database,
        dial: Arc<dyn Dial>,
        disk: DiskExecutor,
    ) -> Arc<Self> {
        let (readiness, current) = (Readiness::default(), RwLock::new((identity, None)));
        Arc::new(Self { group, config, database, dial, disk, readiness, current })
    }

    /// The identity of the data directory, and the node while one runs.
    pub fn current(&self) -> (Identity, Option<Arc<Node>>) {
        self.current.read().clone()
    }

    /// The node, while one runs.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.current.read().1.clone()
    }

    /// New connections to the other replicas.
    pub(crate) fn peers(&self) -> Peers {
        Peers::new(self.dial.clone())
    }

    pub(crate) fn set(&self, identity: &Identity, node: Option<Arc<Node>>) {
        *self.current.write() = (identity.clone(), node);
    }
}
