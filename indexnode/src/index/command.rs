//! What the Raft log holds: the commands that change the index, and what applying one answers.
//!
//! A command carries everything its effect depends on: applying is a pure function of the index and the command, so every
//! replica comes to the same state. Clocks stay outside: only the leader looks at one.

use mantle_types::{
    Caller, DirectoryId, Epoch, Error, Lsn, NamespaceId, PartitionId, RequestKey,
    message::{DirectoryOp, DirectoryRecord},
};
use serde::{Deserialize, Serialize};

/// A PostgreSQL node whose slot feeds the group. Positions of two sources are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(pub u32);

/// One committed transaction of the change stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTransaction {
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// Its operations, in the order they were emitted.
    pub ops: Vec<DirectoryOp>,
}

/// One entry of the Raft log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// What arrived from a source since the last entry, in commit order. Transactions at or below the source's applied
    /// LSN are dropped (PROTOCOLS 4).
    Stream {
        /// Which source.
        source: SourceId,
        /// The transactions.
        transactions: Vec<StreamTransaction>,
        /// Everything that the source committed below this position is in this entry or an earlier one.
        position: Lsn,
    },
    /// Resolve, check for loops, and lock the source of a directory rename (PROTOCOLS 20, 23).
    Prepare(Prepare),
    /// Unlock an attempt that can no longer commit: its abort record is in PostgreSQL.
    Release {
        /// Whose lock.
        request: RequestKey,
        /// Which attempt.
        attempt: u64,
    },
    /// Begin to rebuild from PostgreSQL, beside the serving index. Prepares are refused until it ends.
    RebuildBegin {
        /// The epoch that was raised for it.
        epoch: Epoch,
        /// `pg_control_system().system_identifier` of the source.
        system_identifier: u64,
        /// Its timeline.
        timeline: u32,
    },
    /// A part of the initial copy, in any order.
    RebuildChunk {
        /// Directories, parents not necessarily first.
        records: Vec<DirectoryRecord>,
    },
    /// The copy is complete as of the slot's consistent point: swap it in. (With several sources: all slots are created
    /// before the first copy; this names the first source, a [`Command::Horizon`] then all; and of what the others
    /// committed between slot and copy only the removals are sent.)
    RebuildEnd {
        /// Which source.
        source: SourceId,
        /// Transactions with a commit LSN below this are in the copy, later ones will come by the stream.
        consistent_point: Lsn,
    },
    /// Names the sources of the group (those not named are none any more), and how long removed directories are
    /// remembered: the removals at or before log index `after` until each source has been applied up to its position.
    /// A group with one source does without; one with several is told of all before the first streams (PROTOCOLS 1).
    Horizon {
        /// Log index that was applied when the positions were sampled.
        after: u64,
        /// The flush position of every source, sampled then.
        positions: Vec<(SourceId, Lsn)>,
    },
}

/// A request to lock a directory for renaming.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The client's request; `ns` is filled in when applied.
    pub request: RequestKey,
    /// The namespace's name.
    pub namespace: String,
    /// Components of the directory to move; at least one.
    pub source: Vec<String>,
    /// Components of its new path; at least one, but for a removal.
    pub destination: Vec<String>,
    /// Who asks; needs write permission on both parents and search permission on the way. For a removal: write permission
    /// on the parent and on the directory itself.
    pub caller: Caller,
    /// May an empty directory at the destination be replaced?
    pub overwrite: bool,
    /// Move it into the trash ([`DirectoryId::TRASH`]) instead of to `destination`, which then does not matter.
    pub remove: bool,
    /// How long the lock is held before the leader may abort the attempt, in milliseconds.
    pub lock_ms: u32,
}

/// A rename that may go on to PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedRename {
    /// Log index of the prepare.
    pub attempt: u64,
    /// Epoch to be checked by the rename's transaction.
    pub epoch: Epoch,
    /// The namespace.
    pub ns: NamespaceId,
    /// Where the source is.
    pub source_pid: PartitionId,
    /// The directory that is locked.
    pub source_id: DirectoryId,
    /// Its record version.
    pub source_version: u64,
    /// Where it is to go.
    pub destination_pid: PartitionId,
    /// The empty directory there that is to be replaced, if any.
    pub victim: Option<DirectoryId>,
}

/// What applying a command answers to its proposer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Applied {
    /// Nothing to say.
    Done,
    /// The answer to a [`Command::Prepare`].
    Prepared(Result<PreparedRename, Error>),
}
