//! Sends statements to one node, once or with retries. Invariant: a statement is sent again only when it changes
//! nothing, was rolled back, or carries a request id that makes the second time harmless (P18).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{Pool, PoolError};
use mantle_telemetry::step;
use mantle_tls::PostgresConnector;
use mantle_types::{ErrorCode, Result};
use rand::Rng;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use tracing::Instrument;

use super::{
    fault::{self, Fault},
    pool::{self, UnconfirmedCommits},
    sql::{self, Statement},
};
use crate::{config::Postgres, disconnect::check_client_waits};

/// How often a statement is sent again after a conflict.
const CONFLICT_RETRIES_MAX: u32 = 6;
/// How often a statement is sent again after its connection broke.
const LOST_RETRIES_MAX: u32 = 2;
/// The first pause before a retry. It doubles, with jitter, so that two rivals do not collide again.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A parameter of a statement.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// One node's connections. A clone shares them.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    unconfirmed: UnconfirmedCommits,
    /// Set when a statement reaches no primary.
    suspect: Arc<AtomicBool>,
}

/// Waits before retry number `attempt` (from 0).
pub async fn pause(attempt: u32) {
    let base = RETRY_PAUSE * 2u32.pow(attempt.min(8));
    let jittered = base.mul_f64(rand::rng().random_range(0.5..1.5));
    tokio::time::sleep(jittered).await;
}

impl Database {
    /// Connects at the first statement. `named`: the application's name, and whether it is the configured server and not one
    /// that PostgreSQL named. Several nodes may share `suspect`.
    pub fn new(
        config: &Postgres,
        tls: &PostgresConnector,
        named: (&str, bool),
        wait: Duration,
        suspect: Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let (pool, unconfirmed) = pool::build(config, tls, named, wait)?;
        Ok(Self { pool, unconfirmed, suspect })
    }

    /// Sends a statement, with a bounded number of retries. `lost`: it was sent before, over a connection that broke.
    pub async fn query(&self, statement: &'static Statement, params: &[Param<'_>], mut lost: bool) -> Result<Vec<Row>> {
        self.query_noting(statement, params, &mut lost).await
    }

    /// As [`Self::query`]. Afterwards `lost` says whether any connection broke: then an attempt may still be carried out, whatever
    /// the last one was answered.
    pub async fn query_noting(
        &self,
        statement: &'static Statement,
        params: &[Param<'_>],
        lost: &mut bool,
    ) -> Result<Vec<Row>> {
        // A statement that was sent before has an unknown outcome, which the client disconnect does not change.
        if statement.mutates && !*lost {
            check_client_waits()?;
        }
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
            *lost |= matches!(fault, Fault::Lost(_));
            if !again {
                let failed_before_sending = matches!(fault, Fault::Unavailable(_));
                let error = fault.into_error(statement.name, statement.mutates);
                // An earlier attempt may have committed, so this refusal proves nothing.
                let unknown = *lost && statement.mutates && failed_before_sending;
                return Err(if unknown { ErrorCode::UnknownOutcome.into() } else { error });
            }
            count_retries(statement, 1);
            pause(attempt).await;
        }
        Err(ErrorCode::Internal.into())
    }

    /// As [`Self::query`], for a statement that answers one row.
    pub async fn query_one(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Row> {
        one(statement, self.query(statement, params, false).await?)
    }

    /// Sends a statement once.
    pub async fn query_once(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let span =
            step!("statement", otel.kind = "client", db.system.name = "postgresql", db.operation.name = statement.name);
        let answer = self.send(statement, params).instrument(span).await;
        if matches!(answer, Err(Fault::Lost(_) | Fault::Unavailable(_))) {
            self.suspect.store(true, Ordering::Release);
        }
        answer
    }

    async fn send(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let client = self.pool.get().await.map_err(|e| match e {
            PoolError::Backend(cause) => Fault::Unavailable(fault::describe(&cause)),
            other => Fault::Unavailable(other.to_string()),
        })?;
        let unconfirmed = self.unconfirmed.count();
        let started = Instant::now();
        let answer = client.query_typed(statement.text, params).await;
        seconds(statement.name).record(started.elapsed());
        let rows = answer.map_err(Fault::of)?;
        if statement.mutates && self.unconfirmed.count() != unconfirmed {
            return Err(Fault::Mantle(ErrorCode::UnknownOutcome));
        }
        Ok(rows)
    }
}

/// The only row of an answer.
pub fn one(statement: &Statement, mut rows: Vec<Row>) -> Result<Row> {
    let count = rows.len();
    rows.pop().filter(|_| count == 1).ok_or_else(|| {
        tracing::error!(statement = statement.name, rows = count, "one row was expected");
        ErrorCode::Internal.into()
    })
}

/// Counts elements that are sent again.
pub fn count_retries(statement: &Statement, calls: usize) {
    retries(statement.name).increment(calls as u64);
}

fn retries(statement: &'static str) -> metrics::Counter {
    metrics::counter!("mantle_gateway_sql_retries_total", "statement" => statement)
}

fn seconds(statement: &'static str) -> metrics::Histogram {
    metrics::histogram!("mantle_gateway_sql_seconds", "statement" => statement)
}

/// Prometheus sees the series of each statement from the start.
pub fn begin_series() {
    for name in sql::NAMES {
        retries(name).absolute(0);
        drop(seconds(name));
    }
}
