//! The groups that this process has a replica of. They share addresses, settings and one PostgreSQL, and nothing else: each
//! has its own log, leader, members, slot and index.

use std::{collections::BTreeMap, sync::Arc};

use mantle_types::{Error, ErrorCode, Result};

use crate::{node::Node, replica::Replica};

/// Replicas by the group that each belongs to; at least one.
pub struct Groups {
    replicas: BTreeMap<u64, Arc<Replica>>,
}

impl Groups {
    /// All replicas of this process.
    pub fn new(replicas: impl IntoIterator<Item = Arc<Replica>>) -> Arc<Self> {
        let replicas = replicas.into_iter().map(|replica| (replica.group, replica)).collect();
        Arc::new(Self { replicas })
    }

    /// The replica of a group that a request names. 0, of a client that knows no groups: of the only one.
    pub fn replica(&self, group: u32) -> Result<&Arc<Replica>> {
        let only = || self.replicas.values().next().filter(|_| group == 0 && self.replicas.len() == 1);
        let unknown = || Error::new(ErrorCode::UnknownGroup, format!("this process has no replica of group {group}"));
        self.replicas.get(&u64::from(group)).or_else(only).ok_or_else(unknown)
    }

    /// Its node, while one runs.
    pub fn node(&self, group: u32) -> Result<Arc<Node>> {
        let empty = || Error::new(ErrorCode::IndexUnavailable, "this replica belongs to no cluster yet");
        self.replica(group)?.node().ok_or_else(empty)
    }

    /// All of them, in the order of their groups.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.replicas.values()
    }
}
