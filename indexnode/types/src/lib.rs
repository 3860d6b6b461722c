//! Types that the extension, the IndexNode, the gateway and their clients share: ids, LSN, names and paths, permissions,
//! request keys, leases, segments of volumes, locators of bytes inside PostgreSQL, proofs of prepared changes, the change-stream
//! message, and the error table. Plain data: no I/O, no clock, no async.

pub mod error;
pub mod id;
pub mod inline;
pub mod lease;
pub mod limits;
pub mod lsn;
pub mod message;
pub mod name;
pub mod pages;
pub mod permission;
pub mod prepared;
pub mod request;
pub mod segment;
pub mod verbs;

pub use error::{Error, ErrorCode, Result};
pub use id::{DirectoryId, EntryId, Epoch, GroupId, NamespaceId, PartitionId};
pub use lease::{Lease, Lineage};
pub use lsn::Lsn;
pub use permission::{Caller, Permission};
pub use prepared::Prepared;
pub use request::RequestKey;
pub use segment::LeasedSegment;
