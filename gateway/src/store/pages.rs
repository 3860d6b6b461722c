//! Reads of pages: the entries of a directory, in order. Those that arrive while others are in flight go together to the
//! node that has them, as reads of single entries do (`entries.rs`), and each page comes back as one value (`packed.rs`).
//!
//! Invariant (P40): no page waits for one that the node cannot answer at once. Such a page is read alone, by a statement
//! that may take its time.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mantle_types::{ErrorCode, NamespaceId, PartitionId, Result};
use tokio_postgres::types::Type;

use super::{
    coalesced_reads::{BatchRead, Bounds, Failure},
    database::{Database, Param, count_retries},
    entries::{STALLED, WAITING_MAX},
    nodes::Nodes,
    reads_by_node::{ReadsByNode, send},
    record::{Fields, Record, by_number},
    rows, sql,
};
use crate::config::Postgres;

/// Most rows of all pages of a statement. It bounds how long a page of one row waits for its neighbours, and how many
/// bytes come at once.
const ROWS_MAX: usize = 4096;
/// What a page costs besides its rows, in rows.
const PAGE_COST: usize = 16;
/// How long a page waits for PostgreSQL's answer; a page of a thousand rows may come from a disk.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// A page of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    pub ns: NamespaceId,
    pub pid: PartitionId,
    pub start_after: Option<String>,
    pub prefix: String,
    pub limit: i32,
    /// Without implicit directories that hold no key.
    pub is_filled: bool,
}

/// Reads pages from one node.
struct ReadLocal(Database);

impl BatchRead for ReadLocal {
    type Key = Arc<PageKey>;
    /// The page, packed; `None` if it has to be read alone.
    type Answer = Option<Bytes>;
    const NAME: &'static str = sql::LIST_LOCAL.name;

    fn size(key: &Arc<PageKey>) -> usize {
        PAGE_COST + usize::try_from(key.limit).unwrap_or_default()
    }

    async fn read(&self, keys: &[Arc<PageKey>]) -> Result<Vec<Result<Option<Bytes>>>, Failure> {
        let ns: Vec<i64> = keys.iter().map(|key| key.ns.as_i64()).collect();
        let pids: Vec<i64> = keys.iter().map(|key| key.pid.as_i64()).collect();
        let start_after: Vec<Option<&str>> = keys.iter().map(|key| key.start_after.as_deref()).collect();
        let prefixes: Vec<&str> = keys.iter().map(|key| key.prefix.as_str()).collect();
        let limits: Vec<i32> = keys.iter().map(|key| key.limit).collect();
        let filled: Vec<bool> = keys.iter().map(|key| key.is_filled).collect();
        let params: [Param<'_>; 6] = [
            (&ns, Type::INT8_ARRAY),
            (&pids, Type::INT8_ARRAY),
            (&start_after, Type::TEXT_ARRAY),
            (&prefixes, Type::TEXT_ARRAY),
            (&limits, Type::INT4_ARRAY),
            (&filled, Type::BOOL_ARRAY),
        ];
        let rows = send(&self.0, &sql::LIST_LOCAL, &params, keys.len()).await?;
        Ok(by_number(&rows, keys.len(), page))
    }
}

/// A row: the page's number, its code, and the page.
fn page(row: &Record<'_>) -> Result<Option<Bytes>> {
    match rows::code_of_state(row.field(1)?)? {
        None => Ok(row.field::<Option<&[u8]>>(2)?.map(Bytes::copy_from_slice)),
        Some(code) => Err(code.into()),
    }
}

/// The pages of each node.
pub struct Pages {
    nodes: Arc<Nodes>,
    /// Pages gather.
    is_gathering: bool,
    local: ReadsByNode<ReadLocal>,
}

impl Pages {
    pub fn new(nodes: &Arc<Nodes>, config: &Postgres) -> Self {
        let bounds = Bounds {
            in_flight_max: config.batches_in_flight_max,
            stalled: STALLED,
            together_max: ROWS_MAX,
            waiting_max: WAITING_MAX,
            wait: ANSWERED_WITHIN,
        };
        let is_gathering = config.batch_elements_max > 1;
        Self { nodes: nodes.clone(), is_gathering, local: ReadsByNode::new(ReadLocal, bounds) }
    }

    /// A page, packed; `None` if it has to be read alone. Must be called within a tokio runtime.
    pub async fn read(&self, key: PageKey) -> Result<Option<Bytes>> {
        if !self.is_gathering {
            return Ok(None);
        }
        let node = self.nodes.of(key.pid).await?;
        match self.local.of(&node).read(Arc::new(key)).await {
            Err(error) if error.code() == ErrorCode::WrongNode => {
                count_retries(&sql::LIST_LOCAL, 1);
                self.nodes.refresh().await?;
                Ok(None)
            }
            answer => answer,
        }
    }
}
