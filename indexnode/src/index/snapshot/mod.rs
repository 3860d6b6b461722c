//! The snapshot of an index: everything that applying later entries depends on, as a stream of checked frames.
//!
//! Layout: 8 bytes magic and format version; then frames of length (4 bytes LE), CRC-32 of the payload (4 bytes LE) and
//! payload: items in postcard encoding, whole items only. The last item says how many directories there were. Reading
//! holds one frame beside the index it builds, allocates no more than a frame says and holds, and never panics.
//! Occupants come before displaced directories, so that each finds its place as it was.

mod read;
mod write;

use std::io::{Error, ErrorKind};

use mantle_types::{DirectoryId, Epoch, Lsn, NamespaceId, PartitionId, Permission};
use serde::{Deserialize, Serialize};

use super::{
    Index,
    command::{NamespaceState, Source, SourceId},
    locks::Lock,
    removals::{Horizon, Removal},
};

pub use write::{Part, SnapshotWriter};

/// No format's number is one bit away from another's: a damaged header is refused, not read as the other format.
const MAGIC: [u8; 8] = *b"MTLIDX\x00\x04";
/// Before groups had namespaces; the same, but for the items that name them.
const MAGIC_OLD: [u8; 8] = *b"MTLIDX\x00\x02";
/// A frame is written out when it has grown to this.
const FRAME_BYTES: usize = 64 << 10;
/// No frame is larger: items are far smaller than the difference.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Deepest list in one item: the sources of a group.
const SOURCES_MAX: usize = 4096;

#[derive(Serialize, Deserialize)]
enum Item<'a> {
    Head {
        epoch: Epoch,
        catch_up: Vec<(SourceId, Lsn)>,
    },
    Lock(Lock),
    /// The items that follow are of the served tree.
    Serving,
    /// The items that follow are of an unfinished rebuild.
    Rebuild,
    Source {
        id: SourceId,
        source: Source,
    },
    Removal {
        id: DirectoryId,
        removal: Removal,
    },
    Horizon(Horizon),
    #[serde(borrow)]
    Directory(Entry<'a>),
    End {
        directories: u64,
    },
    /// The tree is not of all namespaces, but of those that follow.
    Namespaces,
    Namespace {
        ns: NamespaceId,
        state: NamespaceState,
        moves: u32,
        copied: Vec<(SourceId, Lsn)>,
    },
    /// A part is applied of a transaction that is larger than an entry. Stands in a snapshot at such a moment only.
    Partial {
        id: SourceId,
        commit_lsn: Lsn,
    },
}

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    pid: PartitionId,
    name: &'a str,
    id: DirectoryId,
    version: u64,
    permission: Permission,
    is_displaced: bool,
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("index snapshot: {why}"))
}
