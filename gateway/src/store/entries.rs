//! Reads of single entries; each stat, GET and HEAD begins with one. Reads that arrive while others are in flight go
//! together to the node that has the entries (`coalesced_reads.rs`), because a statement costs PostgreSQL several times
//! as much as a row.
//!
//! Invariant (P40): no read waits for another one that the node cannot answer at once. The node refuses such a read
//! (`wrong_node`: its shard has moved, or is locked), or leaves it out. It is then sent alone, after the shard map was
//! read again.

use std::{sync::Arc, time::Duration};

use mantle_types::{ErrorCode, NamespaceId, PartitionId, Result};
use tokio_postgres::{Row, types::Type};

use super::{
    Store,
    coalesced_reads::{BatchRead, Bounds, CoalescedReads, Failure},
    database::{Database, Param, count_retries},
    nodes::Nodes,
    packed,
    reads_by_node::{ReadsByNode, send},
    record::{Fields, Record, by_number},
    rows::{self, Entry},
    sql,
};
use crate::config::Postgres;

/// How long the next statement waits for the last one. With two always in flight, HEADs at 32 connections cost PostgreSQL
/// twice as much, and there were fewer (2 processors).
pub const STALLED: Duration = Duration::from_millis(5);
/// Most statements in flight for reads that are sent alone, over all nodes.
const ALONE_IN_FLIGHT_MAX: usize = 4;
/// Most reads that wait for a statement; as many as a gateway has connections.
pub const WAITING_MAX: usize = 8192;
/// How long a read waits for PostgreSQL's answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// An entry of a partition: the first of these names that there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    pub ns: NamespaceId,
    pub pid: PartitionId,
    pub names: Vec<String>,
    /// Its bytes are wanted, if they are inside PostgreSQL. A read that is sent alone does not bring them.
    pub with_bytes: bool,
}

/// Reads entries from one node.
struct ReadLocal(Database);

impl BatchRead for ReadLocal {
    type Key = Arc<EntryKey>;
    type Answer = Option<Entry>;
    const NAME: &'static str = sql::STAT_LOCAL.name;

    async fn read(&self, keys: &[Arc<EntryKey>]) -> Result<Vec<Result<Option<Entry>>>, Failure> {
        let places = || keys.iter().flat_map(|key| key.names.iter().map(move |name| (key, name)));
        let ns: Vec<i64> = places().map(|(key, _)| key.ns.as_i64()).collect();
        let pids: Vec<i64> = places().map(|(key, _)| key.pid.as_i64()).collect();
        let names: Vec<&str> = places().map(|(_, name)| name.as_str()).collect();
        // NULL where nothing is wanted, which costs nothing.
        let is_any = keys.iter().any(|key| key.with_bytes);
        let wanted: Option<Vec<bool>> = is_any.then(|| places().map(|(key, _)| key.with_bytes).collect());
        let params: [Param<'_>; 4] = [
            (&ns, Type::INT8_ARRAY),
            (&pids, Type::INT8_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&wanted, Type::BOOL_ARRAY),
        ];
        let rows = send(&self.0, &sql::STAT_LOCAL, &params, keys.len()).await?;
        let mut entries = by_number(&rows, names.len(), local).into_iter();
        Ok(keys.iter().map(|key| first(entries.by_ref().take(key.names.len()))).collect())
    }
}

/// A row of `mantle.stat_local`: the element's number, its code, and its entry.
fn local(row: &Record<'_>) -> Result<Option<Entry>> {
    match rows::code_of_state(row.field(1)?)? {
        None => {
            // One that has neither is left, as one of another node.
            let packed: &[u8] = row.field::<Option<_>>(2)?.ok_or(ErrorCode::WrongNode)?;
            packed::entry(packed).map(Some)
        }
        Some(ErrorCode::NotFound) => Ok(None),
        Some(code) => Err(code.into()),
    }
}

/// The first entry that there is, or the first error. All answers are taken, so that the next ones are of the next key.
fn first(answers: impl Iterator<Item = Result<Option<Entry>>>) -> Result<Option<Entry>> {
    let mut found = Ok(None);
    for answer in answers {
        if let Ok(None) = found {
            found = answer;
        }
    }
    found
}

/// The answers of `mantle.stat`.
pub fn by_place(rows: &[Row], places: usize) -> Vec<Result<Option<Entry>>> {
    by_number(rows, places, entry)
}

/// The entry of a row: its number, its code, and the entry's columns.
fn entry(row: &Record<'_>) -> Result<Option<Entry>> {
    match rows::code_of_state(row.field(1)?)? {
        None => Entry::read(row, 2).map(Some),
        Some(ErrorCode::NotFound) => Ok(None),
        Some(code) => Err(code.into()),
    }
}

/// Reads one entry wherever it is, and waits for its shard.
struct ReadAnywhere(Arc<Nodes>);

impl BatchRead for ReadAnywhere {
    type Key = Arc<EntryKey>;
    type Answer = Option<Entry>;
    const NAME: &'static str = sql::STAT.name;

    async fn read(&self, keys: &[Arc<EntryKey>]) -> Result<Vec<Result<Option<Entry>>>, Failure> {
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            answers.push(read_anywhere(&self.0, key).await);
        }
        Ok(answers)
    }
}

async fn read_anywhere(nodes: &Nodes, key: &EntryKey) -> Result<Option<Entry>> {
    let pids = vec![key.pid.as_i64(); key.names.len()];
    let params: [Param<'_>; 3] =
        [(&key.ns.as_i64(), Type::INT8), (&pids, Type::INT8_ARRAY), (&key.names, Type::TEXT_ARRAY)];
    let rows = nodes.of(key.pid).await?.database.query(&sql::STAT, &params, false).await?;
    first(by_place(&rows, key.names.len()).into_iter())
}

/// The reads of each node, and those that are sent alone.
pub struct Entries {
    nodes: Arc<Nodes>,
    /// Reads gather.
    is_gathering: bool,
    local: ReadsByNode<ReadLocal>,
    alone: CoalescedReads<ReadAnywhere>,
}

impl Entries {
    /// Must be called within a tokio runtime.
    pub fn new(nodes: &Arc<Nodes>, config: &Postgres) -> Self {
        let bounds = Bounds {
            in_flight_max: config.batches_in_flight_max,
            stalled: STALLED,
            together_max: config.batch_elements_max,
            waiting_max: WAITING_MAX,
            wait: ANSWERED_WITHIN,
        };
        let in_flight_max = ALONE_IN_FLIGHT_MAX.min(config.pool_size / 4).max(1);
        let alone = Bounds { in_flight_max, stalled: Duration::ZERO, together_max: 1, ..bounds };
        Self {
            nodes: nodes.clone(),
            is_gathering: config.batch_elements_max > 1,
            local: ReadsByNode::new(ReadLocal, bounds),
            alone: CoalescedReads::new(ReadAnywhere(nodes.clone()), alone),
        }
    }

    async fn read(&self, key: Arc<EntryKey>) -> Result<Option<Entry>> {
        if !self.is_gathering {
            return read_anywhere(&self.nodes, &key).await;
        }
        let node = self.nodes.of(key.pid).await?;
        match self.local.of(&node).read(key.clone()).await {
            Err(error) if error.code() == ErrorCode::WrongNode => {
                count_retries(&sql::STAT_LOCAL, 1);
                self.nodes.refresh().await?;
                self.alone.read(key).await
            }
            answer => answer,
        }
    }
}

impl Store {
    /// The entry of the first of these names that there is. Goes with reads of others where it can.
    pub async fn entry(&self, ns: NamespaceId, pid: PartitionId, names: Vec<String>) -> Result<Option<Entry>> {
        self.entries.read(Arc::new(EntryKey { ns, pid, names, with_bytes: false })).await
    }

    /// The same with its bytes, if they are inside PostgreSQL and come in the same statement. [`Store::inline_bytes`] reads the others.
    pub async fn entry_with_bytes(
        &self,
        ns: NamespaceId,
        pid: PartitionId,
        names: Vec<String>,
    ) -> Result<Option<Entry>> {
        self.entries.read(Arc::new(EntryKey { ns, pid, names, with_bytes: true })).await
    }
}
