//! Natural batching of one verb's calls: whatever arrives while a call is in flight goes together in the next one. On an
//! idle lane a call leaves at once, alone. A call that takes long (it waits for a latch) is not waited for: the next goes
//! beside it. Not at once: with four always in flight, batches were a third as large and mkdirs half as many a second
//! (16 clients, 2 processors). Invariants: at most `batches_in_flight_max` calls are in flight;
//! a batch holds a request id once; an element that was sent runs to its end, and its caller is answered exactly once.
//!
//! A batch is one transaction, so a fault of the whole call is no element's own: the elements are then sent singly
//! (P12), under the same request ids, which makes it harmless when the batch was carried out after all.

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use mantle_telemetry::step;
use mantle_types::{Error, ErrorCode, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tracing::Instrument;
use uuid::Uuid;

use super::pause;

/// Elements of the batches formed, by statement.
pub const BATCH_ELEMENTS: &str = "mantle_gateway_batch_elements";
/// Elements that wait for a batch, by statement.
pub(super) const BATCH_WAITING: &str = "mantle_gateway_batch_waiting";

/// A call in flight for longer is not waited for.
const STALLED: Duration = Duration::from_millis(20);

/// How the elements of one verb are sent.
pub trait Calls: Send + Sync + 'static {
    /// What one caller asks for.
    type Element: Send + Sync + 'static;
    /// What it is answered.
    type Answer: Send + 'static;
    /// The statement's name, in metrics.
    const NAME: &'static str;

    /// The request id. Twice in one batch, the second would be refused as if the first were another's.
    fn request(element: &Self::Element) -> Uuid;

    /// Sends several as one call, tried once. One answer an element, in their order.
    fn together(
        &self,
        elements: &[&Self::Element],
    ) -> impl Future<Output = Result<Vec<Result<Self::Answer>>, Failure>> + Send;

    /// Sends one by itself, with retries. `lost`: it was sent before over a connection that broke.
    fn alone(&self, element: &Self::Element, lost: bool) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Why a batch has no answers.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// Singly, its elements may fare better.
    Singly {
        /// The connection broke: the batch may have been carried out.
        lost: bool,
    },
    /// Singly, its elements would fare no better.
    ForAll(Error),
}

/// Bounds of a lane, each at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most calls in flight.
    pub batches_in_flight_max: usize,
    /// Most elements of a batch; 1 turns the lane off, and with it the bound on calls in flight.
    pub elements_max: usize,
}

struct Job<C: Calls> {
    element: C::Element,
    reply: oneshot::Sender<Result<C::Answer>>,
}

impl<C: Calls> Job<C> {
    fn answer(self, answer: Result<C::Answer>) {
        // The caller may have left meanwhile; nobody misses its answer.
        let _ = self.reply.send(answer);
    }
}

/// The calls of one verb.
pub struct Batcher<C: Calls> {
    calls: Arc<C>,
    /// None: every call goes by itself.
    jobs: Option<mpsc::UnboundedSender<Job<C>>>,
}

impl<C: Calls> Batcher<C> {
    /// Starts the lane's task, which ends with the lane. Must be called within a tokio runtime.
    pub fn new(calls: C, bounds: Bounds) -> Self {
        let calls = Arc::new(calls);
        if bounds.elements_max <= 1 {
            return Self { calls, jobs: None };
        }
        let (jobs, arrived) = mpsc::unbounded_channel();
        tokio::spawn(run(calls.clone(), bounds, Queue { arrived, held: Vec::new() }));
        Self { calls, jobs: Some(jobs) }
    }

    /// The answer to one element. A caller that leaves takes its element along unless it was sent.
    pub async fn submit(&self, element: C::Element) -> Result<C::Answer> {
        self.answer(element).instrument(step!("batched statement", db.operation.name = C::NAME)).await
    }

    async fn answer(&self, element: C::Element) -> Result<C::Answer> {
        let Some(jobs) = &self.jobs else {
            record_elements::<C>(1);
            return self.calls.alone(&element, false).await;
        };
        let (reply, answer) = oneshot::channel();
        waiting::<C>().increment(1.0);
        if jobs.send(Job { element, reply }).is_err() {
            waiting::<C>().decrement(1.0);
            return Err(ErrorCode::DatabaseUnavailable.into());
        }
        // Without an answer only if the task ended: what it had sent may have been carried out.
        answer.await.unwrap_or_else(|_| Err(ErrorCode::UnknownOutcome.into()))
    }
}

fn waiting<C: Calls>() -> metrics::Gauge {
    metrics::gauge!(BATCH_WAITING, "statement" => C::NAME)
}

fn record_elements<C: Calls>(count: usize) {
    metrics::histogram!(BATCH_ELEMENTS, "statement" => C::NAME).record(count as f64);
}

/// What has not been sent yet.
struct Queue<C: Calls> {
    arrived: mpsc::UnboundedReceiver<Job<C>>,
    /// Received already; fewer than a batch holds.
    held: Vec<Job<C>>,
}

impl<C: Calls> Queue<C> {
    /// Waits for an element; false when the lane is gone, and nothing left.
    async fn ready(&mut self) -> bool {
        !self.held.is_empty() || self.arrived.recv_many(&mut self.held, 1).await > 0
    }

    /// Those that are there, at most `elements_max`, but each request id once, and nothing for callers that left.
    fn batch(&mut self, elements_max: usize) -> Vec<Job<C>> {
        let mut taken = std::mem::take(&mut self.held);
        while taken.len() < elements_max {
            let Ok(job) = self.arrived.try_recv() else { break };
            taken.push(job);
        }
        let before = taken.len();
        taken.retain(|job| !job.reply.is_closed());
        let mut requests = HashSet::with_capacity(taken.len());
        let (batch, repeats) = taken.into_iter().partition(|job| requests.insert(C::request(&job.element)));
        self.held = repeats;
        waiting::<C>().decrement((before - self.held.len()) as f64);
        batch
    }
}

async fn run<C: Calls>(calls: Arc<C>, bounds: Bounds, mut queue: Queue<C>) {
    let slots = Arc::new(Semaphore::new(bounds.batches_in_flight_max.max(1)));
    let mut last: Option<oneshot::Receiver<()>> = None;
    // An idle lane holds no slot: the elements of a failed batch may need it.
    while queue.ready().await {
        // Until the last call has ended, elements gather.
        if let Some(ended) = last.take() {
            let _ = tokio::time::timeout(STALLED, ended).await;
        }
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let batch = queue.batch(bounds.elements_max);
        if !batch.is_empty() {
            record_elements::<C>(batch.len());
            let (end, ended) = oneshot::channel();
            let call = carry_out(calls.clone(), slots.clone(), slot, batch);
            tokio::spawn(async move {
                call.await;
                // Nobody waits for it when it took long.
                let _ = end.send(());
            });
            last = Some(ended);
        }
    }
}

async fn carry_out<C: Calls>(calls: Arc<C>, slots: Arc<Semaphore>, slot: OwnedSemaphorePermit, batch: Vec<Job<C>>) {
    if batch.len() == 1 {
        for job in batch {
            let answer = calls.alone(&job.element, false).await;
            job.answer(answer);
        }
        return;
    }
    let elements: Vec<&C::Element> = batch.iter().map(|job| &job.element).collect();
    match calls.together(&elements).await {
        Ok(answers) => batch.into_iter().zip(answers).for_each(|(job, answer)| job.answer(answer)),
        Err(Failure::ForAll(error)) => batch.into_iter().for_each(|job| job.answer(Err(error.clone()))),
        Err(Failure::Singly { lost }) => {
            drop(slot);
            pause(0).await;
            for job in batch {
                tokio::spawn(single(calls.clone(), slots.clone(), job, lost));
            }
        }
    }
}

/// One element of a batch that failed, in a slot of its own, so that one which waits for a latch does not hold up those
/// behind it.
async fn single<C: Calls>(calls: Arc<C>, slots: Arc<Semaphore>, job: Job<C>, lost: bool) {
    // Never refused: nothing closes the semaphore.
    let _slot = slots.acquire_owned().await;
    let answer = calls.alone(&job.element, lost).await;
    job.answer(answer);
}

#[cfg(test)]
mod tests;
