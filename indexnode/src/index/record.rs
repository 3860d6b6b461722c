//! Plain types of one directory's data. The other modules of the table build on them.

use mantle_types::{DirectoryId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use serde::{Deserialize, Serialize};

/// All that the table stores of a directory, apart from its child count. A snapshot has these fields in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record<'a> {
    pub pid: PartitionId,
    pub name: &'a str,
    pub id: DirectoryId,
    pub version: u64,
    pub permission: Permission,
}

impl Record<'_> {
    /// An owned copy. The index does not store the namespace of a directory, so `ns` is 0.
    pub(super) fn to_message(self) -> DirectoryRecord {
        let Self { pid, name, id, version, permission } = self;
        DirectoryRecord { ns: NamespaceId(0), pid, name: name.to_owned(), id, version, permission }
    }
}

impl<'a> From<&'a DirectoryRecord> for Record<'a> {
    fn from(r: &'a DirectoryRecord) -> Self {
        Self { pid: r.pid, name: &r.name, id: r.id, version: r.version, permission: r.permission }
    }
}

/// A directory in the table, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub id: DirectoryId,
    pub pid: PartitionId,
    pub version: u64,
    pub permission: Permission,
    pub children: u32,
}

/// The directory that a partition belongs to. No directory is split, so each has exactly one partition.
pub(super) fn directory_of(partition: PartitionId) -> DirectoryId {
    DirectoryId(partition.0)
}
