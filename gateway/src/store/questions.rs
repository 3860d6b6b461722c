//! Questions that may come in storms, such as for what does not exist: asked together, shared, and few statements at once, so
//! that whatever else needs the database finds a connection (P28). Whatever arrives while statements are in flight
//! goes together in the next; who asks the same shares its answer. Invariants: an answer is of a statement that was sent after
//! the question arrived (whoever was told of a change before asking sees it); at most `in_flight_max` statements are in
//! flight; a caller is answered, or refused for a passing reason, within `wait`.

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

use super::batch::{BATCH_ELEMENTS, BATCH_WAITING};

/// Questions that were answered with somebody else's, by statement.
const SHARED: &str = "mantle_gateway_questions_shared_total";
/// Questions that were refused, since too many waited or the database took too long, by statement.
const REFUSED: &str = "mantle_gateway_questions_refused_total";

/// How the questions of one kind are asked.
pub trait Asks: Send + Sync + 'static {
    /// What is asked. Equal ones have one answer.
    type Question: Clone + Eq + Hash + Send + Sync + 'static;
    /// What is answered.
    type Answer: Clone + Send + 'static;
    /// The statement's name, in metrics.
    const NAME: &'static str;

    /// Asks several at once. One answer a question, in their order.
    fn ask(&self, questions: &[Self::Question]) -> impl Future<Output = Result<Vec<Result<Self::Answer>>>> + Send;
}

/// Bounds of one kind of questions, each at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most statements in flight.
    pub in_flight_max: usize,
    /// Most different questions of one statement.
    pub together_max: usize,
    /// Most callers that wait for a statement to be sent.
    pub waiting_max: usize,
    /// How long a caller waits for its answer.
    pub wait: Duration,
}

type Caller<A> = oneshot::Sender<Result<<A as Asks>::Answer>>;

/// What has not been sent yet.
struct Waiting<A: Asks> {
    /// Oldest first, each once.
    order: VecDeque<A::Question>,
    callers: HashMap<A::Question, Vec<Caller<A>>>,
    count: usize,
}

/// What the callers and the task that asks share.
struct Desk<A: Asks> {
    waiting: Mutex<Waiting<A>>,
    arrived: Notify,
}

/// The questions of one kind.
pub struct Questions<A: Asks> {
    desk: Arc<Desk<A>>,
    bounds: Bounds,
    _task: AbortOnDropHandle<()>,
}

impl<A: Asks> Questions<A> {
    /// Starts the task that asks, which ends with this. Must be called within a tokio runtime.
    pub fn new(asks: A, bounds: Bounds) -> Self {
        let waiting = Waiting { order: VecDeque::new(), callers: HashMap::new(), count: 0 };
        let desk = Arc::new(Desk { waiting: Mutex::new(waiting), arrived: Notify::new() });
        let task = AbortOnDropHandle::new(tokio::spawn(run(Arc::new(asks), bounds, desk.clone())));
        // Shown from the start.
        for name in [SHARED, REFUSED] {
            metrics::counter!(name, "statement" => A::NAME).absolute(0);
        }
        Self { desk, bounds, _task: task }
    }

    /// The answer to one.
    pub async fn ask(&self, question: A::Question) -> Result<A::Answer> {
        let (caller, answer) = oneshot::channel();
        if !self.desk.put(question, caller, self.bounds.waiting_max) {
            return Err(refused::<A>("too many lookups wait for PostgreSQL"));
        }
        let answer =
            timeout(self.bounds.wait, answer).instrument(step!("shared statement", db.operation.name = A::NAME));
        match answer.await {
            Ok(Ok(answer)) => answer,
            // The task that asked has ended.
            Ok(Err(_)) => Err(ErrorCode::DatabaseUnavailable.into()),
            Err(_) => Err(refused::<A>("PostgreSQL did not answer a lookup in time")),
        }
    }
}

fn refused<A: Asks>(detail: &str) -> Error {
    metrics::counter!(REFUSED, "statement" => A::NAME).increment(1);
    Error::new(ErrorCode::DatabaseUnavailable, detail)
}

impl<A: Asks> Desk<A> {
    /// False: too many wait already.
    fn put(&self, question: A::Question, caller: Caller<A>, waiting_max: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.count >= waiting_max {
            return false;
        }
        waiting.count += 1;
        metrics::gauge!(BATCH_WAITING, "statement" => A::NAME).set(waiting.count as f64);
        let waiting = &mut *waiting;
        match waiting.callers.entry(question) {
            Entry::Occupied(mut callers) => {
                callers.get_mut().push(caller);
                metrics::counter!(SHARED, "statement" => A::NAME).increment(1);
            }
            Entry::Vacant(place) => {
                waiting.order.push_back(place.key().clone());
                place.insert(vec![caller]);
                self.arrived.notify_one();
            }
        }
        true
    }

    /// The oldest, at most `together_max`, without those that nobody waits for any more.
    fn take(&self, together_max: usize) -> Batch<A> {
        let mut waiting = self.waiting.lock();
        let mut batch = Batch { questions: Vec::new(), callers: Vec::new() };
        while batch.questions.len() < together_max {
            let Some(question) = waiting.order.pop_front() else { break };
            let mut callers = waiting.callers.remove(&question).unwrap_or_default();
            waiting.count -= callers.len();
            callers.retain(|caller| !caller.is_closed());
            if !callers.is_empty() {
                batch.questions.push(question);
                batch.callers.push(callers);
            }
        }
        metrics::gauge!(BATCH_WAITING, "statement" => A::NAME).set(waiting.count as f64);
        batch
    }
}

/// What goes in one statement: different questions, and who waits for the answer of each.
struct Batch<A: Asks> {
    questions: Vec<A::Question>,
    callers: Vec<Vec<Caller<A>>>,
}

impl<A: Asks> Batch<A> {
    async fn ask(self, asks: &A) {
        metrics::histogram!(BATCH_ELEMENTS, "statement" => A::NAME).record(self.questions.len() as f64);
        let answers = match asks.ask(&self.questions).await {
            Ok(answers) if answers.len() == self.questions.len() => answers,
            Ok(answers) => {
                let (asked, answered) = (self.questions.len(), answers.len());
                tracing::error!(statement = A::NAME, asked, answered, "questions got another number of answers");
                vec![Err(ErrorCode::Internal.into()); asked]
            }
            Err(error) => vec![Err(error); self.questions.len()],
        };
        for (callers, answer) in self.callers.into_iter().zip(answers) {
            // One that has left meanwhile misses nothing.
            callers.into_iter().for_each(|caller| drop(caller.send(answer.clone())));
        }
    }
}

async fn run<A: Asks>(asks: Arc<A>, bounds: Bounds, desk: Arc<Desk<A>>) {
    let slots = Arc::new(Semaphore::new(bounds.in_flight_max));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        // Only now: what arrived while there was no slot goes along, and is sent after it arrived.
        let batch = desk.take(bounds.together_max);
        if batch.questions.is_empty() {
            drop(slot);
            desk.arrived.notified().await;
            continue;
        }
        let asks = asks.clone();
        tokio::spawn(async move {
            let _slot = slot;
            batch.ask(&asks).await;
        });
    }
}

#[cfg(test)]
mod tests;
