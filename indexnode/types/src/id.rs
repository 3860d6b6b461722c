//! Identifiers. Each is allocated once and never reused, so a stale reference can miss, but never hit something else.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id_types {
    ($($(#[$doc:meta])+ $name:ident($number:ty), $as_sql:ident -> $sql:ty;)+) => { $(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $number);

        impl $name {
            /// The value in PostgreSQL, whose integers have a sign. Ids are below the sign bit by construction
            /// (`mantle.allocate_ids`), groups by `GroupId::MAX`.
            pub const fn $as_sql(self) -> $sql {
                self.0 as $sql
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$sql> for $name {
            fn from(v: $sql) -> Self {
                Self(v as $number)
            }
        }
    )+ };
}

id_types! {
    /// A directory. The namespace's root directory is a directory like any other.
    DirectoryId(u64), as_i64 -> i64;
    /// Where a directory's entries are stored (`mantle.meta.pid`). An unsplit directory has one partition, whose id is the
    /// directory's. The types differ so that code cannot take one for the other.
    PartitionId(u64), as_i64 -> i64;
    /// A directory or an object; both take their ids from one sequence.
    EntryId(u64), as_i64 -> i64;
    /// A namespace (an S3 bucket): the id of its root directory.
    NamespaceId(u64), as_i64 -> i64;
    /// Counts how often a group's index was rebuilt or may have forgotten locks. PostgreSQL keeps it; it only grows.
    Epoch(u64), as_i64 -> i64;
    /// A Raft group of IndexNode replicas, as in `mantle.index_groups`: from 1 to [`GroupId::MAX`].
    GroupId(u32), as_i32 -> i32;
}

impl GroupId {
    /// In a request: the only group of the process that answers.
    pub const ONLY: Self = Self(0);
    /// The highest: PostgreSQL keeps the number in four bytes, with a sign.
    pub const MAX: Self = Self(i32::MAX as u32);
}

impl DirectoryId {
    /// The parent of all namespace roots. It has no entry of its own.
    pub const SUPER_ROOT: Self = Self(0);
    /// The parent of removed trees until the worker has emptied them. It has no entry of its own and is no namespace, so no
    /// path leads to it. Its entries are named by their ids.
    pub const TRASH: Self = Self(1);

    /// The partition of an unsplit directory.
    pub const fn sole_partition(self) -> PartitionId {
        PartitionId(self.0)
    }
}

impl EntryId {
    /// The id of an entry that is a directory.
    pub const fn as_directory(self) -> DirectoryId {
        DirectoryId(self.0)
    }
}

impl From<DirectoryId> for EntryId {
    fn from(directory: DirectoryId) -> Self {
        Self(directory.0)
    }
}

impl NamespaceId {
    /// The namespace's root directory.
    pub const fn root(self) -> DirectoryId {
        DirectoryId(self.0)
    }
}
