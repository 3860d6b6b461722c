//! Natural batching of one verb's calls: calls that arrive while one is in flight go together in the next. An idle
//! batcher sends a call at once, alone. A call may wait for a latch, so after 20 ms the batcher sends the next one in
//! parallel. It does not do this earlier: with four calls always in flight, batches were a third as large, and there
//! were half as many mkdirs a second (16 clients, 2 processors). Invariants: at most `batches_in_flight_max` calls are
//! in flight; a batch holds a request id once; an element that was sent runs to its end, and its caller gets exactly
//! one answer.
//!
//! A batch is one transaction, so an error of the whole call belongs to no element. The elements are then sent one by
//! one (P12). They keep their request ids, so this is harmless even if the batch was committed.
//!
//! An element is sent only while somebody waits for its answer: not if the client has disconnected, or was answered
//! that the wait was too long (P44).

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use mantle_telemetry::step;
use mantle_types::{Error, ErrorCode, Result};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinHandle,
};
use tracing::Instrument;
use uuid::Uuid;

use super::pause;
use crate::{disconnect::departed, waiting::Waiting};

/// Histogram of the elements per batch, by statement.
pub const BATCH_ELEMENTS: &str = "mantle_gateway_batch_elements";
/// How long the next call waits for the last one.
const STALLED: Duration = Duration::from_millis(20);

/// Sends the elements of one verb.
pub trait Calls: Send + Sync + 'static {
    type Element: Send + Sync + 'static;
    type Answer: Send + 'static;
    const NAME: &'static str;

    /// The request id. If a batch held it twice, PostgreSQL would refuse the second element as another request.
    fn request(element: &Self::Element) -> Uuid;

    /// Sends several elements as one call, once. Answers in the elements' order.
    fn together(
        &self,
        elements: &[&Self::Element],
    ) -> impl Future<Output = Result<Vec<Result<Self::Answer>>, Failure>> + Send;

    /// Sends one element, with retries. `lost`: it was sent before, over a connection that broke.
    fn alone(&self, element: &Self::Element, lost: bool) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Why a batch has no answers.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// The elements may succeed singly.
    Singly {
        /// The connection broke: the batch may have been carried out.
        lost: bool,
    },
    /// The elements would fail singly, too.
    ForAll(Error),
}

/// Bounds of a batcher, each at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub batches_in_flight_max: usize,
    /// Most elements of a batch. 1 turns batching off, and with it the bound on calls in flight.
    pub elements_max: usize,
}

struct Job<C: Calls> {
    element: C::Element,
    reply: oneshot::Sender<Result<C::Answer>>,
    /// The element's request.
    waiting: Option<Arc<Waiting>>,
}

impl<C: Calls> Job<C> {
    /// Notes that the element is sent; `None`, and an answer, if nobody waits for it.
    fn begin_sending(self) -> Option<Self> {
        if self.waiting.as_ref().is_none_or(|waiting| waiting.begin_sending()) {
            return Some(self);
        }
        self.answer(Err(departed()));
        None
    }

    /// The element was not sent, or was rolled back.
    fn note_undone(&self) {
        self.waiting.as_ref().inspect(|waiting| waiting.note_undone());
    }

    fn answer(self, answer: Result<C::Answer>) {
        // The caller may have gone; ignore the send error.
        let _ = self.reply.send(answer);
    }
}

/// Batches the calls of one verb.
pub struct Batcher<C: Calls> {
    calls: Arc<C>,
    /// `None`: batching is off.
    jobs: Option<mpsc::UnboundedSender<Job<C>>>,
}

impl<C: Calls> Batcher<C> {
    /// Starts a task, which ends with the batcher. Must be called within a tokio runtime.
    pub fn new(calls: C, bounds: Bounds) -> Self {
        let calls = Arc::new(calls);
        // Prometheus sees the series from the start.
        drop((waiting_calls(C::NAME), batch_elements(C::NAME)));
        if bounds.elements_max <= 1 {
            return Self { calls, jobs: None };
        }
        let (jobs, arrived) = mpsc::unbounded_channel();
        tokio::spawn(run(calls.clone(), bounds, Queue { arrived, held: Vec::new() }));
        Self { calls, jobs: Some(jobs) }
    }

    /// The answer to one element. If the caller stops waiting before the element is sent, it is not sent.
    pub async fn submit(&self, element: C::Element) -> Result<C::Answer> {
        self.answer(element).instrument(step!("batched statement", db.operation.name = C::NAME)).await
    }

    async fn answer(&self, element: C::Element) -> Result<C::Answer> {
        let Some(jobs) = &self.jobs else {
            batch_elements(C::NAME).record(1.0);
            return self.calls.alone(&element, false).await;
        };
        let (reply, answer) = oneshot::channel();
        waiting_calls(C::NAME).increment(1.0);
        if jobs.send(Job { element, reply, waiting: Waiting::current() }).is_err() {
            waiting_calls(C::NAME).decrement(1.0);
            return Err(ErrorCode::DatabaseUnavailable.into());
        }
        // There is no answer only if the task ended. The element may have been carried out.
        answer.await.unwrap_or_else(|_| Err(ErrorCode::UnknownOutcome.into()))
    }
}

/// Gauge of the elements that wait for a batch.
pub(super) fn waiting_calls(statement: &'static str) -> metrics::Gauge {
    metrics::gauge!("mantle_gateway_batch_waiting", "statement" => statement)
}

/// Histogram of the elements per batch.
pub(super) fn batch_elements(statement: &'static str) -> metrics::Histogram {
    metrics::histogram!(BATCH_ELEMENTS, "statement" => statement)
}

/// Elements that were not sent yet.
struct Queue<C: Calls> {
    arrived: mpsc::UnboundedReceiver<Job<C>>,
    /// Received from the channel; fewer than a batch holds.
    held: Vec<Job<C>>,
}

impl<C: Calls> Queue<C> {
    /// Waits for an element. False when the batcher is gone and no element is left.
    async fn ready(&mut self) -> bool {
        !self.held.is_empty() || self.arrived.recv_many(&mut self.held, 1).await > 0
    }

    /// The next batch: at most `elements_max`, each request id once, without elements whose callers have gone.
    fn batch(&mut self, elements_max: usize) -> Vec<Job<C>> {
        let mut taken = std::mem::take(&mut self.held);
        while taken.len() < elements_max {
            let Ok(job) = self.arrived.try_recv() else { break };
            taken.push(job);
        }
        let before = taken.len();
        taken.retain(|job| !job.reply.is_closed());
        let mut requests = HashSet::with_capacity(taken.len());
        let (batch, repeats): (Vec<_>, _) =
            taken.into_iter().partition(|job| requests.insert(C::request(&job.element)));
        self.held = repeats;
        waiting_calls(C::NAME).decrement((before - self.held.len()) as f64);
        batch.into_iter().filter_map(Job::begin_sending).collect()
    }
}

async fn run<C: Calls>(calls: Arc<C>, bounds: Bounds, mut queue: Queue<C>) {
    let permits = Arc::new(Semaphore::new(bounds.batches_in_flight_max.max(1)));
    let mut last: Option<JoinHandle<()>> = None;
    // An idle batcher holds no permit: the elements of a failed batch may need it.
    while queue.ready().await {
        // Elements gather until the last call has ended.
        if let Some(ended) = last.take() {
            let _ = tokio::time::timeout(STALLED, ended).await;
        }
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let batch = queue.batch(bounds.elements_max);
        if !batch.is_empty() {
            batch_elements(C::NAME).record(batch.len() as f64);
            last = Some(tokio::spawn(carry_out(calls.clone(), permits.clone(), permit, batch)));
        }
    }
}

async fn carry_out<C: Calls>(calls: Arc<C>, permits: Arc<Semaphore>, permit: OwnedSemaphorePermit, batch: Vec<Job<C>>) {
    if batch.len() == 1 {
        for job in batch {
            alone(&*calls, job, false).await;
        }
        return;
    }
    let elements: Vec<&C::Element> = batch.iter().map(|job| &job.element).collect();
    match calls.together(&elements).await {
        Ok(answers) => batch.into_iter().zip(answers).for_each(|(job, answer)| job.answer(answer)),
        Err(Failure::ForAll(error)) => {
            for job in batch {
                if error.code() != ErrorCode::UnknownOutcome {
                    job.note_undone();
                }
                job.answer(Err(error.clone()));
            }
        }
        Err(Failure::Singly { lost }) => {
            drop(permit);
            if !lost {
                batch.iter().for_each(Job::note_undone);
            }
            pause(0).await;
            for job in batch {
                tokio::spawn(single(calls.clone(), permits.clone(), job, lost));
            }
        }
    }
}

/// Sends one element of a batch that failed. Each has its own permit, so that one that waits for a latch delays no
/// other.
async fn single<C: Calls>(calls: Arc<C>, permits: Arc<Semaphore>, job: Job<C>, lost: bool) {
    // Never fails: nothing closes the semaphore.
    let _permit = permits.acquire_owned().await;
    // What may have been carried out is asked for in any case.
    if let Some(job) = if lost { Some(job) } else { job.begin_sending() } {
        alone(&*calls, job, lost).await;
    }
}

/// Sends an element that has been marked as sent.
async fn alone<C: Calls>(calls: &C, job: Job<C>, lost: bool) {
    let answer = calls.alone(&job.element, lost).await;
    // An error says that nothing was changed, or that it is not known.
    if !lost && answer.as_ref().is_err_and(|error| error.code() != ErrorCode::UnknownOutcome) {
        job.note_undone();
    }
    job.answer(answer);
}

#[cfg(test)]
mod tests;
