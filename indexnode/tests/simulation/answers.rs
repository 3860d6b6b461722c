//! What PostgreSQL and the index answer to a client.

use mantle_types::{DirectoryId, Epoch, Lsn};

/// Why a statement was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Something named does not exist, or is not where it was.
    NotFound,
    /// The place is taken, or the directory not empty.
    InTheWay,
    /// The index has forgotten the lock.
    StaleEpoch,
    /// What it names was resolved on another timeline.
    StaleLease,
    /// The attempt has an abort record.
    Aborted,
    /// The session ended before the answer came.
    Unknown,
}

/// A position in the WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// On which timeline.
    pub timeline: u32,
    /// Everything that committed below.
    pub lsn: Lsn,
}

/// A change that committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The position to await.
    pub position: Position,
    /// It did before this statement: its own message may have come and gone (P24).
    pub is_repeat: bool,
}

/// What a statement answers.
pub type Answer = Result<Committed, Refusal>;

/// What a prepare granted.
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
    /// Where it is.
    pub source_parent: DirectoryId,
    /// Under which name.
    pub source_name: String,
    /// Where it goes.
    pub destination_parent: DirectoryId,
    /// Under which name.
    pub destination_name: String,
}
