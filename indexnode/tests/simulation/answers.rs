//! The answers of PostgreSQL and the index to a client.

use mantle_types::{DirectoryId, Epoch, Lsn};

/// Why PostgreSQL refused a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A named directory does not exist, or is at another place.
    NotFound,
    /// The place is taken, or the directory is not empty.
    InTheWay,
    /// The epoch was raised: the index may have forgotten the lock.
    StaleEpoch,
    /// The path was resolved on another timeline.
    StaleLease,
    /// The attempt has an abort record.
    Aborted,
    /// The session ended before the answer arrived.
    Unknown,
}

/// A position in the WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub timeline: u32,
    /// Everything that committed below this LSN.
    pub lsn: Lsn,
}

/// A committed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The position to await.
    pub position: Position,
    /// An earlier statement made it. Its own message may be applied and forgotten (P24).
    pub is_repeat: bool,
}

pub type Answer = Result<Committed, Refusal>;

/// The answer to a prepare.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Log index of the prepare.
    pub attempt: u64,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The timeline when the gateway began.
    pub timeline: u32,
    /// The locked directory.
    pub source: DirectoryId,
    pub source_parent: DirectoryId,
    pub source_name: String,
    pub destination_parent: DirectoryId,
    pub destination_name: String,
}
