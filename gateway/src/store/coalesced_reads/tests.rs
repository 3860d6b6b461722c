//! Coalesced reads against a fake database. On one thread all ready tasks have run after a few yields.

use std::{pin::Pin, sync::atomic::AtomicU32};

use futures::{FutureExt, future::join_all};

use super::*;

/// Answers each key with itself and the statement's number, and refuses `BAD`. A statement with `POISON` fails.
struct Fake {
    sent: Mutex<Vec<Vec<u32>>>,
    statements: AtomicU32,
    /// A statement ends when it gets a permit.
    gate: Semaphore,
    answers_too_few: bool,
}

/// Keys above this are as large as they are above it.
const LARGE: u32 = 1000;
const BAD: u32 = 99;
const POISON: u32 = 98;

impl BatchRead for Arc<Fake> {
    type Key = u32;
    type Answer = (u32, u32);
    const NAME: &'static str = "fake";

    fn size(key: &u32) -> usize {
        if *key >= LARGE { (*key - LARGE) as usize } else { 1 }
    }

    async fn read(&self, keys: &[u32]) -> Result<Vec<Result<(u32, u32)>>, Failure> {
        let statement = self.statements.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.sent.lock().push(keys.to_vec());
        self.gate.acquire().await.expect("never closed").forget();
        if keys.contains(&POISON) {
            return Err(Failure::Singly(ErrorCode::Internal.into()));
        }
        let answer = |key: &u32| match *key {
            BAD => Err(ErrorCode::InvalidName.into()),
            key => Ok((key, statement)),
        };
        Ok(keys.iter().skip(usize::from(self.answers_too_few)).map(answer).collect())
    }
}

const BOUNDS: Bounds = Bounds {
    in_flight_max: 2,
    stalled: Duration::ZERO,
    together_max: 4,
    waiting_max: 16,
    wait: Duration::from_secs(10),
};
/// Gathers reads while one statement is in flight.
const GATHERING: Bounds = Bounds { stalled: Duration::from_millis(5), ..BOUNDS };

fn reads(bounds: Bounds) -> (Arc<Fake>, CoalescedReads<Arc<Fake>>) {
    made(bounds, false)
}

fn made(bounds: Bounds, answers_too_few: bool) -> (Arc<Fake>, CoalescedReads<Arc<Fake>>) {
    let fake = Fake { sent: Mutex::default(), statements: AtomicU32::new(0), gate: Semaphore::new(0), answers_too_few };
    let fake = Arc::new(fake);
    (fake.clone(), CoalescedReads::new(fake, bounds))
}

type Reading<'a> = Pin<Box<dyn Future<Output = Result<(u32, u32)>> + 'a>>;

/// A caller that waits for its answer.
fn read(reads: &CoalescedReads<Arc<Fake>>, key: u32) -> Reading<'_> {
    let mut caller: Reading<'_> = Box::pin(reads.read(key));
    assert!((&mut caller).now_or_never().is_none());
    caller
}

/// The statements that were sent, after all ready tasks have run.
async fn sent(fake: &Fake) -> Vec<Vec<u32>> {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    fake.sent.lock().clone()
}

fn code<T: std::fmt::Debug>(answer: &Result<T>) -> ErrorCode {
    answer.as_ref().expect_err("a refusal").code()
}

#[tokio::test]
async fn equal_reads_share_an_answer_that_was_read_after_they_arrived() {
    share_a_later_answer(Bounds { in_flight_max: 1, ..BOUNDS }).await;
    share_a_later_answer(GATHERING).await;
}

async fn share_a_later_answer(bounds: Bounds) {
    let (fake, reads) = reads(bounds);
    let first = read(&reads, 7);
    assert_eq!(sent(&fake).await, [[7]]);
    // The statement in flight may show an older state, so these reads share the next.
    let later: Vec<_> = (0..10).map(|_| read(&reads, 7)).collect();
    assert_eq!(sent(&fake).await, [[7]]);
    fake.gate.add_permits(2);
    assert_eq!(first.await, Ok((7, 0)));
    assert_eq!(join_all(later).await, vec![Ok((7, 1)); 10]);
    assert_eq!(sent(&fake).await, [[7], [7]]);
}

#[tokio::test]
async fn a_storm_has_few_statements_in_flight() {
    let (fake, reads) = reads(BOUNDS);
    let mut callers = vec![read(&reads, 0)];
    assert_eq!(sent(&fake).await, [[0]]);
    callers.push(read(&reads, 1));
    assert_eq!(sent(&fake).await, [[0], [1]]);
    callers.extend((2..8).map(|key| read(&reads, key)));
    assert_eq!(sent(&fake).await, [[0], [1]], "more than `in_flight_max` statements");
    fake.gate.add_permits(1);
    assert_eq!(sent(&fake).await, [vec![0], vec![1], vec![2, 3, 4, 5]]);
    fake.gate.add_permits(1);
    assert_eq!(sent(&fake).await, [vec![0], vec![1], vec![2, 3, 4, 5], vec![6, 7]]);
    fake.gate.add_permits(2);
    let answers: Vec<u32> = join_all(callers).await.into_iter().map(|answer| answer.expect("an answer").0).collect();
    assert_eq!(answers, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn reads_beyond_a_full_statement_come_first_in_the_next() {
    let (fake, reads) = reads(Bounds { in_flight_max: 1, together_max: 2, ..BOUNDS });
    let callers: Vec<_> = [0, 1, 2, 1, 3, 2].into_iter().map(|key| read(&reads, key)).collect();
    fake.gate.add_permits(2);
    let answers = join_all(callers).await.into_iter().map(|answer| answer.expect("an answer"));
    assert_eq!(answers.collect::<Vec<_>>(), [(0, 0), (1, 0), (2, 1), (1, 0), (3, 1), (2, 1)]);
    assert_eq!(sent(&fake).await, [[0, 1], [2, 3]]);
}

#[tokio::test]
async fn a_refused_read_fails_no_other() {
    let (fake, reads) = reads(BOUNDS);
    let callers = [1, BAD, 2].map(|key| read(&reads, key));
    fake.gate.add_permits(1);
    let answers = join_all(callers).await;
    assert_eq!((code(&answers[1]), answers[0].is_ok(), answers[2].is_ok()), (ErrorCode::InvalidName, true, true));
}

#[tokio::test]
async fn too_few_answers_fail_all_reads() {
    let (fake, reads) = made(BOUNDS, true);
    let callers = [1, 2].map(|key| read(&reads, key));
    fake.gate.add_permits(1);
    assert!(join_all(callers).await.iter().all(|answer| code(answer) == ErrorCode::Internal));
}

#[tokio::test]
async fn nothing_is_read_for_callers_that_have_gone() {
    let (fake, reads) = reads(Bounds { in_flight_max: 1, ..BOUNDS });
    let first = read(&reads, 0);
    assert_eq!(sent(&fake).await, [[0]]);
    drop([1, 2].map(|key| read(&reads, key)));
    let last = read(&reads, 3);
    fake.gate.add_permits(2);
    assert!(first.await.is_ok() && last.await.is_ok());
    assert_eq!(sent(&fake).await, [[0], [3]]);
}

#[tokio::test]
async fn more_than_may_wait_are_refused_at_once() {
    let (fake, reads) = reads(Bounds { in_flight_max: 1, waiting_max: 2, ..BOUNDS });
    let mut callers = vec![read(&reads, 0)];
    assert_eq!(sent(&fake).await, [[0]]);
    callers.extend([1, 1].map(|key| read(&reads, key)));
    let refused = reads.read(4).now_or_never().expect("an answer at once");
    assert_eq!(code(&refused), ErrorCode::DatabaseUnavailable);
    fake.gate.add_permits(2);
    assert!(join_all(callers).await.iter().all(Result::is_ok));
}

/// The paused clock advances when no task is ready.
#[tokio::test(start_paused = true)]
async fn a_caller_waits_no_longer_than_the_bound() {
    let (fake, reads) = reads(Bounds { in_flight_max: 1, ..BOUNDS });
    let answers = join_all([read(&reads, 0), read(&reads, 1)]).await;
    assert!(answers.iter().all(|answer| code(answer) == ErrorCode::DatabaseUnavailable));
    // A statement without an answer keeps its permit. A caller that has gone causes no statement.
    fake.gate.add_permits(2);
    let last = read(&reads, 2).await;
    assert_eq!(last, Ok((2, 1)));
    assert_eq!(sent(&fake).await, [vec![0, 1], vec![2]]);
}

/// A statement without an answer delays the next ones for a moment only, and each reads anew.
#[tokio::test(start_paused = true)]
async fn reads_gather_until_the_last_statement_has_ended_or_stalls() {
    let (fake, reads) = reads(GATHERING);
    let mut callers = vec![read(&reads, 0)];
    assert_eq!(sent(&fake).await, [[0]], "an idle reader sends at once");
    callers.extend([1, 0].map(|key| read(&reads, key)));
    assert_eq!(sent(&fake).await, [[0]]);
    fake.gate.add_permits(1);
    assert_eq!(sent(&fake).await, [vec![0], vec![1, 0]], "the last one has ended");
    callers.push(read(&reads, 2));
    assert_eq!(sent(&fake).await, [vec![0], vec![1, 0]]);
    tokio::time::advance(GATHERING.stalled).await;
    assert_eq!(sent(&fake).await, [vec![0], vec![1, 0], vec![2]], "beside the one that stalls");
    callers.push(read(&reads, 3));
    tokio::time::advance(GATHERING.stalled).await;
    assert_eq!(sent(&fake).await.len(), 3, "more than `in_flight_max` statements");
    fake.gate.add_permits(3);
    let answers: Vec<_> = join_all(callers).await.into_iter().map(|answer| answer.expect("an answer")).collect();
    assert_eq!(answers, [(0, 0), (1, 1), (0, 1), (2, 2), (3, 3)]);
}

#[tokio::test(start_paused = true)]
async fn reads_that_fill_a_statement_do_not_wait_for_the_last() {
    let (fake, reads) = reads(GATHERING);
    let mut callers = vec![read(&reads, 0)];
    assert_eq!(sent(&fake).await, [[0]]);
    callers.extend((1..4).map(|key| read(&reads, key)));
    assert_eq!(sent(&fake).await, [[0]]);
    callers.push(read(&reads, 4));
    assert_eq!(sent(&fake).await, [vec![0], vec![1, 2, 3, 4]]);
    fake.gate.add_permits(2);
    assert!(join_all(callers).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn the_reads_of_a_failed_statement_go_singly() {
    let (fake, reads) = reads(GATHERING);
    let callers = [1, POISON, 2, 1].map(|key| read(&reads, key));
    // What fails alone is not sent again.
    fake.gate.add_permits(8);
    let answers = join_all(callers).await;
    assert_eq!(code(&answers[1]), ErrorCode::Internal);
    assert!([0, 2, 3].into_iter().all(|at| answers[at].is_ok()));
    assert_eq!(sent(&fake).await, [vec![1, POISON, 2], vec![1], vec![POISON], vec![2]]);
}

#[tokio::test]
async fn a_failed_statement_is_not_sent_again_for_callers_that_have_gone() {
    let (fake, reads) = reads(GATHERING);
    let mut callers = Vec::from([POISON, 1, 2].map(|key| read(&reads, key)));
    assert_eq!(sent(&fake).await, [[POISON, 1, 2]]);
    drop(callers.pop());
    fake.gate.add_permits(8);
    let answers = join_all(callers).await;
    assert!(answers[0].is_err() && answers[1].is_ok());
    assert_eq!(sent(&fake).await, [vec![POISON, 1, 2], vec![POISON], vec![1]]);
}

#[tokio::test(start_paused = true)]
async fn a_statement_is_filled_by_the_size_of_its_reads() {
    let (fake, reads) = reads(GATHERING);
    let [two, three, five] = [2, 3, 5].map(|size| LARGE + size);
    let mut callers = vec![read(&reads, 0)];
    assert_eq!(sent(&fake).await, [[0]]);
    callers.push(read(&reads, three));
    assert_eq!(sent(&fake).await, [[0]], "three of four");
    callers.push(read(&reads, two));
    assert_eq!(sent(&fake).await, [[0], [three]], "what does not fit stays");
    callers.extend([1, five, 2].map(|key| read(&reads, key)));
    fake.gate.add_permits(2);
    assert_eq!(sent(&fake).await, [vec![0], vec![three], vec![two, 1], vec![five]], "what is too large goes alone");
    fake.gate.add_permits(3);
    assert!(join_all(callers).await.iter().all(Result::is_ok));
    assert_eq!(sent(&fake).await.last(), Some(&vec![2]));
}
