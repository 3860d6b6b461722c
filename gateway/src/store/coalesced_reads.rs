//! Coalesces reads: those that arrive while statements are in flight go together in the next, and callers with equal keys
//! share one answer. This makes each read cheaper. It also limits the connections that a storm of reads, such as
//! lookups of missing paths, can use (P28). Invariants (P40): an answer comes from a statement that was sent after the
//! read arrived; at most `in_flight_max` statements are in flight; a caller gets an answer, or a retryable refusal,
//! within `wait`.
//!
//! A read never waits for others to come: an idle reader sends it at once, alone. With `stalled`, one statement is in
//! flight; the next is sent in parallel if that one takes long, or if enough reads wait to fill it. If a statement
//! fails as a whole, this says nothing about its single reads, so they are sent one by one.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    future::Future,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use mantle_telemetry::step;
use mantle_types::{Error, ErrorCode, Result};
use metrics::Gauge;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::batch::{batch_elements, waiting_calls};

/// Counter of the reads that shared another caller's answer, by statement.
const SHARED: &str = "mantle_gateway_questions_shared_total";
/// Counter of the reads that were refused because too many waited or the database was too slow, by statement.
const REFUSED: &str = "mantle_gateway_questions_refused_total";

/// Reads several keys with one statement.
pub trait BatchRead: Send + Sync + 'static {
    /// Equal keys share an answer.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;
    type Answer: Clone + Send + 'static;
    const NAME: &'static str;

    /// How much of a statement the key takes, at least 1; see [`Bounds::together_max`].
    fn size(_key: &Self::Key) -> usize {
        1
    }

    /// Answers in the keys' order. One key alone should be tried again, where that may help.
    fn read(&self, keys: &[Self::Key]) -> impl Future<Output = Result<Vec<Result<Self::Answer>>, Failure>> + Send;
}

/// Why a statement has no answers, with the error of a read that was its only one.
#[derive(Debug)]
pub enum Failure {
    /// The reads may succeed singly.
    Singly(Error),
    /// They would fail singly, too.
    ForAll(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::ForAll(error)
    }
}

/// Bounds of one kind of reads, each at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub in_flight_max: usize,
    /// How long the next statement waits for the last one, unless the waiting reads fill it. Zero: it does not wait.
    pub stalled: Duration,
    /// Largest size of all different keys of one statement; a larger key goes alone.
    pub together_max: usize,
    /// Most callers that wait for a statement to be sent.
    pub waiting_max: usize,
    /// How long a caller waits for its answer.
    pub wait: Duration,
}

type Caller<R> = oneshot::Sender<Result<<R as BatchRead>::Answer>>;

/// Reads that were not sent yet.
struct Waiting<R: BatchRead> {
    /// Oldest first, each once.
    order: VecDeque<R::Key>,
    callers: HashMap<R::Key, Vec<Caller<R>>>,
    /// Callers.
    count: usize,
    /// Of all keys.
    size: usize,
}

/// The waiting reads, shared by the callers and the task.
struct Pending<R: BatchRead> {
    waiting: Mutex<Waiting<R>>,
    waiting_calls: Gauge,
    together_max: usize,
    /// There is a read, or there are enough to fill a statement.
    arrived: Notify,
}

pub struct CoalescedReads<R: BatchRead> {
    pending: Arc<Pending<R>>,
    bounds: Bounds,
    _task: AbortOnDropHandle<()>,
}

impl<R: BatchRead> CoalescedReads<R> {
    /// Starts a task, which ends with this. Must be called within a tokio runtime.
    pub fn new(batch_read: R, bounds: Bounds) -> Self {
        let waiting = Waiting { order: VecDeque::new(), callers: HashMap::new(), count: 0, size: 0 };
        let pending = Arc::new(Pending {
            waiting: Mutex::new(waiting),
            waiting_calls: waiting_calls(R::NAME),
            together_max: bounds.together_max,
            arrived: Notify::new(),
        });
        let task = AbortOnDropHandle::new(tokio::spawn(run(Arc::new(batch_read), bounds, pending.clone())));
        // Prometheus sees the series from the start.
        for name in [SHARED, REFUSED] {
            metrics::counter!(name, "statement" => R::NAME).absolute(0);
        }
        drop(batch_elements(R::NAME));
        Self { pending, bounds, _task: task }
    }

    pub async fn read(&self, key: R::Key) -> Result<R::Answer> {
        let (caller, answer) = oneshot::channel();
        if !self.pending.put(key, caller, self.bounds.waiting_max) {
            return Err(refused::<R>("too many lookups wait for PostgreSQL"));
        }
        let answer =
            timeout(self.bounds.wait, answer).instrument(step!("shared statement", db.operation.name = R::NAME));
        match answer.await {
            Ok(Ok(answer)) => answer,
            // The task has ended.
            Ok(Err(_)) => Err(ErrorCode::DatabaseUnavailable.into()),
            Err(_) => Err(refused::<R>("PostgreSQL did not answer a lookup in time")),
        }
    }
}

fn refused<R: BatchRead>(detail: &str) -> Error {
    metrics::counter!(REFUSED, "statement" => R::NAME).increment(1);
    Error::new(ErrorCode::DatabaseUnavailable, detail)
}

impl<R: BatchRead> Pending<R> {
    /// False if too many wait already.
    fn put(&self, key: R::Key, caller: Caller<R>, waiting_max: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.count >= waiting_max {
            return false;
        }
        waiting.count += 1;
        self.waiting_calls.set(waiting.count as f64);
        let waiting = &mut *waiting;
        match waiting.callers.entry(key) {
            Entry::Occupied(mut callers) => {
                callers.get_mut().push(caller);
                metrics::counter!(SHARED, "statement" => R::NAME).increment(1);
            }
            Entry::Vacant(place) => {
                let before = waiting.size;
                waiting.size += R::size(place.key());
                waiting.order.push_back(place.key().clone());
                place.insert(vec![caller]);
                if before == 0 || before < self.together_max && waiting.size >= self.together_max {
                    self.arrived.notify_one();
                }
            }
        }
        true
    }

    /// Waits until different reads of this size wait.
    async fn are(&self, size: usize) {
        while self.waiting.lock().size < size {
            self.arrived.notified().await;
        }
    }

    /// The oldest keys, together at most `together_max` large, without those whose callers have all gone.
    fn take(&self) -> Batch<R> {
        let mut waiting = self.waiting.lock();
        let mut batch = Batch { keys: Vec::new(), callers: Vec::new() };
        let mut left = self.together_max;
        while let Some(size) = waiting.order.front().map(R::size) {
            if size > left && !batch.keys.is_empty() {
                break;
            }
            let Some(key) = waiting.order.pop_front() else { break };
            waiting.size -= size;
            let mut callers = waiting.callers.remove(&key).unwrap_or_default();
            waiting.count -= callers.len();
            callers.retain(|caller| !caller.is_closed());
            if !callers.is_empty() {
                left = left.saturating_sub(size);
                batch.keys.push(key);
                batch.callers.push(callers);
            }
        }
        self.waiting_calls.set(waiting.count as f64);
        batch
    }
}

/// One statement's keys, and the callers of each.
struct Batch<R: BatchRead> {
    keys: Vec<R::Key>,
    callers: Vec<Vec<Caller<R>>>,
}

/// A statement in flight. Dropped when it has ended.
struct InFlight {
    _permit: OwnedSemaphorePermit,
    _ended: oneshot::Sender<()>,
}

impl<R: BatchRead> Batch<R> {
    /// `permits`: for its reads, if they go singly.
    async fn run(self, batch_read: Arc<R>, permits: Arc<Semaphore>, in_flight: InFlight) {
        batch_elements(R::NAME).record(self.keys.len() as f64);
        let answers = batch_read.read(&self.keys).await;
        // The next statement goes first, then the callers are woken.
        drop(in_flight);
        let asked = self.keys.len();
        let answers = match answers {
            Ok(answers) if answers.len() == asked => answers,
            Ok(answers) => {
                let answered = answers.len();
                tracing::error!(statement = R::NAME, asked, answered, "a batch of reads got another number of answers");
                vec![Err(ErrorCode::Internal.into()); asked]
            }
            Err(Failure::Singly(cause)) if asked > 1 => {
                tracing::debug!(statement = R::NAME, asked, %cause, "a batch failed; its reads go singly");
                for (key, callers) in self.keys.into_iter().zip(self.callers) {
                    tokio::spawn(single(batch_read.clone(), permits.clone(), key, callers));
                }
                return;
            }
            Err(Failure::Singly(error) | Failure::ForAll(error)) => vec![Err(error); asked],
        };
        self.callers.into_iter().zip(answers).for_each(|(callers, answer)| give(callers, answer));
    }
}

/// Sends a read of a batch that failed. Each has its own permit, so that a slow one delays no other.
async fn single<R: BatchRead>(batch_read: Arc<R>, permits: Arc<Semaphore>, key: R::Key, mut callers: Vec<Caller<R>>) {
    // Never fails: nothing closes the semaphore.
    let permit = permits.acquire_owned().await;
    callers.retain(|caller| !caller.is_closed());
    if callers.is_empty() {
        return;
    }
    let answer = match batch_read.read(std::slice::from_ref(&key)).await {
        Ok(mut answers) => answers.pop().unwrap_or_else(|| Err(ErrorCode::Internal.into())),
        Err(Failure::Singly(error) | Failure::ForAll(error)) => Err(error),
    };
    drop(permit);
    give(callers, answer);
}

/// Answers all callers with equal keys. Callers may have gone; a send error is ignored.
fn give<A: Clone>(mut callers: Vec<oneshot::Sender<Result<A>>>, answer: Result<A>) {
    let last = callers.pop();
    callers.into_iter().for_each(|caller| drop(caller.send(answer.clone())));
    last.map(|caller| caller.send(answer));
}

async fn run<R: BatchRead>(batch_read: Arc<R>, bounds: Bounds, pending: Arc<Pending<R>>) {
    let permits = Arc::new(Semaphore::new(bounds.in_flight_max));
    let mut last: Option<oneshot::Receiver<()>> = None;
    loop {
        pending.are(1).await;
        if let Some(ended) = last.take().filter(|_| !bounds.stalled.is_zero()) {
            tokio::select! {
                _ = timeout(bounds.stalled, ended) => {}
                () = pending.are(bounds.together_max) => {}
            }
        }
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        // Taken after the permit, so that reads that arrived during the wait for it go along.
        let batch = pending.take();
        if !batch.keys.is_empty() {
            let (end, ended) = oneshot::channel();
            last = Some(ended);
            let in_flight = InFlight { _permit: permit, _ended: end };
            tokio::spawn(batch.run(batch_read.clone(), permits.clone(), in_flight));
        }
    }
}

#[cfg(test)]
mod tests;
