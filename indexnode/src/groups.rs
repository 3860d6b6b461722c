//! The replicas of this process, one for each of its groups. Groups share only addresses, settings and the PostgreSQL: each
//! has its own log, leader, members, slot and index.

use std::{collections::BTreeMap, sync::Arc};

use mantle_types::{Error, ErrorCode, GroupId, Result};

use crate::{node::Node, replica::Replica};

/// The replicas of the process by group; at least one.
pub struct Groups {
    replicas: BTreeMap<GroupId, Arc<Replica>>,
}

impl Groups {
    /// Collects the replicas of this process.
    pub fn new(replicas: impl IntoIterator<Item = Arc<Replica>>) -> Arc<Self> {
        let replicas = replicas.into_iter().map(|replica| (replica.group, replica)).collect();
        Arc::new(Self { replicas })
    }

    /// The replica of the group that a request names; [`GroupId::ONLY`] works if there is one group.
    pub fn replica(&self, group: GroupId) -> Result<&Arc<Replica>> {
        let only = || self.replicas.values().next().filter(|_| group == GroupId::ONLY && self.replicas.len() == 1);
        let unknown = || Error::new(ErrorCode::UnknownGroup, format!("this process has no replica of group {group}"));
        self.replicas.get(&group).or_else(only).ok_or_else(unknown)
    }

    /// The running node of a group.
    pub fn node(&self, group: GroupId) -> Result<Arc<Node>> {
        let empty = || Error::new(ErrorCode::IndexUnavailable, "this replica belongs to no cluster yet");
        self.replica(group)?.node().ok_or_else(empty)
    }

    /// All replicas, in the order of their groups.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.replicas.values()
    }
}
