//! Sends statements to one node, once or with retries. Invariant: a statement is sent again only when it changes
//! nothing, was rolled back, or carries a request id that makes the second time harmless (P18).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{Object, Pool, PoolError};
use mantle_telemetry::step;
use mantle_tls::PostgresConnector;
use mantle_types::{ErrorCode, Result};
use rand::Rng;
use tokio::time::timeout;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use tracing::Instrument;

use super::{
    fault::{self, Fault},
    pool::{self, UnconfirmedCommits},
    rows,
    sql::{self, Statement},
};
use crate::{
    config::Postgres,
    disconnect::{check_client_waits, departed},
    waiting::Waiting,
};

/// How often a statement is sent again after a conflict.
const CONFLICT_RETRIES_MAX: u32 = 6;
/// How often a statement is sent again after its connection broke.
const LOST_RETRIES_MAX: u32 = 2;
/// The first pause before a retry. It doubles, with jitter, so that two rivals do not collide again.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A parameter of a statement.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How long a statement may take.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For a connection of the pool.
    pub connection: Duration,
    /// For the answer to a read, whose session ends then; and for all attempts of a change, which are never cancelled: no
    /// further one begins that may end later.
    pub answer: Duration,
}

/// One node's connections. A clone shares them.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    answer_wait: Duration,
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
        waits: Waits,
        suspect: Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let (pool, unconfirmed) = pool::build(config, tls, named, waits.connection)?;
        Ok(Self { pool, answer_wait: waits.answer, unconfirmed, suspect })
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
        let waiting = Waiting::current().filter(|_| statement.mutates);
        let begun = Instant::now();
        for attempt in 0.. {
            let sent = Instant::now();
            let fault = match self.send_counted(statement, params, waiting.as_deref(), *lost).await {
                Ok(rows) => return Ok(rows),
                Err(fault) => fault,
            };
            // What waited for a lock may do so again, as long.
            let is_time_left = begun.elapsed() + 2 * sent.elapsed() < self.answer_wait;
            let again = match fault {
                Fault::Conflict(_) => attempt < CONFLICT_RETRIES_MAX && is_time_left,
                Fault::Lost(_) => !statement.is_sent_once && attempt < LOST_RETRIES_MAX && is_time_left,
                // Nothing has changed, and another session may accept it.
                Fault::StaleSession(_) => attempt < CONFLICT_RETRIES_MAX && is_time_left,
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

    /// Sends a statement of the request `waiting` once, and notes there whether a change was sent. `lost`: it was sent before.
    async fn send_counted(
        &self,
        statement: &'static Statement,
        params: &[Param<'_>],
        waiting: Option<&Waiting>,
        lost: bool,
    ) -> Result<Vec<Row>, Fault> {
        let Some(waiting) = waiting else { return self.query_once(statement, params).await };
        let is_counted = waiting.begin_sending();
        if !is_counted && !lost {
            return Err(Fault::Mantle(departed().code()));
        }
        let answer = self.query_once(statement, params).await;
        if is_counted && answer.as_ref().is_err_and(Fault::is_undone) {
            waiting.note_undone();
        }
        answer
    }

    /// Ends a session that refuses mutations although a new one would not: it began before a setting was changed back,
    /// or has another client's SET. The pooler chooses the session; usually it is that of the last statement.
    pub async fn end_stale_session(&self) {
        let _ = self.query_once(&sql::END_STALE_SESSION, &[]).await;
    }

    /// Ends a session whose statements are cancelled after milliseconds.
    pub async fn end_cutting_session(&self) {
        let _ = self.query_once(&sql::END_CUTTING_SESSION, &[]).await;
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
        let client = InUse(Some(client));
        let unconfirmed = self.unconfirmed.count();
        let started = Instant::now();
        let answer = match statement.mutates {
            true => Ok(client.query(statement, params).await),
            false => timeout(self.answer_wait, client.query(statement, params)).await,
        };
        seconds(statement.name).record(started.elapsed());
        let Ok(answer) = answer else { return Err(Fault::Unavailable("no answer in time".to_owned())) };
        let mut answer = answer.map_err(Fault::of);
        if let Err(Fault::Mantle(code @ (ErrorCode::WrongIsolation | ErrorCode::WeakCommit))) = answer {
            let Ok(accepts) = timeout(self.answer_wait, client.end_stale_session()).await else {
                return Err(Fault::StaleSession(code));
            };
            if accepts {
                answer = Err(Fault::StaleSession(code));
            }
        }
        client.put_back();
        let rows = answer?;
        if statement.mutates && self.unconfirmed.count() != unconfirmed {
            return Err(Fault::Mantle(ErrorCode::UnknownOutcome));
        }
        Ok(rows)
    }
}

/// A connection on which a statement runs; `None` once it is back in the pool. If it is dropped before the answer, the
/// connection is closed, because the next answer on it would belong to this statement. PostgreSQL then ends a read
/// (`client_connection_check_interval`). No cancel request is sent: PgBouncer 1.18 ended itself at some of them ("bad
/// client state").
struct InUse(Option<Object>);

impl InUse {
    async fn query(&self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        match &self.0 {
            Some(client) => client.query_typed(statement.text, params).await,
            None => Ok(Vec::new()),
        }
    }

    /// As [`Database::end_stale_session`], for the session of the last statement, which failed. PostgreSQL sends an error
    /// before the session is ready again. Until then the pooler keeps the session for this connection, and would give
    /// another connection another session. `false`: new sessions refuse mutations too.
    async fn end_stale_session(&self) -> bool {
        match self.query(&sql::END_STALE_SESSION, &[]).await.map_err(Fault::of) {
            Ok(rows) => rows.first().is_some_and(|row| rows::get(row, "is_sound").unwrap_or(false)),
            Err(Fault::Lost(_)) => true,
            // It could not answer, perhaps because it cancels its statements after a millisecond. A retry meets another session.
            Err(_) => {
                let _ = self.query(&sql::END_CUTTING_SESSION, &[]).await;
                true
            }
        }
    }

    fn put_back(mut self) {
        self.0 = None;
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Without its pool it ends with its session.
        self.0.take().map(Object::take);
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
