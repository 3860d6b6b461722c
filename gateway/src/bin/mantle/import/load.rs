//! An import's input and target, and the counts of what it loaded.

use chrono::{DateTime, Utc};
use mantle_types::NamespaceId;
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{order::Order, report::Report, tree::Tree};
use crate::database_url::DatabaseUrl;

pub struct Load {
    pub url: DatabaseUrl,
    /// The principal that makes the entries.
    pub principal: i32,
    pub ns: NamespaceId,
    pub tree: Tree,
    pub order: Order,
    /// Modification time of all entries.
    pub modified: DateTime<Utc>,
    pub seed: u64,
    /// Number of connections, which is also the number of calls in flight.
    pub connections: usize,
    /// Cancels the load between two calls.
    pub cancel: CancellationToken,
    pub report: Mutex<Report>,
}

/// Counts of loaded entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Loaded {
    /// Rows made by this run.
    pub inserted: u64,
    /// Rows that existed before.
    pub existing: u64,
    /// Part of `existing`: entries of repeated calls, which an earlier attempt may have made.
    pub repeated: u64,
}
