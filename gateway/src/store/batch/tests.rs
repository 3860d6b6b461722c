//! The batcher against a fake database. On one thread all ready tasks have run after a few yields.

use std::{
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use tokio::sync::watch;

use super::*;

/// An element: its request id, and the number that decides its answer.
type Asked = (u128, u32);

/// How the fake answers a batch of several elements.
#[derive(Clone)]
enum Mood {
    Answers,
    OneShort,
    Fails(fn() -> Failure),
}

struct Fake {
    mood: Mood,
    /// The elements of each call, and its `lost` flag.
    sent: watch::Sender<Vec<(Vec<u32>, bool)>>,
    /// A call ends when it gets a permit.
    gate: Semaphore,
    in_flight: AtomicUsize,
    in_flight_seen_max: AtomicUsize,
}

impl Fake {
    async fn call(&self, elements: Vec<u32>, lost: bool) {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_seen_max.fetch_max(now, Ordering::SeqCst);
        self.sent.send_modify(|sent| sent.push((elements, lost)));
        self.gate.acquire().await.unwrap().forget();
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Even numbers succeed, odd ones are refused.
fn outcome(number: u32) -> Result<u32> {
    if number.is_multiple_of(2) { Ok(number) } else { Err(Error::new(ErrorCode::AlreadyExists, number.to_string())) }
}

impl Calls for Arc<Fake> {
    type Element = Asked;
    type Answer = u32;
    const NAME: &'static str = "fake";

    fn request(element: &Asked) -> Uuid {
        Uuid::from_u128(element.0)
    }

    async fn together(&self, elements: &[&Asked]) -> Result<Vec<Result<u32>>, Failure> {
        let numbers: Vec<u32> = elements.iter().map(|element| element.1).collect();
        self.call(numbers.clone(), false).await;
        match self.mood {
            Mood::Answers => Ok(numbers.into_iter().map(outcome).collect()),
            Mood::OneShort => Ok(numbers.into_iter().skip(1).map(outcome).collect()),
            Mood::Fails(failure) => Err(failure()),
        }
    }

    async fn alone(&self, element: &Asked, lost: bool) -> Result<u32> {
        self.call(vec![element.1], lost).await;
        outcome(element.1)
    }
}

fn batcher(mood: Mood, batches_in_flight_max: usize, elements_max: usize) -> (Arc<Fake>, Batcher<Arc<Fake>>) {
    let fake = Arc::new(Fake {
        mood,
        sent: watch::Sender::new(Vec::new()),
        gate: Semaphore::new(0),
        in_flight: AtomicUsize::new(0),
        in_flight_seen_max: AtomicUsize::new(0),
    });
    let batcher = Batcher::new(fake.clone(), Bounds { batches_in_flight_max, elements_max });
    (fake, batcher)
}

type Caller<'a> = Pin<Box<dyn Future<Output = Result<u32>> + 'a>>;

/// A caller that has submitted an element and waits.
fn ask(batcher: &Batcher<Arc<Fake>>, number: u32) -> Caller<'_> {
    ask_as(batcher, u128::from(number), number)
}

fn ask_as(batcher: &Batcher<Arc<Fake>>, request: u128, number: u32) -> Caller<'_> {
    let mut caller: Caller<'_> = Box::pin(batcher.submit((request, number)));
    assert!((&mut caller).now_or_never().is_none());
    caller
}

/// Lets all ready tasks run.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

async fn sent(fake: &Fake, calls: usize) -> Vec<Vec<u32>> {
    let mut seen = fake.sent.subscribe();
    let bound = Duration::from_secs(10);
    tokio::time::timeout(bound, seen.wait_for(|sent| sent.len() >= calls)).await.unwrap().unwrap();
    settle().await;
    fake.sent.borrow().iter().map(|(numbers, _)| numbers.clone()).collect()
}

async fn answers(callers: Vec<Caller<'_>>) -> Vec<Result<u32>> {
    tokio::time::timeout(Duration::from_secs(10), join_all(callers)).await.unwrap()
}

#[tokio::test]
async fn an_idle_batcher_sends_at_once_and_batches_later_calls() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 8);
    let mut callers = vec![ask(&batcher, 0)];
    assert_eq!(sent(&fake, 1).await, [[0]]);
    callers.extend((1..6).map(|number| ask(&batcher, number)));
    assert_eq!(sent(&fake, 1).await, [[0]], "a second call began beside the first");
    fake.gate.add_permits(1);
    assert_eq!(sent(&fake, 2).await, [vec![0], vec![1, 2, 3, 4, 5]]);
    fake.gate.add_permits(1);
    // Each caller gets its own answer; a refused element fails no other.
    assert_eq!(answers(callers).await, (0..6).map(outcome).collect::<Vec<_>>());
}

/// The paused clock advances when no task is ready.
#[tokio::test(start_paused = true)]
async fn the_next_call_waits_for_the_last_one_unless_that_takes_long() {
    let (fake, batcher) = batcher(Mood::Answers, 4, 8);
    let mut callers = vec![ask(&batcher, 0)];
    settle().await;
    for number in 1..4 {
        callers.push(ask(&batcher, number));
        settle().await;
        assert_eq!(fake.in_flight.load(Ordering::SeqCst), 1, "a call began beside one that had just begun");
    }
    fake.gate.add_permits(1);
    assert_eq!(sent(&fake, 2).await, [vec![0], vec![1, 2, 3]]);
    let begun = tokio::time::Instant::now();
    callers.push(ask(&batcher, 4));
    assert_eq!(sent(&fake, 3).await, [vec![0], vec![1, 2, 3], vec![4]]);
    assert!((STALLED..STALLED * 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(fake.in_flight.load(Ordering::SeqCst), 2);
    fake.gate.add_permits(2);
    assert_eq!(answers(callers).await, (0..5).map(outcome).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_has_at_most_its_bound() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 4);
    let mut callers = vec![ask(&batcher, 0)];
    sent(&fake, 1).await;
    callers.extend((1..11).map(|number| ask(&batcher, number)));
    fake.gate.add_permits(100);
    assert_eq!(sent(&fake, 4).await, [vec![0], vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10]]);
    assert_eq!(answers(callers).await, (0..11).map(outcome).collect::<Vec<_>>());
}

#[tokio::test]
async fn calls_in_flight_reach_their_bound() {
    let (fake, batcher) = batcher(Mood::Answers, 3, 8);
    let mut callers = Vec::new();
    for number in 0..3 {
        callers.push(ask(&batcher, number));
        sent(&fake, callers.len()).await;
    }
    callers.extend((3..6).map(|number| ask(&batcher, number)));
    assert_eq!(sent(&fake, 3).await, [[0], [1], [2]]);
    fake.gate.add_permits(1);
    assert_eq!(sent(&fake, 4).await, [vec![0], vec![1], vec![2], vec![3, 4, 5]]);
    fake.gate.add_permits(100);
    answers(callers).await;
    assert_eq!(fake.in_flight_seen_max.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn callers_that_left_are_not_sent_and_those_sent_run_to_their_end() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 8);
    let first = ask(&batcher, 0);
    sent(&fake, 1).await;
    drop(first);
    let stays = ask(&batcher, 2);
    drop(ask(&batcher, 4));
    let stays_too = ask(&batcher, 6);
    settle().await;
    assert_eq!(fake.in_flight.load(Ordering::SeqCst), 1, "the first call was cancelled");
    fake.gate.add_permits(100);
    assert_eq!(answers(vec![stays, stays_too]).await, [Ok(2), Ok(6)]);
    assert_eq!(sent(&fake, 2).await, [vec![0], vec![2, 6]]);
    drop(ask(&batcher, 8));
    assert_eq!(answers(vec![Box::pin(batcher.submit((10, 10)))]).await, [Ok(10)]);
    assert_eq!(sent(&fake, 3).await, [vec![0], vec![2, 6], vec![10]]);
}

/// An element of a request, and what is known of the request.
fn ask_for(batcher: &Batcher<Arc<Fake>>, number: u32) -> (Arc<Waiting>, Caller<'_>) {
    let waiting = Waiting::new(Duration::from_secs(60));
    let mut caller: Caller<'_> = Box::pin(waiting.clone().scope(batcher.submit((number.into(), number))));
    assert!((&mut caller).now_or_never().is_none());
    (waiting, caller)
}

/// Whether a change may have been sent for a request, which ends now.
fn was_sent(waiting: &Waiting) -> bool {
    waiting.give_up().code() == ErrorCode::UnknownOutcome
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_sent() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 8);
    let (first, caller) = ask_for(&batcher, 0);
    sent(&fake, 1).await;
    // They wait for the first to end; the caller of each is a task that outlives its request.
    let (over, caller_of_over) = ask_for(&batcher, 2);
    let (_open, caller_of_open) = ask_for(&batcher, 4);
    assert!(was_sent(&first) && !was_sent(&over));
    fake.gate.add_permits(100);
    let departed = Err(ErrorCode::DatabaseUnavailable);
    let code = |answer: Result<u32>| answer.map_err(|error| error.code());
    let given = answers(vec![caller, caller_of_over, caller_of_open]).await;
    assert_eq!(given.into_iter().map(code).collect::<Vec<_>>(), [Ok(0), departed, Ok(4)]);
    assert_eq!(sent(&fake, 2).await, [[0], [4]]);
}

#[tokio::test]
async fn what_was_rolled_back_is_not_in_doubt() {
    let conflict: fn() -> Failure = || Failure::Singly { lost: false };
    let broken: fn() -> Failure = || Failure::Singly { lost: true };
    for (failure, is_in_doubt) in [(conflict, false), (broken, true)] {
        let (fake, batcher) = batcher(Mood::Fails(failure), 1, 8);
        let mut callers = vec![ask(&batcher, 0)];
        sent(&fake, 1).await;
        let (_, caller) = ask_for(&batcher, 2);
        callers.push(caller);
        let (last, caller) = ask_for(&batcher, 4);
        callers.push(caller);
        fake.gate.add_permits(2);
        // The batch has failed, and the first of its elements is sent by itself: there is one permit.
        assert_eq!(sent(&fake, 3).await, [vec![0], vec![2, 4], vec![2]]);
        assert_eq!(was_sent(&last), is_in_doubt);
    }
}

#[tokio::test]
async fn a_request_id_is_in_a_batch_once() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 8);
    let mut callers = vec![ask(&batcher, 0)];
    sent(&fake, 1).await;
    callers.extend([ask_as(&batcher, 7, 2), ask_as(&batcher, 7, 4), ask_as(&batcher, 8, 6), ask_as(&batcher, 7, 8)]);
    fake.gate.add_permits(100);
    assert_eq!(answers(callers).await, [Ok(0), Ok(2), Ok(4), Ok(6), Ok(8)]);
    assert_eq!(sent(&fake, 4).await, [vec![0], vec![2, 6], vec![4], vec![8]]);
}

/// Two single calls, then a batch of four that is sent and fails.
async fn fail<'a>(fake: &Fake, batcher: &'a Batcher<Arc<Fake>>) -> Vec<Caller<'a>> {
    let mut callers = vec![ask(batcher, 0)];
    sent(fake, 1).await;
    callers.push(ask(batcher, 2));
    sent(fake, 2).await;
    callers.extend((3..7).map(|number| ask(batcher, number)));
    fake.gate.add_permits(3);
    assert_eq!(sent(fake, 3).await[..3], [vec![0], vec![2], vec![3, 4, 5, 6]]);
    callers
}

#[tokio::test]
async fn the_elements_of_a_failed_batch_go_singly_within_the_bound() {
    let conflict: fn() -> Failure = || Failure::Singly { lost: false };
    let broken: fn() -> Failure = || Failure::Singly { lost: true };
    for (failure, lost) in [(conflict, false), (broken, true)] {
        let (fake, batcher) = batcher(Mood::Fails(failure), 2, 8);
        let _callers = fail(&fake, &batcher).await;
        assert_eq!(sent(&fake, 5).await[3..], [[3], [4]]);
        fake.gate.add_permits(2);
        assert_eq!(sent(&fake, 7).await[3..], [[3], [4], [5], [6]]);
        assert!(fake.sent.borrow()[3..].iter().all(|(_, said)| *said == lost));
    }
}

#[tokio::test]
async fn the_elements_of_a_failed_batch_get_their_own_answers() {
    let (fake, batcher) = batcher(Mood::Fails(|| Failure::Singly { lost: false }), 2, 8);
    let callers = fail(&fake, &batcher).await;
    fake.gate.add_permits(4);
    assert_eq!(answers(callers).await, [0, 2, 3, 4, 5, 6].map(outcome));
}

#[tokio::test]
async fn a_failure_for_all_answers_each() {
    let (fake, batcher) = batcher(Mood::Fails(|| Failure::ForAll(ErrorCode::UnknownOutcome.into())), 2, 8);
    let callers = fail(&fake, &batcher).await;
    let unknown = || Err(ErrorCode::UnknownOutcome.into());
    assert_eq!(answers(callers).await, [Ok(0), Ok(2), unknown(), unknown(), unknown(), unknown()]);
    assert_eq!(sent(&fake, 3).await.len(), 3, "sent again");
}

#[tokio::test]
async fn a_missing_answer_is_an_unknown_outcome() {
    let (fake, batcher) = batcher(Mood::OneShort, 1, 8);
    let mut callers = vec![ask(&batcher, 0)];
    sent(&fake, 1).await;
    callers.extend([ask(&batcher, 2), ask(&batcher, 4)]);
    fake.gate.add_permits(100);
    assert_eq!(answers(callers).await[2], Err(ErrorCode::UnknownOutcome.into()));
}

#[tokio::test]
async fn without_batches_every_call_goes_by_itself() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 1);
    let callers: Vec<_> = (0..5).map(|number| ask(&batcher, number)).collect();
    assert_eq!(sent(&fake, 5).await, [[0], [1], [2], [3], [4]]);
    fake.gate.add_permits(5);
    assert_eq!(answers(callers).await, (0..5).map(outcome).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_task_ends_with_its_batcher() {
    let (fake, batcher) = batcher(Mood::Answers, 1, 8);
    settle().await;
    drop(batcher);
    settle().await;
    assert_eq!(Arc::strong_count(&fake), 1);
}
