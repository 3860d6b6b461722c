//! The invariants, one a file. Those about states run after every step of a replica; those about answers and about the end run
//! when the history is over. An error says what is wrong.

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

/// The result of a check; an error describes the violation.
pub type CheckResult = Result<(), String>;

/// A replica's state after an entry.
pub struct Sample {
    pub host: HostId,
    pub cluster_id: String,
    /// The last applied entry.
    pub applied: LogId,
    pub epoch: Epoch,
    /// PostgreSQL, with the applied position. `None` without a copy of its directories.
    pub source: Option<Source>,
    /// No commit above this LSN is applied, not even in part.
    pub reached: Lsn,
    /// The directories without their namespace.
    pub records: Vec<DirectoryRecord>,
    /// The index's digest of the directories.
    pub digest: u64,
    pub locks: Vec<LockInfo>,
}

impl Sample {
    /// Everything that committed at or below this LSN is applied.
    pub fn applied_lsn(&self) -> Lsn {
        self.source.map_or(Lsn::INVALID, |source| source.applied)
    }

    /// Tells whether another replica has the same state.
    pub fn is_equal(&self, other: &Self) -> bool {
        (self.applied, self.epoch, self.digest) == (other.applied, other.epoch, other.digest)
    }

    /// The state of a node that has applied something.
    pub fn of(host: HostId, node: &Node) -> Option<Self> {
        let state = node.state.read();
        let index = &state.index;
        Some(Self {
            host,
            cluster_id: node.cluster_id.clone(),
            applied: state.applied?,
            epoch: index.epoch(),
            source: index.source(SOURCE),
            reached: index.reached_lsn(SOURCE),
            records: index.visible_records(),
            digest: index.digest(),
            locks: index.locks(),
        })
    }
}
