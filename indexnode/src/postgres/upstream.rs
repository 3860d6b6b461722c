//! The traits through which the IndexNode uses PostgreSQL. The simulation implements them for a model.
//!
//! Invariant: everything that the index reads from PostgreSQL, or that affects it, comes through these traits. Errors
//! are for the log; no code distinguishes them.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use mantle_types::{DirectoryId, Epoch, GroupId, Lineage, Lsn, NamespaceId, RequestKey, message::DirectoryRecord};
use pgwire_replication::ReplicationEvent;
use serde::Serialize;
use tokio::sync::mpsc;
use tonic::async_trait;

use crate::{
    index::{Entry, command::SourceId},
    progress::RebuildProgress,
};

/// A handle on a PostgreSQL node; clones share it.
pub type Database = Arc<dyn Upstream>;
/// One session for statements; it ends when the last clone is dropped.
pub type Session = Arc<dyn Statements>;

/// The group's row in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IndexGroup {
    pub epoch: Epoch,
    /// The Raft cluster that raised the epoch last.
    pub cluster_id: Option<String>,
    pub slot_name: String,
}

/// The phase of a namespace's move to another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MovePhase {
    /// The new group copies the namespace.
    Copy,
    /// Changes are acknowledged when both groups have them; the old one answers lookups.
    Both,
    /// As in `Both`, but the new group answers lookups.
    Switched,
}

impl MovePhase {
    /// The name in PostgreSQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Both => "both",
            Self::Switched => "switched",
        }
    }

    /// The phase with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Copy, Self::Both, Self::Switched].into_iter().find(|phase| phase.name() == name)
    }
}

/// A namespace that the group's index has to contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Assigned {
    pub ns: NamespaceId,
    /// True if the group answers its lookups.
    pub is_served: bool,
    /// The phase of its move to the group or away from it.
    pub phase: Option<MovePhase>,
    /// How often the namespace has moved; the group that serves it now has the highest number.
    pub moves: u32,
}

/// The group that serves a namespace, and whether a move of it was ever begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Assignment {
    pub ns: NamespaceId,
    pub group: GroupId,
    pub has_moved: bool,
}

/// What is wrong with a member of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct ReplicaProblem {
    /// As text, because JSON's numbers are too short for it.
    pub node_id: String,
    pub address: String,
    pub problem: String,
}

/// The state of a server's synchronous standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyFlush {
    /// True if synchronous standbys are configured.
    pub is_required: bool,
    /// All connected synchronous standbys have flushed the WAL up to here; `None` if none is connected.
    pub flushed: Option<Lsn>,
}

/// A run of a server. A copy of its disk that runs beside it has the same lineage, and was started at another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// System identifier and current timeline.
    pub lineage: Lineage,
    /// When its postmaster was started, in microseconds since 1970 by its own clock.
    pub started_us: i64,
}

/// A PostgreSQL server, as its walsender describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// System identifier and current timeline.
    pub lineage: Lineage,
    /// When its postmaster was started, as in [`Incarnation`].
    pub started_us: i64,
    /// The server has flushed its WAL up to here.
    pub flushed: Lsn,
    /// The timelines that the current one descends from, and where each of them was left.
    pub switch_points: Vec<(u32, Lsn)>,
}

impl Server {
    /// Which run of which server it is.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation { lineage: self.lineage, started_us: self.started_us }
    }
}

/// A logical slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The process id of the session that reads the slot.
    pub active_pid: Option<i32>,
    /// PostgreSQL has removed WAL that the slot needs.
    pub is_lost: bool,
    /// Transactions that committed below this are not sent again.
    pub confirmed: Lsn,
}

/// A slot that was just created.
pub struct NewSlot {
    /// The slot sends what commits at or after this position.
    pub consistent_point: Lsn,
    /// An exported snapshot of exactly what committed before; valid while the connection lives and does nothing else.
    pub snapshot: String,
}

/// Opens connections to one PostgreSQL node.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// The same database on another node.
    fn at(&self, host: &str, port: u16) -> Database;

    /// Opens a session for statements.
    async fn connect(&self) -> Result<Session>;

    /// Opens an authenticated connection to the walsender. Its stream will begin at `start`.
    async fn walsender(&self, slot: &str, start: Lsn) -> Result<Box<dyn Walsender>>;

    /// Opens a connection that samples the node's position. Fails on a standby, which does not have all that is committed.
    async fn sampler(&self) -> Result<Box<dyn Sampler>>;
}

/// The statements, one method each.
#[async_trait]
pub trait Statements: Send + Sync {
    /// The server of this session.
    async fn incarnation(&self) -> Result<Incarnation>;
    /// The PostgreSQL nodes whose streams the group reads, with host and port; `None` is the node of this session.
    async fn sources(&self) -> Result<Vec<(SourceId, Option<(String, u16)>)>>;

    /// The next `count` directory ids above `id`, in order, with their namespaces.
    async fn directories_after(&self, id: DirectoryId, count: usize) -> Result<Vec<(DirectoryId, NamespaceId)>>;
    /// The records of directories in PostgreSQL, with their namespaces.
    async fn directories(&self, ids: &[DirectoryId]) -> Result<Vec<(Entry, NamespaceId)>>;

    /// The namespaces that the group's index has to contain.
    async fn namespaces(&self) -> Result<Vec<Assigned>>;
    /// The namespaces that have directories in the trash.
    async fn trash_namespaces(&self) -> Result<Vec<NamespaceId>>;
    /// The groups of those of these namespaces that exist.
    async fn assignments(&self, namespaces: &[NamespaceId]) -> Result<Vec<Assignment>>;
    /// A number that differs from the last one when assignments have changed.
    async fn assignment_changes(&self) -> Result<i64>;
    /// Takes the next step of a namespace's move to the group; `false` if the move is in another phase.
    async fn advance_move(&self, ns: NamespaceId, phase: MovePhase) -> Result<bool>;

    /// The position up to which the server has flushed its WAL.
    async fn flushed(&self) -> Result<Lsn>;
    /// The state of the synchronous standbys.
    async fn standby_flush(&self) -> Result<StandbyFlush>;
    /// A position below which every commit is visible to reads from now on. Waits for transactions under way.
    async fn cut(&self) -> Result<Lsn>;

    /// The group's row.
    async fn index_group(&self) -> Result<IndexGroup>;
    /// The time after which no gateway still uses an earlier version of the group's row or of an assignment.
    async fn epoch_lease(&self) -> Result<Duration>;
    /// Raises the epoch from `expected` for a cluster; `None` if the epoch is no longer `expected`.
    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>>;
    /// The key with which the group signs prepared renames; `None` if the database has none yet.
    async fn prepare_key(&self) -> Result<Option<Vec<u8>>>;
    /// Reports the members of the group that have a problem, for `mantle.check_cluster()`; none clears the earlier report.
    async fn report_replicas(&self, problems: &[ReplicaProblem]) -> Result<()>;
    /// Writes the abort record of an attempt, which then cannot commit. `false` if it is already committed.
    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool>;

    /// The slot, if it exists. An error if it belongs to another database.
    async fn slot(&self, name: &str) -> Result<Option<Slot>>;
    /// True if the server bounds the WAL that an unread slot keeps.
    async fn slots_are_bounded(&self) -> Result<bool>;
    /// Ends a session.
    async fn terminate(&self, pid: i32) -> Result<()>;
    /// Drops the slot, if it is there.
    async fn drop_slot(&self, name: &str) -> Result<()>;
    /// Descriptions of the transactions of any database that have been open for longer than `age` and prevent the
    /// creation of a slot; the oldest first. Empty if an older extension cannot report them.
    async fn held_up_by(&self, age: Duration) -> Result<Vec<String>>;

    /// Copies the directories of the group's namespaces to `chunks`, under an exported snapshot if one is given. Returns the
    /// namespaces, read under the same snapshot, and the number of directories.
    async fn copy_directories(
        &self,
        snapshot: Option<&str>,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<(Vec<Assigned>, u64)>;
    /// Copies the current directories of a namespace to `chunks`. Returns their number.
    async fn copy_namespace(
        &self,
        ns: NamespaceId,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<u64>;
}

/// A replication connection whose stream has not begun. Its answers describe the server that will stream.
#[async_trait]
pub trait Walsender: Send + Sync {
    /// Identity, position and history of the server.
    async fn server(&mut self) -> Result<Server>;
    /// Creates the slot. Waits for all transactions that are open, of any database: at most `limit` for each of them, and not
    /// much longer for all.
    async fn create_slot(&mut self, limit: Duration) -> Result<NewSlot>;
    /// Begins the stream; the slot is held by this connection when this returns.
    async fn start(self: Box<Self>) -> Result<Box<dyn ChangeStream>>;
}

/// A connection that samples a node's position, without a statement of SQL.
#[async_trait]
pub trait Sampler: Send + Sync {
    /// The server, and a position that is read during the call: what was visible when it began is committed below.
    async fn sample(&mut self) -> Result<(Incarnation, Lsn)>;
}

/// A stream of changes.
#[async_trait]
pub trait ChangeStream: Send {
    /// The next event, `None` at the end. Dropping the future loses none.
    async fn recv(&mut self) -> Result<Option<ReplicationEvent>>;
    /// Confirms a position: the slot no longer sends what committed below.
    fn confirm(&self, position: Lsn);
}
