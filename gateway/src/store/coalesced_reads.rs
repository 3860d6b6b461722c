//! Coalesces reads that may come in storms, such as lookups of missing paths, so that other statements still find a
//! connection (P28). Reads that arrive while statements are in flight go together in the next, and callers with equal
//! keys share one answer. Invariants (P40): an answer comes from a statement that was sent after the read arrived; at
//! most `in_flight_max` statements are in flight; a caller gets an answer, or a retryable refusal, within `wait`.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    future::Future,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use mantle_telemetry::step;
use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, oneshot},
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

    /// Answers in the keys' order.
    fn read(&self, keys: &[Self::Key]) -> impl Future<Output = Result<Vec<Result<Self::Answer>>>> + Send;
}

/// Bounds of one kind of reads, each at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub in_flight_max: usize,
    /// Most different keys of one statement.
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
    count: usize,
}

/// The waiting reads, shared by the callers and the task.
struct Pending<R: BatchRead> {
    waiting: Mutex<Waiting<R>>,
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
        let waiting = Waiting { order: VecDeque::new(), callers: HashMap::new(), count: 0 };
        let pending = Arc::new(Pending { waiting: Mutex::new(waiting), arrived: Notify::new() });
        let task = AbortOnDropHandle::new(tokio::spawn(run(Arc::new(batch_read), bounds, pending.clone())));
        // Prometheus sees the series from the start.
        for name in [SHARED, REFUSED] {
            metrics::counter!(name, "statement" => R::NAME).absolute(0);
        }
        drop((waiting_calls(R::NAME), batch_elements(R::NAME)));
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
        waiting_calls(R::NAME).set(waiting.count as f64);
        let waiting = &mut *waiting;
        match waiting.callers.entry(key) {
            Entry::Occupied(mut callers) => {
                callers.get_mut().push(caller);
                metrics::counter!(SHARED, "statement" => R::NAME).increment(1);
            }
            Entry::Vacant(place) => {
                waiting.order.push_back(place.key().clone());
                place.insert(vec![caller]);
                self.arrived.notify_one();
            }
        }
        true
    }

    /// The oldest keys, at most `together_max`, without those whose callers have all gone.
    fn take(&self, together_max: usize) -> Batch<R> {
        let mut waiting = self.waiting.lock();
        let mut batch = Batch { keys: Vec::new(), callers: Vec::new() };
        while batch.keys.len() < together_max {
            let Some(key) = waiting.order.pop_front() else { break };
            let mut callers = waiting.callers.remove(&key).unwrap_or_default();
            waiting.count -= callers.len();
            callers.retain(|caller| !caller.is_closed());
            if !callers.is_empty() {
                batch.keys.push(key);
                batch.callers.push(callers);
            }
        }
        waiting_calls(R::NAME).set(waiting.count as f64);
        batch
    }
}

/// One statement's keys, and the callers of each.
struct Batch<R: BatchRead> {
    keys: Vec<R::Key>,
    callers: Vec<Vec<Caller<R>>>,
}

impl<R: BatchRead> Batch<R> {
    async fn run(self, batch_read: &R) {
        batch_elements(R::NAME).record(self.keys.len() as f64);
        let answers = match batch_read.read(&self.keys).await {
            Ok(answers) if answers.len() == self.keys.len() => answers,
            Ok(answers) => {
                let (asked, answered) = (self.keys.len(), answers.len());
                tracing::error!(statement = R::NAME, asked, answered, "a batch of reads got another number of answers");
                vec![Err(ErrorCode::Internal.into()); asked]
            }
            Err(error) => vec![Err(error); self.keys.len()],
        };
        for (callers, answer) in self.callers.into_iter().zip(answers) {
            // A caller may have gone; ignore the send error.
            callers.into_iter().for_each(|caller| drop(caller.send(answer.clone())));
        }
    }
}

async fn run<R: BatchRead>(batch_read: Arc<R>, bounds: Bounds, pending: Arc<Pending<R>>) {
    let permits = Arc::new(Semaphore::new(bounds.in_flight_max));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        // Taken after the permit, so that reads that arrived during the wait for it go along.
        let batch = pending.take(bounds.together_max);
        if batch.keys.is_empty() {
            drop(permit);
            pending.arrived.notified().await;
            continue;
        }
        let batch_read = batch_read.clone();
        tokio::spawn(async move {
            let _permit = permit;
            batch.run(&batch_read).await;
        });
    }
}

#[cfg(test)]
mod tests;
