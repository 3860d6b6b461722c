//! What an import loads, where, and what came of it.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use mantle_types::NamespaceId;
use tokio_util::sync::CancellationToken;

use super::{order::Order, tree::Tree};

/// What is loaded, and where.
pub struct Load {
    /// Direct URL of the PostgreSQL node.
    pub url: String,
    /// The principal in whose name entries are made.
    pub principal: i32,
    /// The namespace.
    pub ns: NamespaceId,
    /// The entries.
    pub tree: Arc<Tree>,
    /// Their order.
    pub order: Order,
    /// Modification time of all entries.
    pub modified: DateTime<Utc>,
    /// Seed of synthetic sizes.
    pub seed: u64,
    /// Connections, and so calls under way at once.
    pub connections: usize,
    /// Stops between two calls.
    pub cancel: CancellationToken,
}

/// What became of the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Rows made by this run.
    pub inserted: u64,
    /// Entries that were there already.
    pub existing: u64,
    /// Those of `existing` in calls that were sent twice: perhaps made by the first sending.
    pub repeated: u64,
}
