//! Plain types of one directory's data. The other modules of the table build on them.

use mantle_types::{DirectoryId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};

/// All that the table stores of a directory, apart from its child count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub pid: PartitionId,
    pub name: &'a str,
    pub id: DirectoryId,
    pub version: u64,
    pub permission: Permission,
}

impl Record<'_> {
    /// The index does not store the namespace of a directory, so `ns` is 0.
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

/// A record that owns its name, so that it outlives changes of the table.
#[derive(Clone, Debug)]
pub(super) struct OwnedRecord {
    pid: PartitionId,
    name: Box<str>,
    id: DirectoryId,
    version: u64,
    permission: Permission,
    pub is_displaced: bool,
}

impl OwnedRecord {
    pub(super) fn new(record: &Record<'_>, is_displaced: bool) -> Self {
        let Record { pid, name, id, version, permission } = *record;
        Self { pid, name: name.into(), id, version, permission, is_displaced }
    }

    pub(super) fn record(&self) -> Record<'_> {
        Record { pid: self.pid, name: &self.name, id: self.id, version: self.version, permission: self.permission }
    }

    pub(super) fn name_bytes(&self) -> usize {
        self.name.len()
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
