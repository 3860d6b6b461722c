//! The metadata database, one method a verb. Invariant: a statement is sent again only when it changes nothing, was rolled
//! back, or carries a request id that makes the second time harmless; what may have happened is `unknown_outcome`, never
//! a failure (PROTOCOLS rule 18).

mod directories;
mod fault;
mod namespaces;
mod objects;
mod operations;
mod pool;
mod reads;
mod rows;
mod sql;

use std::time::{Duration, Instant};

use deadpool_postgres::{Pool, PoolError};
use mantle_types::{ErrorCode, Result};
use rand::Rng;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

pub use self::{
    directories::{NewDirectory, RenameDirectory, SetAttributes},
    namespaces::Namespace,
    objects::{NewObject, RenameObject},
    operations::{Operation, RemoveTree},
    reads::SubtreeTotals,
    rows::{Entry, Written},
};
use self::{fault::Fault, pool::DoubtfulCommits, sql::Statement};
use crate::config::Postgres;

/// How often a statement that lost against a concurrent one is tried again.
const CONFLICT_RETRIES_MAX: u32 = 6;
/// How often a statement is sent again after its connection broke.
const LOST_RETRIES_MAX: u32 = 2;
/// The first pause before a retry; it doubles, and is jittered so that rivals do not meet again.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Who changes something, under which request id, with the hash of what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Signed {
    /// The caller's uid.
    pub principal: u32,
    /// The namespace's id; 0 for the creation and removal of namespaces.
    pub ns: i64,
    /// The request id.
    pub request: uuid::Uuid,
    /// See [`crate::hash::RequestHash`].
    pub hash: i64,
}

/// Handle on the database.
pub struct Store {
    pool: Pool,
    doubtful: DoubtfulCommits,
}

/// Waits before retry number `attempt` (from 0).
pub async fn pause(attempt: u32) {
    let base = RETRY_PAUSE * 2u32.pow(attempt.min(8));
    let jittered = base.mul_f64(rand::rng().random_range(0.5..1.5));
    tokio::time::sleep(jittered).await;
}

impl Store {
    /// Makes the pool; connects when first used.
    pub fn new(config: &Postgres, application_name: &str, wait: Duration) -> anyhow::Result<Self> {
        let (pool, doubtful) = pool::build(config, application_name, wait)?;
        Ok(Self { pool, doubtful })
    }

    async fn query(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut lost = false;
        for attempt in 0.. {
            let fault = match self.query_once(statement, params).await {
                Ok(rows) => return Ok(rows),
                Err(fault) => fault,
            };
            let again = match fault {
                Fault::Conflict(_) => attempt < CONFLICT_RETRIES_MAX,
                Fault::Lost(_) => attempt < LOST_RETRIES_MAX,
                _ => false,
            };
            lost |= matches!(fault, Fault::Lost(_));
            if !again {
                let failed_before_sending = matches!(fault, Fault::Unavailable(_));
                let error = fault.into_error(statement.name, statement.mutates);
                // An earlier attempt may have committed, so what this one was refused says nothing.
                let unknown = lost && statement.mutates && failed_before_sending;
                return Err(if unknown { ErrorCode::UnknownOutcome.into() } else { error });
            }
            metrics::counter!("mantle_gateway_sql_retries_total", "statement" => statement.name).increment(1);
            pause(attempt).await;
        }
        Err(ErrorCode::Internal.into())
    }

    async fn query_once(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let client = self.pool.get().await.map_err(|e| match e {
            PoolError::Backend(cause) => Fault::Unavailable(fault::told(&cause)),
            other => Fault::Unavailable(other.to_string()),
        })?;
        let doubtful = self.doubtful.count();
        let started = Instant::now();
        let answer = client.query_typed(statement.text, params).await;
        metrics::histogram!("mantle_gateway_sql_seconds", "statement" => statement.name).record(started.elapsed());
        let rows = answer.map_err(Fault::of)?;
        if statement.mutates && self.doubtful.count() != doubtful {
            return Err(Fault::Mantle(ErrorCode::UnknownOutcome));
        }
        Ok(rows)
    }

    async fn query_one(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Row> {
        let mut rows = self.query(statement, params).await?;
        if rows.len() != 1 {
            tracing::error!(statement = statement.name, rows = rows.len(), "one row was expected");
            return Err(ErrorCode::Internal.into());
        }
        rows.pop().ok_or_else(|| ErrorCode::Internal.into())
    }

    /// Is the database there?
    pub async fn ping(&self) -> Result<()> {
        self.query_one(&sql::PING, &[]).await.map(drop)
    }

    /// A block of new ids, first and last.
    pub async fn allocate_ids(&self, owner: &str, count: u32) -> Result<(i64, i64)> {
        let count = i64::from(count);
        let row = self.query_one(&sql::ALLOCATE_IDS, &[(&owner, Type::TEXT), (&count, Type::INT8)]).await?;
        Ok((rows::get(&row, "first_id")?, rows::get(&row, "last_id")?))
    }

    /// The epoch of an index group.
    pub async fn epoch(&self, group: u32) -> Result<u64> {
        let group = group as i32;
        let row = self.query_one(&sql::INDEX_GROUP, &[(&group, Type::INT4)]).await?;
        Ok(rows::get::<i64>(&row, "epoch")? as u64)
    }
}
