//! What the Raft log holds: the commands that change the index, and what applying one answers.
//!
//! A command carries everything its effect depends on: applying is a pure function of the index and the command, so every
//! replica comes to the same state. Clocks stay outside: only the leader looks at one.

use mantle_types::{
    Caller, DirectoryId, Epoch, Error, Lineage, Lsn, NamespaceId, PartitionId, RequestKey,
    message::{DirectoryOp, DirectoryRecord},
};
use serde::{Deserialize, Serialize};

/// A PostgreSQL node whose slot feeds the group. Positions of two sources are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(pub u32);

/// What a source is, and how far the index has come in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Whose LSNs these are.
    pub lineage: Lineage,
    /// All commits at or below are applied.
    pub applied: Lsn,
    /// What committed below is in the initial copy: of such a transaction only the removals are applied. Its puts may be
    /// older than a removal that another source committed before its slot was made.
    pub copied: Lsn,
}

/// What the group may do with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceState {
    /// Its directories are being copied from PostgreSQL, beside those that are served. Changes are applied.
    Copying,
    /// All that another group serves of it is here: lookups may be answered. That group prepares its renames.
    Ready,
    /// Lookups are answered and renames prepared.
    Serving,
    /// Another group serves it: its directories are being forgotten. Nothing comes in any more.
    Leaving,
}

impl NamespaceState {
    /// May lookups be answered?
    pub fn answers(self) -> bool {
        matches!(self, Self::Ready | Self::Serving)
    }
}

/// Where the stream of a source begins after an initial copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStart {
    /// Which source.
    pub source: SourceId,
    /// Whose LSNs these are.
    pub lineage: Lineage,
    /// The slot sends the transactions with a commit LSN at or above this.
    pub consistent_point: Lsn,
    /// A position at which all slots existed, and below which the copy has everything; not below `consistent_point`, and
    /// equal to it where the slot exported the copy's snapshot.
    pub copied: Lsn,
}

/// What arrived from a source since the last entry, in commit order. Transactions at or below the source's applied LSN are
/// dropped (P4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceBatch {
    /// Which source.
    pub source: SourceId,
    /// The transactions.
    pub transactions: Vec<StreamTransaction>,
    /// Everything that the source committed below this position is in this entry or an earlier one.
    pub position: Lsn,
}

/// One committed transaction of the change stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTransaction {
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// Its operations, in the order they were emitted.
    pub ops: Vec<DirectoryOp>,
}

/// The beginning, or a part from the middle, of a transaction that is too large for one entry; its end comes as a
/// [`StreamTransaction`]. Applied again, as whoever leads next may begin anew, it changes nothing; the source's position
/// stays below the transaction until all of it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPiece {
    /// Which source.
    pub source: SourceId,
    /// Where the transaction's commit record begins.
    pub commit_lsn: Lsn,
    /// Some of its operations, none of which names a request: requests are done when the transaction is.
    pub ops: Vec<DirectoryOp>,
}

/// One entry of the Raft log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// What arrived since the last entry, from one source or several.
    Stream(Vec<SourceBatch>),
    /// Resolve, check for loops, and lock the source of a directory rename (P20, P23).
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
        /// What is served may hold what PostgreSQL never had, or lost in a failover: it stops serving.
        is_diverged: bool,
    },
    /// A part of the initial copy, in any order.
    RebuildChunk {
        /// Directories, parents not necessarily first.
        records: Vec<DirectoryRecord>,
    },
    /// The copy is complete: swap it in. Names every source of the group; their slots were all made before anything was
    /// copied (P1).
    RebuildEnd {
        /// The sources.
        sources: Vec<SourceStart>,
    },
    /// A source was promoted, and everything applied lies at or below the point where the timelines parted: its stream goes
    /// on on this timeline.
    FollowTimeline {
        /// Which source.
        source: SourceId,
        /// Its new timeline.
        timeline: u32,
    },
    /// How long removed directories are remembered: those removed at or before log index `after` until each source has been
    /// applied up to its position. A group with one source does without (P1).
    Horizon {
        /// Log index that was applied when the positions were sampled.
        after: u64,
        /// The flush position of every source, sampled then.
        positions: Vec<(SourceId, Lsn)>,
    },
    /// Of which namespaces the copy is that is being made. A copy without this is of all (before groups had namespaces).
    RebuildNamespaces {
        /// All that the group has, and those that are being moved to it or from it; and their moves, as in
        /// [`SetNamespaceState`](Self::SetNamespaceState).
        namespaces: Vec<(NamespaceId, NamespaceState, u32)>,
    },
    /// A group that has all namespaces has these from now on.
    Restrict {
        /// They are served.
        namespaces: Vec<NamespaceId>,
    },
    /// New namespaces of the group, of which nothing was in the change stream before.
    Admit {
        /// They are served.
        namespaces: Vec<NamespaceId>,
    },
    /// Begin to copy a namespace from PostgreSQL beside the served ones (P32). Its changes are applied from here on.
    Track {
        /// Which; the group does not have it yet.
        ns: NamespaceId,
        /// For every source a position below which the copy will have everything, at or above all that was proposed before
        /// this: what a source sends of before it counts as in an initial copy ([`Source::copied`]).
        copied: Vec<(SourceId, Lsn)>,
    },
    /// A part of that copy, in any order.
    CopyChunk {
        /// The namespace.
        ns: NamespaceId,
        /// Directories.
        records: Vec<DirectoryRecord>,
    },
    /// A namespace's state changes, if it is what it was when this was proposed.
    SetNamespaceState {
        /// Which.
        ns: NamespaceId,
        /// From this.
        from: NamespaceState,
        /// `None`: nothing of it is left here.
        to: Option<NamespaceState>,
        /// Once it is served: how often it was moved. Attempts of later renames are above those of earlier groups, whose
        /// logs have other indexes.
        moves: u32,
    },
    /// Forget directories of a namespace that leaves.
    Forget {
        /// The namespace.
        ns: NamespaceId,
        /// Some of its directories.
        ids: Vec<DirectoryId>,
    },
    /// A part of a large transaction, but the last.
    StreamPiece(StreamPiece),
}

impl Command {
    /// The operations of the change stream that it holds.
    pub fn stream_operations(&self) -> impl Iterator<Item = &DirectoryOp> {
        let (batches, piece) = match self {
            Self::Stream(batches) => (&batches[..], None),
            Self::StreamPiece(piece) => (&[][..], Some(&piece.ops)),
            _ => (&[][..], None),
        };
        let transactions = batches.iter().flat_map(|batch| &batch.transactions);
        transactions.flat_map(|transaction| &transaction.ops).chain(piece.into_iter().flatten())
    }
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
    /// Log index of the prepare, and above it the moves of its namespace.
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
