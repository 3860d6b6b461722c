//! Calls to PostgreSQL: repeated after a passing failure, if needed on a new connection, and spread over several
//! connections.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use mantle_types::{ErrorCode, limits::MESSAGE_OPS_MAX};
use parking_lot::Mutex;
use tokio_postgres::{Client, Row, Statement, types::ToSql};
use tokio_util::sync::CancellationToken;

use crate::{
    connect,
    database_url::DatabaseUrl,
    exit::{Exit, Failure, failure},
    passing::is_passing,
    sql,
};

/// Most ids of one block (2^24, see `mantle.allocate_ids`).
const BLOCK_IDS_MAX: i64 = 1 << 24;
const _: () = assert!(BLOCK_IDS_MAX > MESSAGE_OPS_MAX as i64);

/// A call that failed for good.
#[derive(Debug, thiserror::Error)]
#[error("{failure}")]
pub struct CallError {
    pub code: Option<ErrorCode>,
    #[source]
    failure: Failure,
}

impl CallError {
    fn new(error: &tokio_postgres::Error, attempts: u32) -> Self {
        let mut text = match error.as_db_error() {
            Some(db) => format!("PostgreSQL answered {}: {}", db.code().code(), db.message()),
            None => {
                let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
                format!("the connection to PostgreSQL failed: {error}{cause}")
            }
        };
        if attempts > 1 {
            text.push_str(&format!(" (after {attempts} attempts)"));
        }
        let code = error.code().and_then(|state| ErrorCode::from_sqlstate(state.code()));
        Self { code, failure: Failure::of_postgresql(error, text) }
    }

    /// An answer that breaks the function's contract.
    pub fn answer(text: String) -> Self {
        Self { code: None, failure: Failure::new(Exit::Other, text) }
    }
}

/// A connection that renews itself, with one prepared statement.
pub struct Session {
    url: DatabaseUrl,
    sql: &'static str,
    ready: Option<(Client, Statement)>,
}

pub struct Answer {
    pub rows: Vec<Row>,
    /// Whether the call was sent more than once. Entries that it found may then be its own, from an earlier attempt.
    pub is_repeated: bool,
}

impl Answer {
    pub fn first(&self) -> Result<&Row, CallError> {
        self.rows.first().ok_or_else(|| CallError::answer("the database answered no row".into()))
    }
}

impl Session {
    /// A session for one statement. It connects with its first call.
    pub fn new(url: &DatabaseUrl, sql: &'static str) -> Self {
        Self { url: url.clone(), sql, ready: None }
    }

    pub fn several(count: usize, url: &DatabaseUrl, sql: &'static str) -> Vec<Self> {
        (0..count).map(|_| Self::new(url, sql)).collect()
    }

    /// Runs the statement; repeats it after a passing failure, at most [`connect::ATTEMPTS_MAX`] times in all.
    pub async fn call(&mut self, params: &[&(dyn ToSql + Sync)]) -> Result<Answer, CallError> {
        let mut attempt = 1;
        loop {
            match self.call_once(params).await {
                Ok(rows) => return Ok(Answer { rows, is_repeated: attempt > 1 }),
                Err(error) if !is_passing(&error) || attempt == connect::ATTEMPTS_MAX => {
                    return Err(CallError::new(&error, attempt));
                }
                Err(error) if error.code().is_none() || error.is_closed() => self.ready = None,
                Err(_) => {}
            }
            attempt += 1;
            tokio::time::sleep(connect::pause(attempt)).await;
        }
    }

    async fn call_once(&mut self, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let (client, statement) = match &mut self.ready {
            Some(ready) if !ready.0.is_closed() => ready,
            other => {
                let client = connect::connect(&self.url).await?;
                let statement = client.prepare(self.sql).await?;
                other.insert((client, statement))
            }
        };
        client.query(&*statement, params).await
    }
}

/// The error of an import that the user interrupted.
pub fn interrupted() -> anyhow::Error {
    failure(Exit::Interrupted, "interrupted; acknowledged entries stay, and the same command loads the rest")
}

/// Runs `work` over all jobs, one after the other on each session. After the first failure the other sessions only
/// finish their current calls.
pub async fn in_parallel<J>(
    sessions: &mut [Session],
    jobs: impl IntoIterator<Item = J>,
    cancel: &CancellationToken,
    work: impl AsyncFn(&mut Session, J) -> Result<()>,
) -> Result<()> {
    let jobs = Mutex::new(jobs.into_iter().collect::<VecDeque<J>>());
    let (jobs, work) = (&jobs, &work);
    let runs = sessions.iter_mut().map(|session| async move {
        loop {
            let Some(job) = jobs.lock().pop_front() else { return Ok(()) };
            if cancel.is_cancelled() {
                return Err(interrupted());
            }
            if let Err(error) = work(session, job).await {
                jobs.lock().clear();
                return Err(error);
            }
        }
    });
    futures::future::join_all(runs).await.into_iter().collect()
}

/// New ids, taken from blocks; each block is as large as the ids that are still wanted.
pub struct Ids {
    session: Session,
    next: i64,
    left: i64,
    /// Ids that are still wanted, those in the block included.
    wanted: i64,
}

impl Ids {
    pub fn new(url: &DatabaseUrl, wanted: usize) -> Self {
        Self { session: Session::new(url, sql::ALLOCATE_IDS), next: 0, left: 0, wanted: wanted as i64 }
    }

    /// The first of `count` adjacent ids of one block.
    pub async fn take(&mut self, count: usize) -> Result<i64> {
        let count = count as i64;
        if count > self.left {
            let size = self.wanted.clamp(count, BLOCK_IDS_MAX);
            let answer = self.session.call(&[&"import", &size]).await.context("allocating ids")?;
            let row = answer.first()?;
            (self.next, self.left) = (row.get(0), row.get::<_, i64>(1) - row.get::<_, i64>(0) + 1);
        }
        let first = self.next;
        (self.next, self.left, self.wanted) = (first + count, self.left - count, self.wanted - count);
        Ok(first)
    }
}

/// Converts an answer's `ord` (from 1) to a position in the sent elements.
pub fn position(ord: i32, sent: usize) -> Result<usize, CallError> {
    let place = usize::try_from(ord).ok().and_then(|ord| ord.checked_sub(1)).filter(|place| *place < sent);
    place.ok_or_else(|| CallError::answer(format!("the database answered for element {ord} of {sent}")))
}

pub fn error_code(sqlstate: &str) -> Result<ErrorCode, CallError> {
    let code = ErrorCode::from_sqlstate(sqlstate);
    code.ok_or_else(|| CallError::answer(format!("the database answered an unknown code {sqlstate:?}")))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn answers_are_for_sent_elements() {
        assert_eq!([1, 3].map(|ord| position(ord, 3).unwrap()), [0, 2]);
        for ord in [0, 4, -1, i32::MIN] {
            assert!(position(ord, 3).is_err());
        }
        assert_eq!(error_code("MT012").unwrap(), ErrorCode::AlreadyExists);
        assert!(error_code("MT000").is_err());
    }

    fn nowhere() -> DatabaseUrl {
        "postgresql://nobody@127.0.0.1:1/nothing".parse().unwrap()
    }

    #[tokio::test]
    async fn every_job_runs_once_and_none_after_a_cancellation() {
        let (done, cancel) = (Mutex::new(Vec::new()), CancellationToken::new());
        let mut sessions = Session::several(3, &nowhere(), "");
        let work = async |_: &mut Session, job: u32| {
            done.lock().push(job);
            Ok(())
        };
        in_parallel(&mut sessions, 0..10, &cancel, work).await.unwrap();
        done.lock().sort_unstable();
        assert_eq!(*done.lock(), (0..10).collect::<Vec<_>>());
        cancel.cancel();
        let error = in_parallel(&mut sessions, 0..10, &cancel, work).await.unwrap_err();
        assert_eq!(Exit::of(&error), Exit::Interrupted);
    }

    #[tokio::test]
    async fn a_failure_ends_all_runs() {
        let (count, cancel) = (Mutex::new(0), CancellationToken::new());
        let error = in_parallel(&mut Session::several(2, &nowhere(), ""), 0..1000, &cancel, async |_, job| {
            *count.lock() += 1;
            if job == 3 { Err(anyhow!("job {job}")) } else { Ok(()) }
        })
        .await
        .unwrap_err();
        assert_eq!(error.to_string(), "job 3");
        assert!(*count.lock() < 1000);
    }
}
