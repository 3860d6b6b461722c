//! Raft around the index: durable log, state machine, snapshots, the network between replicas and the read index.
//!
//! Invariant: what a replica acknowledges to a leader or a candidate is on its disk before it sends the answer. Source:
//! openraft's storage and network (v2) contracts.

mod builder;
pub(crate) mod commit_notices;
pub mod disk_executor;
pub(crate) mod doubt;
pub(crate) mod durable;
pub(crate) mod fault;
pub(crate) mod fingerprint;
pub mod identity;
pub(crate) mod log;
pub(crate) mod log_limit;
pub mod machine;
pub(crate) mod network;
pub mod peers;
pub(crate) mod promises;
pub(crate) mod read_index;
mod request_stream;
pub mod snapshot;
pub mod state;
pub(crate) mod terms;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use mantle_types::{Error, ErrorCode, GroupId, Result};
use openraft::SnapshotPolicy;
use serde::{Deserialize, Serialize};

use crate::{
    config::RaftSettings,
    index::command::{Applied, Command},
};

/// An encoded command, as in the log and on the network. The proposer encodes it once; each replica decodes it once, when it
/// applies it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal(Bytes);

impl Proposal {
    /// Encodes a command.
    pub fn encode(command: &Command) -> Self {
        let bytes = postcard::to_stdvec(command).expect("commands are plain data that postcard can always encode");
        Self(bytes.into())
    }

    /// Decodes the command for a replica that knows the rules up to this one; `internal` if it is of another version.
    pub fn decode(&self, newest_rule: u32) -> Result<Command> {
        let other = |why: &dyn fmt::Display| {
            Error::new(ErrorCode::Internal, format!("a log entry is not a command of this version: {why}"))
        };
        let command: Command = postcard::from_bytes(&self.0).map_err(|e| other(&e))?;
        match command.is_decided_by(newest_rule) {
            true => Ok(command),
            false => Err(other(&"it is decided by a newer rule")),
        }
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    /// CRC-32 of the encoded command.
    fn checksum(&self) -> u32 {
        crc32fast::hash(&self.0)
    }
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposal({} bytes)", self.bytes())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

openraft::declare_raft_types!(
    /// openraft's type parameters: proposals are encoded commands, answers say what was applied.
    pub TypeConfig:
        D = Proposal,
        R = Applied,
);

/// Identifies a replica's log directory, not its address: a wiped replica gets a new one (P22).
pub type NodeId = u64;
/// The Raft handle.
pub type Raft = openraft::Raft<TypeConfig, machine::Machine>;
/// openraft's generic types with our parameters.
pub mod types {
    use openraft::alias;

    use super::TypeConfig;

    /// The position of an entry.
    pub type LogId = alias::LogIdOf<TypeConfig>;
    /// A log entry.
    pub type Entry = alias::EntryOf<TypeConfig>;
    /// A vote: term, node, and whether it is committed.
    pub type Vote = alias::VoteOf<TypeConfig>;
    /// A membership and where it was set.
    pub type StoredMembership = alias::StoredMembershipOf<TypeConfig>;
    /// The last log id and the membership of a snapshot.
    pub type SnapshotMeta = alias::SnapshotMetaOf<TypeConfig>;
    /// A snapshot's metadata and file.
    pub type Snapshot = alias::SnapshotOf<TypeConfig, super::snapshot::SnapshotFile>;
    /// A leader: term and node.
    pub type CommittedLeaderId = alias::CommittedLeaderIdOf<TypeConfig>;
}

/// This fraction (1/n) of a snapshot's entries stays in the log, so that a follower that is a little behind needs no snapshot.
const LOG_KEPT_PART: u64 = 5;
/// Most entries in one append RPC; its bytes are bounded by the log's reader.
const APPEND_ENTRIES_MAX: u64 = 512;
/// Installing a snapshot may take this long.
const SNAPSHOT_TIMEOUT_MS: u64 = 120_000;

/// openraft's configuration from ours. The relations were checked when ours was read.
pub fn openraft_config(group: GroupId, settings: &RaftSettings) -> Result<Arc<openraft::Config>> {
    let entries_kept = settings.snapshot_log_entries / LOG_KEPT_PART;
    let config = openraft::Config {
        cluster_name: format!("mantle-{group}"),
        heartbeat_interval: settings.heartbeat_ms,
        election_timeout_min: settings.election_timeout_ms,
        election_timeout_max: settings.lease().as_millis() as u64,
        install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
        max_payload_entries: APPEND_ENTRIES_MAX,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(settings.snapshot_log_entries),
        max_in_snapshot_log_to_keep: entries_kept,
        replication_lag_threshold: settings.snapshot_log_entries + entries_kept,
        enable_pre_vote: Some(true),
        // The state machine is in memory: a restarted leader that resumed without an election would serve a state that is
        // older than what it had acknowledged.
        enable_leader_restore: Some(false),
        broadcast_submitted_on_append: Some(true),
        backoff: "20ms 50ms 100ms ...500ms".to_owned(),
        ..openraft::Config::default()
    };
    config.validate().map(Arc::new).map_err(|e| Error::new(ErrorCode::InvalidArgument, format!("[raft]: {e}")))
}
