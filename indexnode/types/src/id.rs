//! Identifiers. Each is allocated once and never reused, so a stale reference can miss, but never hit something else.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The value as PostgreSQL's `bigint`. Ids are below 2^63 by construction (`mantle.allocate_ids`).
            pub const fn as_i64(self) -> i64 {
                self.0 as i64
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<i64> for $name {
            fn from(v: i64) -> Self {
                Self(v as u64)
            }
        }
    };
}

id_type!(
    /// A directory. The namespace's root directory is a directory like any other.
    DirectoryId
);
id_type!(
    /// Where a directory's entries are stored (`mantle.meta.pid`). An unsplit directory has one partition, whose id is the
    /// directory's. The types differ so that code cannot take one for the other.
    PartitionId
);
id_type!(
    /// A directory or an object; both take their ids from one sequence.
    EntryId
);
id_type!(
    /// A namespace (an S3 bucket): the id of its root directory.
    NamespaceId
);
id_type!(
    /// Counts how often a group's index was rebuilt or may have forgotten locks. PostgreSQL keeps it; it only grows.
    Epoch
);

/// A Raft group of IndexNode replicas, as in `mantle.index_groups`: from 1 to [`GroupId::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

impl GroupId {
    /// In a request: the only group of the process that answers.
    pub const ONLY: Self = Self(0);
    /// The highest: PostgreSQL keeps the number in four bytes, with a sign.
    pub const MAX: Self = Self(i32::MAX as u32);

    /// The value as PostgreSQL's `integer`.
    pub const fn as_i32(self) -> i32 {
        self.0 as i32
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<i32> for GroupId {
    fn from(v: i32) -> Self {
        Self(v as u32)
    }
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
