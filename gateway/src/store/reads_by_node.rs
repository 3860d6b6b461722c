//! Coalesced reads of each node: those of a directory go to the node that has it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio_postgres::Row;

use super::{
    coalesced_reads::{BatchRead, Bounds, CoalescedReads, Failure},
    database::{Database, Param, count_retries},
    fault::Fault,
    nodes::Node,
    shards::Address,
    sql::Statement,
};

pub struct ReadsByNode<R: BatchRead> {
    /// Makes the reads of one node.
    make: fn(Database) -> R,
    bounds: Bounds,
    by_node: Mutex<HashMap<Address, Arc<CoalescedReads<R>>>>,
}

impl<R: BatchRead> ReadsByNode<R> {
    pub fn new(make: fn(Database) -> R, bounds: Bounds) -> Self {
        Self { make, bounds, by_node: Mutex::new(HashMap::new()) }
    }

    /// Must be called within a tokio runtime.
    pub fn of(&self, node: &Node) -> Arc<CoalescedReads<R>> {
        let mut by_node = self.by_node.lock();
        if let Some(reads) = by_node.get(&node.address) {
            return reads.clone();
        }
        let reads = Arc::new(CoalescedReads::new((self.make)(node.database.clone()), self.bounds));
        by_node.insert(node.address.clone(), reads.clone());
        reads
    }
}

/// Sends a statement for some reads: for one with retries; for several once, as its failure says nothing about each.
pub async fn send(
    database: &Database,
    statement: &'static Statement,
    params: &[Param<'_>],
    reads: usize,
) -> Result<Vec<Row>, Failure> {
    match reads {
        1 => Ok(database.query(statement, params, false).await?),
        _ => database.query_once(statement, params).await.map_err(|fault| failure(statement, fault, reads)),
    }
}

/// The consequence of a fault of a statement for its reads.
fn failure(statement: &'static Statement, fault: Fault, reads: usize) -> Failure {
    let is_absent = matches!(fault, Fault::Unavailable(_));
    let error = fault.into_error(statement.name, statement.mutates);
    if is_absent {
        return Failure::ForAll(error);
    }
    count_retries(statement, reads);
    Failure::Singly(error)
}
