//! What the leader asks of PostgreSQL: the seam at which the simulation puts a model in its place.
//!
//! Invariant: everything that feeds the index or decides about it comes through these four traits; [`super::database`]
//! implements them for PostgreSQL itself. Errors are told to people, never told apart.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use mantle_types::{DirectoryId, Epoch, Lineage, Lsn, NamespaceId, RequestKey, message::DirectoryRecord};
use pgwire_replication::ReplicationEvent;
use tokio::sync::mpsc;
use tonic::async_trait;

use crate::{
    index::{Entry, command::SourceId},
    progress::RebuildProgress,
};

/// A handle on PostgreSQL; clones share it.
pub type Database = Arc<dyn Upstream>;
/// One session for statements; it ends when the last clone is dropped.
pub type Session = Arc<dyn Statements>;

/// The group's row in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexGroup {
    /// Its epoch.
    pub epoch: Epoch,
    /// The Raft cluster that raised it last.
    pub cluster_id: Option<String>,
    /// Its replication slot.
    pub slot_name: String,
}

/// How far the move of a namespace to another group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MovePhase {
    /// The new group copies it.
    Copy,
    /// Changes are acknowledged when both groups have them; the old one answers lookups.
    Both,
    /// So they are; the new one answers lookups.
    Switched,
}

/// A namespace that a group has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Which.
    pub ns: NamespaceId,
    /// Does the group answer lookups?
    pub is_served: bool,
    /// Of the move to the group or from it.
    pub phase: Option<MovePhase>,
    /// Of these, the group that serves it now has the most.
    pub moves: u32,
}

/// Where a namespace is assigned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Which.
    pub ns: NamespaceId,
    /// To this group.
    pub group: u64,
    /// A move of it was begun once.
    pub has_moved: bool,
}

/// What PostgreSQL says of its synchronous standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyFlush {
    /// There are to be some.
    pub is_required: bool,
    /// All of them that are connected have flushed the WAL up to here; `None`: none is.
    pub flushed: Option<Lsn>,
}

/// What a PostgreSQL server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its identity now.
    pub lineage: Lineage,
    /// It has flushed its WAL up to here.
    pub flushed: Lsn,
    /// The timelines that its own descends from, and where each of them was left.
    pub switch_points: Vec<(u32, Lsn)>,
}

/// A logical slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The session that reads it.
    pub active_pid: Option<i32>,
    /// Its WAL is gone.
    pub is_lost: bool,
    /// Transactions below are not sent again.
    pub confirmed: Lsn,
}

/// A slot that was just made.
pub struct NewSlot {
    /// It sends what commits at or after this position.
    pub consistent_point: Lsn,
    /// A snapshot of exactly what committed before, as long as the connection lives and does nothing else.
    pub snapshot: String,
}

/// Where PostgreSQL is, and as whom.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// The same database on another node.
    fn at(&self, host: &str, port: u16) -> Database;

    /// A new session for statements.
    async fn connect(&self) -> Result<Session>;

    /// A connection to the walsender, which has authenticated and waits. Its stream would begin at `start`.
    async fn walsender(&self, slot: &str, start: Lsn) -> Result<Box<dyn Walsender>>;
}

/// The statements.
#[async_trait]
pub trait Statements: Send + Sync {
    /// System identifier and timeline.
    async fn lineage(&self) -> Result<Lineage>;

    /// The nodes that feed the group, and where they are; nowhere: the node of this session.
    async fn sources(&self) -> Result<Vec<(SourceId, Option<(String, u16)>)>>;

    /// The next ids of directories, and their namespaces.
    async fn directories_after(&self, id: DirectoryId, count: usize) -> Result<Vec<(DirectoryId, NamespaceId)>>;

    /// What PostgreSQL knows of directories, and their namespaces.
    async fn directories(&self, ids: &[DirectoryId]) -> Result<Vec<(Entry, NamespaceId)>>;

    /// The namespaces that the group has to have.
    async fn namespaces(&self) -> Result<Vec<Assigned>>;

    /// The namespaces of what is in the trash.
    async fn trash_namespaces(&self) -> Result<Vec<NamespaceId>>;

    /// The groups of those of these namespaces that there are.
    async fn assignments(&self, namespaces: &[NamespaceId]) -> Result<Vec<Assignment>>;

    /// Another number than before: assignments have changed.
    async fn assignment_changes(&self) -> Result<i64>;

    /// Takes the next step of a namespace's move to the group; `false`: it is in another phase.
    async fn advance_move(&self, ns: NamespaceId, phase: MovePhase) -> Result<bool>;

    /// Up to where the server has flushed its WAL.
    async fn flushed(&self) -> Result<Lsn>;

    /// How far the synchronous standbys are.
    async fn standby_flush(&self) -> Result<StandbyFlush>;

    /// A position below which every commit is visible to whatever is read from now on. Waits for transactions under way.
    async fn cut(&self) -> Result<Lsn>;

    /// The group's row.
    async fn index_group(&self) -> Result<IndexGroup>;

    /// What has to pass before no gateway goes by what the group's row, or an assignment, was.
    async fn epoch_lease(&self) -> Result<Duration>;

    /// Raises the epoch from `expected` for a cluster; `None` when somebody else was first.
    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>>;

    /// The key by which the group signs what it has prepared; `None`: it signs nothing yet.
    async fn prepare_key(&self) -> Result<Option<Vec<u8>>>;

    /// Writes the abort record of an attempt: afterwards it cannot commit. `false`: it is committed already.
    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool>;

    /// The slot, if it exists.
    async fn slot(&self, name: &str) -> Result<Option<Slot>>;

    /// Does the server bound the WAL that a slot keeps when nobody reads it?
    async fn slots_are_bounded(&self) -> Result<bool>;

    /// Ends the session that reads the slot.
    async fn terminate(&self, pid: i32) -> Result<()>;

    /// Drops the slot, if it is there.
    async fn drop_slot(&self, name: &str) -> Result<()>;

    /// Reads the directories of the group's namespaces, as an exported snapshot shows both if there is one, and hands chunks
    /// on. The namespaces, and how many directories there are.
    async fn copy_directories(
        &self,
        snapshot: Option<&str>,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<(Vec<Assigned>, u64)>;

    /// Reads the directories of a namespace as they are now, and hands chunks on. How many there are.
    async fn copy_namespace(
        &self,
        ns: NamespaceId,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<u64>;
}

/// A replication connection whose stream has not begun. What it says is of the server that will stream.
#[async_trait]
pub trait Walsender: Send + Sync {
    /// Identity, position and history of the server.
    async fn server(&mut self) -> Result<Server>;

    /// Creates the slot.
    async fn create_slot(&mut self) -> Result<NewSlot>;

    /// Begins the stream; the slot is ours when this returns.
    async fn start(self: Box<Self>) -> Result<Box<dyn ChangeStream>>;
}

/// A stream of changes.
#[async_trait]
pub trait ChangeStream: Send {
    /// The next event, `None` at the end. Dropping the future loses none.
    async fn recv(&mut self) -> Result<Option<ReplicationEvent>>;

    /// Tells the slot to forget what was committed below.
    fn confirm(&self, position: Lsn);
}
