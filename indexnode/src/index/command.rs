//! The entries of the Raft log: the commands that change the index, and the answers of applying them.
//!
//! A command carries everything that its effect depends on. So applying is a pure function of the index and the command, and
//! every replica reaches the same state. Only the leader reads a clock.

use mantle_types::{
    Caller, DirectoryId, Epoch, Error, Lineage, Lsn, NamespaceId, PartitionId, Permission, RequestKey,
    message::{DirectoryOp, DirectoryRecord},
};
use serde::{Deserialize, Serialize};

use crate::failpoints;

/// A PostgreSQL node from whose slot the group reads. Positions of two sources are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(pub u32);

/// A source, and the position up to which it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// System identifier and timeline of the LSNs.
    pub lineage: Lineage,
    /// All commits at or below this LSN are applied.
    pub applied: Lsn,
    /// The initial copy has everything that committed below this LSN. Of such a transaction only removals are applied: its
    /// puts may be older than a removal that another source committed before its slot existed.
    pub copied: Lsn,
}

/// What the group may do with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceState {
    /// The group copies its directories from PostgreSQL and applies its changes. It does not serve them yet.
    Copying,
    /// The group has everything, and answers lookups. Another group still prepares its renames.
    Ready,
    /// The group answers lookups and prepares renames.
    Serving,
    /// Another group serves it. This group forgets its directories and takes no new ones in.
    Leaving,
}

impl NamespaceState {
    /// Tells whether the group may answer lookups.
    pub fn answers(self) -> bool {
        matches!(self, Self::Ready | Self::Serving)
    }
}

/// Where the stream of a source begins after an initial copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SourceStart {
    pub source: SourceId,
    pub lineage: Lineage,
    /// The slot sends the transactions with a commit LSN at or above this.
    pub consistent_point: Lsn,
    /// A position at which all slots existed and below which the copy has everything. At least `consistent_point`; equal to it
    /// if the slot exported the copy's snapshot.
    pub copied: Lsn,
}

/// The transactions that arrived from a source since the last entry, in commit order. Those at or below the source's applied
/// LSN are dropped (P4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SourceBatch {
    pub source: SourceId,
    pub transactions: Vec<StreamTransaction>,
    /// Everything that the source committed below this position is in this entry or in an earlier one.
    pub position: Lsn,
}

/// One committed transaction of the change stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTransaction {
    /// Start of its commit record.
    pub commit_lsn: Lsn,
    /// Its operations in the order in which they were emitted.
    pub ops: Vec<DirectoryOp>,
}

/// The beginning or a middle part of a transaction that is too large for one entry (P37). Its end follows as a
/// [`StreamTransaction`]. The source's position stays below the transaction until all of it is applied. No operation names a
/// request: a request is done when its whole transaction is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TransactionPiece {
    pub source: SourceId,
    pub commit_lsn: Lsn,
    pub ops: Vec<DirectoryOp>,
}

/// One entry of the Raft log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Command {
    /// The changes that arrived since the last entry, from one source or several.
    Stream(Vec<SourceBatch>),
    /// Resolves both paths of a directory rename, checks for loops, and locks the source (P20, P23).
    Prepare(Prepare),
    /// Unlocks an attempt that can no longer commit: its abort record is in PostgreSQL.
    Release { request: RequestKey, attempt: u64 },
    /// Begins a rebuild from PostgreSQL beside the served tree, under an epoch raised for it. Prepares are refused until it ends.
    /// `is_diverged`: the served tree may show changes that PostgreSQL lost in a failover, or never had. It stops serving.
    RebuildBegin { epoch: Epoch, is_diverged: bool },
    /// A part of the initial copy. Parts may arrive in any order, and a child before its parent.
    RebuildChunk { records: Vec<DirectoryRecord> },
    /// Ends the copy and serves it. Names every source of the group; all slots existed before the copy began (P1).
    RebuildEnd { sources: Vec<SourceStart> },
    /// A standby of the source was promoted, and everything applied lies at or below the point where the timelines part. The
    /// stream continues on the new timeline.
    FollowTimeline { source: SourceId, timeline: u32 },
    /// Bounds how long removals are remembered: those at or before log index `after`, until each source is applied up to its
    /// flush position, sampled when `after` was applied. A group with one source does not need it (P1).
    Horizon { after: u64, positions: Vec<(SourceId, Lsn)> },
    /// The namespaces of the initial copy: those that the group has or that move into or out of it, with how often each was
    /// moved, as in [`SetNamespaceState`](Self::SetNamespaceState). Without this command the copy has all namespaces (before
    /// groups had namespaces).
    RebuildNamespaces { namespaces: Vec<(NamespaceId, NamespaceState, u32)> },
    /// Limits a group that has all namespaces to these, which it serves.
    Restrict { namespaces: Vec<NamespaceId> },
    /// Adds new namespaces to those that the group serves. The change stream had nothing of them before.
    Admit { namespaces: Vec<NamespaceId> },
    /// Begins to copy a namespace from PostgreSQL beside the served ones (P32). Its changes are applied from here on. `copied`
    /// has one position per source, at or above everything that was already proposed: the copy will have everything below it.
    /// For commits below it only removals apply, as with [`Source::copied`].
    Track { ns: NamespaceId, copied: Vec<(SourceId, Lsn)> },
    /// A part of that copy. Parts may arrive in any order.
    CopyChunk { ns: NamespaceId, records: Vec<DirectoryRecord> },
    /// Changes the state of a namespace, if it is still the one that the proposer saw. `to` is `None` when nothing of the
    /// namespace is left in the group. `moves`: how often it was moved, set once it is served. That raises the attempts of later
    /// renames above those of earlier groups, whose logs have other indexes.
    SetNamespaceState { ns: NamespaceId, from: NamespaceState, to: Option<NamespaceState>, moves: u32 },
    /// Forgets directories of a namespace that leaves the group.
    Forget { ns: NamespaceId, ids: Vec<DirectoryId> },
    /// A part of a large transaction, except the last part.
    TransactionPiece(TransactionPiece),
    /// The log may lack committed entries of earlier leaders, because a voter's folder may have gone back (P48). Raises the epoch,
    /// so that no rename commits that was prepared in a lost entry. Lookups wait until each source is applied below its position,
    /// which everything that was acknowledged lies below.
    Recover { epoch: Epoch, positions: Vec<(SourceId, Lsn)> },
    /// A prepare that says by which rule replicas decide it. Entries of older releases are [`Prepare`](Self::Prepare), decided
    /// by [`FIRST_RULE`].
    PrepareByRule(PrepareByRule),
    /// Prepares that reached the leader together, decided one after the other: each finds the locks of those before it. Needs
    /// [`GROUP_RULE`].
    Prepares(Vec<PrepareByRule>),
}

impl Command {
    /// Tells whether a replica that knows the rules up to this one can decide the command.
    pub fn is_decided_by(&self, newest_rule: u32) -> bool {
        let is_known = |by: &PrepareByRule| by.rule <= newest_rule && newest_rule != FIRST_RULE;
        match self {
            Self::PrepareByRule(by) => is_known(by),
            Self::Prepares(all) => newest_rule >= GROUP_RULE && all.iter().all(is_known),
            _ => true,
        }
    }

    /// The operations of the change stream in this command.
    pub fn stream_operations(&self) -> impl Iterator<Item = &DirectoryOp> {
        let (batches, piece) = match self {
            Self::Stream(batches) => (&batches[..], None),
            Self::TransactionPiece(piece) => (&[][..], Some(&piece.ops)),
            _ => (&[][..], None),
        };
        let transactions = batches.iter().flat_map(|batch| &batch.transactions);
        transactions.flat_map(|transaction| &transaction.ops).chain(piece.into_iter().flatten())
    }
}

/// The rule of a [`Command::Prepare`]: the caller needs to write both parents, or a parent and the removed directory.
pub const FIRST_RULE: u32 = 0;
/// The newest rule, and the one that this program proposes if every member knows it. Rule 1 has the sticky bit, does not let a
/// directory move to another parent unless the caller may write to it, and checks every directory below one that is removed.
pub const NEWEST_RULE: u32 = GROUP_RULE;
/// This rule decides as rule 1. A replica that knows it also knows [`Command::Prepares`].
pub const GROUP_RULE: u32 = 2;

/// The newest rule by which this replica can decide a prepare.
pub fn newest_rule() -> u32 {
    failpoints::newest_rule().unwrap_or(NEWEST_RULE)
}

/// A [`Prepare`] with the rule by which every replica decides it, whatever newer rules it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareByRule {
    /// The request.
    pub prepare: Prepare,
    /// The rule; a replica that does not know it stops, as at a command that it does not know.
    pub rule: u32,
    /// For a removal: the directory and all directories below it, as its proposer knows them. Every replica checks that they are
    /// all. Empty if the caller owns the namespace or is uid 0.
    pub below: Vec<DirectoryId>,
}

/// A request to lock a directory for renaming.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The client's request. Applying fills in its `ns`.
    pub request: RequestKey,
    /// The namespace's name.
    pub namespace: String,
    /// Components of the directory to move; at least one.
    pub source: Vec<String>,
    /// Components of its new path; at least one, unless it is a removal.
    pub destination: Vec<String>,
    /// The caller. Needs write permission on both parents and search permission on both paths; for a removal, write permission
    /// on the parent and on the directory itself.
    pub caller: Caller,
    /// Whether the rename may replace an empty directory at the destination.
    pub overwrite: bool,
    /// Moves the directory into the trash ([`DirectoryId::TRASH`]) and ignores `destination`.
    pub remove: bool,
    /// How long the leader waits before it may abort the attempt, in milliseconds.
    pub lock_ms: u32,
}

/// A prepared rename, ready for its transaction in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PreparedRename {
    /// Log index of the prepare; the high bits count the moves of its namespace. Prepares of one entry have the same: an attempt
    /// is one of its request.
    pub attempt: u64,
    /// The epoch that the rename's transaction checks.
    pub epoch: Epoch,
    pub ns: NamespaceId,
    pub source_pid: PartitionId,
    /// The locked directory.
    pub source_id: DirectoryId,
    pub source_version: u64,
    pub destination_pid: PartitionId,
    /// The empty directory at the destination that the rename replaces, if any.
    pub replaced: Option<DirectoryId>,
    /// With which the sticky bit is checked again, under the latches (P56).
    pub source_parent: Permission,
    /// The same of the destination's parent; `None` if it is the trash.
    pub destination_parent: Option<Permission>,
}

/// The answer to the proposer of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Applied {
    /// The command has no other answer.
    Done,
    /// The answer to a [`Command::Prepare`] or [`Command::PrepareByRule`].
    Prepared(Result<PreparedRename, Error>),
    /// The answers to the prepares of a [`Command::Prepares`], in their order.
    AllPrepared(Vec<Result<PreparedRename, Error>>),
}
