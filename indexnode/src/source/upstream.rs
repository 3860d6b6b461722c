//! What the leader asks of PostgreSQL: the seam at which the simulation puts a model in its place.
//!
//! Invariant: everything that feeds the index or decides about it comes through these three traits; [`super::database`]
//! implements them for PostgreSQL itself. Errors are told to people, never told apart.

use std::sync::Arc;

use anyhow::Result;
use mantle_types::{Epoch, Lsn, RequestKey, message::DirectoryRecord};
use pgwire_replication::ReplicationEvent;
use tokio::sync::mpsc;
use tonic::async_trait;

/// A handle on PostgreSQL; clones share it.
pub type Database = Arc<dyn Upstream>;
/// One session for statements; it ends when dropped.
pub type Session = Box<dyn Statements>;

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

/// A logical slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The session that reads it.
    pub active_pid: Option<i32>,
    /// Its WAL is gone.
    pub is_lost: bool,
    /// Transactions below are not sent again.
    pub confirmed: Lsn,
}

/// Where PostgreSQL is, and as whom.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// A new session for statements.
    async fn connect(&self) -> Result<Session>;

    /// A replication connection for a slot, which has authenticated and waits.
    async fn replication(&self, slot: &str, start: Lsn) -> Result<Box<dyn ChangeStream>>;
}

/// The statements.
#[async_trait]
pub trait Statements: Send + Sync {
    /// System identifier and timeline.
    async fn system(&self) -> Result<(u64, u32)>;

    /// The group's row.
    async fn index_group(&self) -> Result<IndexGroup>;

    /// Raises the epoch from `expected` for a cluster; `None` when somebody else was first.
    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>>;

    /// Writes the abort record of an attempt: afterwards it cannot commit. `false`: it is committed already.
    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool>;

    /// The slot, if it exists.
    async fn slot(&self, name: &str) -> Result<Option<Slot>>;

    /// Ends the session that reads the slot.
    async fn terminate(&self, pid: i32) -> Result<()>;

    /// Drops the slot, if it is there.
    async fn drop_slot(&self, name: &str) -> Result<()>;

    /// Reads all directories as an exported snapshot shows them, and hands chunks on.
    async fn copy_directories(&self, snapshot: &str, chunks: mpsc::Sender<Vec<DirectoryRecord>>) -> Result<()>;
}

/// A replication connection.
#[async_trait]
pub trait ChangeStream: Send {
    /// Creates the slot; its consistent point, and the name of the snapshot that it exports while this connection lives.
    async fn create_slot(&mut self, slot: &str) -> Result<(Lsn, String)>;

    /// Begins to stream.
    async fn start(&mut self) -> Result<()>;

    /// The next event, `None` at the end. Dropping the future loses none.
    async fn recv(&mut self) -> Result<Option<ReplicationEvent>>;

    /// Tells the slot to forget what was committed below.
    fn confirm(&self, position: Lsn);
}
