//! The last transaction of a source's stream. It distinguishes the server that was read from one with another history
//! (P35): a copy of the server's disk has the same system identifier, timeline and slot.

use mantle_types::{
    Lsn,
    limits::MESSAGE_OPS_MAX,
    message::{self, DirectoryOp},
};
use serde::{Deserialize, Serialize};

/// Where the stream of a source was when it last brought something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LastSeen {
    /// It has brought nothing yet: the slot was made here.
    Slot(Lsn),
    /// A transaction of the change stream.
    Transaction {
        /// Start of its commit record.
        commit_lsn: Lsn,
        /// [`checksum`] of its operations; `None` if it came in pieces (P37).
        checksum: Option<u32>,
    },
}

impl LastSeen {
    /// A position: no change of a directory lies between it and the applied position.
    pub fn lsn(self) -> Lsn {
        match self {
            Self::Slot(lsn) | Self::Transaction { commit_lsn: lsn, .. } => lsn,
        }
    }
}

/// A checksum of a transaction's operations in the encoding of the change stream, which stays as it is.
pub fn checksum(ops: &[DirectoryOp]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    ops.chunks(MESSAGE_OPS_MAX).for_each(|ops| hasher.update(&message::encode(ops)));
    hasher.finalize()
}
