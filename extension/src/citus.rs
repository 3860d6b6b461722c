//! Citus: which node has a partition's rows, and how a transaction writes them without Citus' executor.

pub mod placement;
pub mod shards;
pub mod transaction;
