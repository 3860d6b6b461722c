//! The snapshot of an index: everything that applying later entries depends on, as a stream of frames with checksums.
//!
//! Layout: 8 bytes of magic and format version, then frames. A frame is the payload's length (4 bytes LE), its CRC-32 (4 bytes
//! LE) and the payload: whole items in postcard encoding. The last item has the number of directories. Occupants come before
//! displaced directories, so that reading restores both.
//!
//! A reader holds one frame beside the index that it builds, allocates no more than a frame contains, and never panics.

mod read;
mod write;

use std::io::{Error, ErrorKind};

use mantle_types::{DirectoryId, Epoch, Lsn, NamespaceId};
use serde::{Deserialize, Serialize};

use super::{
    Index,
    command::{NamespaceState, Source, SourceId},
    last_seen::LastSeen,
    locks::Lock,
    record::Record,
    removals::{Horizon, Removal},
};

pub use write::{Part, SnapshotWriter};

/// Two format versions differ in more than one bit, so a flipped bit in the header is refused.
const MAGIC: [u8; 8] = *b"MTLIDX\x00\x07";
/// The formats before: the same without what the streams brought last (4), and without items for namespaces (2).
const MAGIC_BEFORE: [[u8; 8]; 2] = [*b"MTLIDX\x00\x04", *b"MTLIDX\x00\x02"];
/// A writer closes a frame that has this size.
const FRAME_BYTES: usize = 64 << 10;
/// No frame is larger: an item is far smaller than the difference.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Longest list in an item: the sources of a group.
const SOURCES_MAX: usize = 4096;

#[derive(Serialize, Deserialize)]
enum Item<'a> {
    Head {
        epoch: Epoch,
        catch_up: Vec<(SourceId, Lsn)>,
    },
    Lock(Lock),
    /// The items that follow belong to the served tree.
    Serving,
    /// The items that follow belong to an unfinished rebuild.
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
    Directory {
        #[serde(borrow)]
        record: Record<'a>,
        is_displaced: bool,
    },
    End {
        directories: u64,
    },
    /// The tree has only the namespaces that follow, not all.
    Namespaces,
    Namespace {
        ns: NamespaceId,
        state: NamespaceState,
        moves: u32,
        copied: Vec<(SourceId, Lsn)>,
    },
    /// A transaction larger than a log entry is partly applied. Absent otherwise.
    Partial {
        id: SourceId,
        commit_lsn: Lsn,
    },
    /// What the stream of a source brought last.
    LastSeen {
        id: SourceId,
        last: LastSeen,
    },
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("index snapshot: {why}"))
}
