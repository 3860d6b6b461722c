//! What has to hold, one invariant a file. Those about states are asked after every step of a replica, those about
//! answers and ends when the history is over. Each says what is wrong, or nothing.

pub mod acyclic;
pub mod applied_is_prefix;
pub mod applied_survives;
pub mod locks_end;
pub mod monotonic_reads;
pub mod no_lost_entry;
pub mod read_your_writes;

use mantle_indexnode::{
    index::{LockInfo, command::Source},
    node::Node,
    raft::types::LogId,
};
use mantle_types::{Epoch, Lsn, message::DirectoryRecord};

use crate::{network::HostId, upstream::SOURCE};

/// A broken invariant.
pub type Checked = Result<(), String>;

/// A replica's state, as it is after an entry.
pub struct Sample {
    /// Whose.
    pub host: HostId,
    /// Its cluster.
    pub cluster_id: String,
    /// The last entry applied.
    pub applied: LogId,
    /// The index's epoch.
    pub epoch: Epoch,
    /// PostgreSQL, as far as it is applied; nothing without a copy of its directories.
    pub source: Option<Source>,
    /// Nothing of what committed above is applied, not even in part.
    pub reached: Lsn,
    /// The directories, without their namespace.
    pub records: Vec<DirectoryRecord>,
    /// Hash over them.
    pub digest: u64,
    /// Locks held.
    pub locks: Vec<LockInfo>,
}

impl Sample {
    /// Everything committed at or below is applied.
    pub fn applied_lsn(&self) -> Lsn {
        self.source.map_or(Lsn::INVALID, |source| source.applied)
    }

    /// Takes one, if anything is applied.
    pub fn of(host: HostId, node: &Node) -> Option<Self> {
        let state = node.state.read();
        let index = &state.index;
        Some(Self {
            host,
            cluster_id: node.cluster_id.clone(),
            applied: state.applied()?,
            epoch: index.epoch(),
            source: index.source(SOURCE),
            reached: index.reached_lsn(SOURCE),
            records: index.visible_records(),
            digest: index.digest(),
            locks: index.locks(),
        })
    }
}
