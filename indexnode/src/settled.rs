//! On the leader: finds an entry of the log after which the index has everything that PostgreSQL shows (P58).
//!
//! Callers that wait share one sample of each source's position, and the next sample does not wait until the last one is
//! reached. The leader proposes nothing and sends no statement for this: it compares the samples with the positions
//! that it has read and applied.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::ensure;
use futures::future::try_join_all;
use mantle_types::{Error, ErrorCode, Lsn, Result};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    failpoints::{self, Failpoint},
    index::command::SourceId,
    postgres::upstream::{Database, Incarnation, Sampler},
    raft::state::IndexState,
};

/// How long a caller waits. It then asks PostgreSQL itself, so it must not wait much longer than that takes.
const WAIT: Duration = Duration::from_millis(200);
/// Most callers that wait for a sample.
const WAITING_MAX: usize = 4096;

/// For each source, the LSN below which every change of a directory that it committed is applied here.
pub type Covered = BTreeMap<SourceId, Lsn>;

type Positions = Vec<(SourceId, Lsn)>;
type Caller = oneshot::Sender<Result<u64>>;

/// The leader's change stream, as far as it runs.
#[derive(Default)]
pub struct Settled {
    queue: Mutex<Option<mpsc::Sender<Caller>>>,
}

impl Settled {
    /// A log index: after it, an index has everything that PostgreSQL showed when the call began. `index_unavailable` if the
    /// stream does not run or lags, or a source does not answer.
    pub async fn log_index(&self, state: &IndexState) -> Result<u64> {
        if failpoints::is_hit(Failpoint::SettleWithoutSample) {
            return Ok(applied(state));
        }
        let queue = self.queue.lock().clone().ok_or_else(|| unavailable("the change stream does not run"))?;
        let (caller, answer) = oneshot::channel();
        queue.try_send(caller).map_err(|_| unavailable("too many lookups wait for PostgreSQL's position"))?;
        let answer = timeout(WAIT, answer).await.map_err(|_| lags())?;
        answer.unwrap_or_else(|_| Err(unavailable("the change stream has ended")))
    }

    /// Answers callers until the result is dropped.
    pub fn begin(&self, session: Session) -> Serving<'_> {
        let (queue, callers) = mpsc::channel(WAITING_MAX);
        *self.queue.lock() = Some(queue);
        let mut task = JoinSet::new();
        task.spawn(session.serve(callers));
        Serving { settled: self, _task: task }
    }
}

/// See [`Settled::begin`].
pub struct Serving<'a> {
    settled: &'a Settled,
    _task: JoinSet<()>,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *self.settled.queue.lock() = None;
    }
}

/// A source whose position is sampled, over a connection that opens with the first sample.
pub struct SampledSource {
    id: SourceId,
    database: Database,
    server: Incarnation,
    sampler: Option<Box<dyn Sampler>>,
}

impl SampledSource {
    /// A source at this node. `server`: the one that sends the stream.
    pub fn new(id: SourceId, database: Database, server: Incarnation) -> Self {
        Self { id, database, server, sampler: None }
    }

    async fn sample(&mut self) -> anyhow::Result<(SourceId, Lsn)> {
        let mut sampler = match self.sampler.take() {
            Some(sampler) => sampler,
            None => self.database.sampler().await?,
        };
        let (server, position) = sampler.sample().await?;
        // The node's address may lead to another server by now.
        ensure!(server == self.server, "another server answers than the one that sends the stream");
        // Not after a failure: the next sample connects anew.
        self.sampler = Some(sampler);
        Ok((self.id, position))
    }
}

/// One session of the change stream.
pub struct Session {
    /// All sources of the group.
    pub sources: Vec<SampledSource>,
    /// This replica's state.
    pub state: Arc<IndexState>,
    /// Moves with the stream.
    pub covered: watch::Receiver<Covered>,
}

impl Session {
    async fn serve(mut self, mut callers: mpsc::Receiver<Caller>) {
        let (mut batch, mut waits) = (Vec::new(), JoinSet::new());
        // Positions that were not reached in time: until they are, later ones are not either, and nobody waits.
        let mut late: Arc<OnceLock<Positions>> = Arc::default();
        while callers.recv_many(&mut batch, WAITING_MAX).await > 0 {
            while waits.try_join_next().is_some() {}
            batch.retain(|caller: &Caller| !caller.is_closed());
            if late.get().is_some_and(|positions| !are_reached(positions, &self.covered.borrow())) {
                batch.drain(..).for_each(|caller| give(caller, Err(lags())));
                continue;
            }
            if late.get().is_some() {
                late = Arc::default();
            }
            if batch.is_empty() {
                continue;
            }
            // The batch is closed: a later caller gets a later sample (P27).
            match try_join_all(self.sources.iter_mut().map(SampledSource::sample)).await {
                Ok(positions) => drop(waits.spawn(self.reach(positions, std::mem::take(&mut batch), late.clone()))),
                Err(e) => {
                    tracing::debug!(error = format!("{e:#}"), "a source does not tell its position");
                    batch.drain(..).for_each(|caller| give(caller, Err(unavailable("PostgreSQL does not answer"))));
                }
            }
        }
    }

    /// Answers callers once the positions are reached.
    fn reach(
        &self,
        positions: Positions,
        callers: Vec<Caller>,
        late: Arc<OnceLock<Positions>>,
    ) -> impl Future<Output = ()> + use<> {
        let (mut covered, state) = (self.covered.clone(), self.state.clone());
        async move {
            let reached = covered.wait_for(|covered| are_reached(&positions, covered));
            let answer = match timeout(WAIT, reached).await {
                Ok(Ok(_)) => Ok(applied(&state)),
                Ok(Err(_)) => return,
                Err(_) => Err(lags()),
            };
            if answer.is_err() {
                late.get_or_init(|| positions);
            }
            callers.into_iter().for_each(|caller| give(caller, answer.clone()));
        }
    }
}

fn are_reached(positions: &Positions, covered: &Covered) -> bool {
    positions.iter().all(|(source, position)| covered.get(source).is_some_and(|end| end >= position))
}

/// The last entry that is applied.
fn applied(state: &IndexState) -> u64 {
    state.positions().borrow().applied_end.saturating_sub(1)
}

/// The caller may have gone; a send error is ignored.
fn give(caller: Caller, answer: Result<u64>) {
    let _ = caller.send(answer);
}

fn lags() -> Error {
    unavailable("the index lags behind PostgreSQL")
}

fn unavailable(why: &str) -> Error {
    Error::new(ErrorCode::IndexUnavailable, why)
}
