//! How long the gateway waits for the parts of a request. A lock that somebody holds, a pooler that is paused or
//! frozen, or a server that does not answer could delay a call without a bound. So the gateway answers after
//! `limits.answer_wait_ms` at the latest. A change that it has sent is still carried out (P18); the answer says whether
//! there is one.
//!
//! The time counts while the gateway waits for PostgreSQL and the index. It does not count while a body arrives, or
//! while bytes are stored or read: these have bounds of their own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// While the time does not count, this is how often it is checked.
const PAUSED_POLL: Duration = Duration::from_millis(250);

tokio::task_local! {
    /// The request of this task.
    static WAITING: Arc<Waiting>;
}

/// A request in progress: whether anybody still waits for it, and whether a change was sent for it.
pub struct Waiting {
    /// The client has disconnected, or was answered that the wait was too long: nothing more is sent (P44).
    is_over: AtomicBool,
    /// Changes that were sent and have happened, or may have.
    sent: AtomicUsize,
    clock: Mutex<Clock>,
}

struct Clock {
    deadline: Instant,
    /// How many wait for something else, and since when.
    pauses: usize,
    paused: Instant,
}

/// The request's time does not count until this is dropped.
pub struct Pause(Arc<Waiting>);

impl Waiting {
    /// A request that is answered in this time.
    pub fn new(limit: Duration) -> Arc<Self> {
        let now = Instant::now();
        let clock = Mutex::new(Clock { deadline: now + limit, pauses: 0, paused: now });
        Arc::new(Self { is_over: AtomicBool::new(false), sent: AtomicUsize::new(0), clock })
    }

    /// The request of this task; `None` in work of the gateway itself.
    pub fn current() -> Option<Arc<Self>> {
        WAITING.try_with(Clone::clone).ok()
    }

    /// Runs work of a request in a task of its own.
    pub fn scope<F: Future>(self: Arc<Self>, work: F) -> impl Future<Output = F::Output> {
        WAITING.scope(self, work)
    }

    /// Runs the request's work, in time. If the time ends before, the work is dropped, and the error says whether a change
    /// may have been sent.
    pub async fn answer<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> Result<T> {
        let work = self.clone().scope(work);
        tokio::select! {
            biased;
            answer = work => Ok(answer),
            () = self.expired() => Err(self.give_up()),
        }
    }

    /// Called before a change is sent. False if nobody waits any more: then nothing may be sent.
    pub fn begin_sending(&self) -> bool {
        // Whoever gives up looks in the other order, so one of both sees the other.
        self.sent.fetch_add(1, Ordering::SeqCst);
        let may_be_sent = !self.is_over.load(Ordering::SeqCst);
        if !may_be_sent {
            self.note_undone();
        }
        may_be_sent
    }

    /// Notes that a change was not sent after all, was refused, or was rolled back.
    pub fn note_undone(&self) {
        self.sent.fetch_sub(1, Ordering::SeqCst);
    }

    /// Nobody waits any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Nobody waits any more; the error of the late answer.
    pub fn give_up(&self) -> Error {
        self.end();
        match self.sent.load(Ordering::SeqCst) {
            0 => Error::new(ErrorCode::DatabaseUnavailable, "there was no answer in time, and nothing was changed"),
            _ => {
                Error::new(ErrorCode::UnknownOutcome, "there was no answer in time; the change may or may not be there")
            }
        }
    }

    pub fn pause(self: &Arc<Self>) -> Pause {
        let mut clock = self.clock.lock();
        if clock.pauses == 0 {
            clock.paused = Instant::now();
        }
        clock.pauses += 1;
        Pause(self.clone())
    }

    /// The time that is left; `None` while it does not count.
    fn left(&self) -> Option<Duration> {
        let clock = self.clock.lock();
        (clock.pauses == 0).then(|| clock.deadline.saturating_duration_since(Instant::now()))
    }

    async fn expired(&self) {
        loop {
            match self.left() {
                Some(left) if left.is_zero() => return,
                Some(left) => sleep(left).await,
                None => sleep(PAUSED_POLL).await,
            }
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let mut clock = self.0.clock.lock();
        clock.pauses -= 1;
        if clock.pauses == 0 {
            let lasted = clock.paused.elapsed();
            clock.deadline += lasted;
        }
    }
}

/// Runs work that has bounds of its own; meanwhile the time of this task's request does not count.
pub async fn unhurried<T>(work: impl Future<Output = T>) -> T {
    let _pause = Waiting::current().map(|waiting| waiting.pause());
    work.await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    async fn code_after(work: impl Future<Output = ()>) -> (Option<ErrorCode>, Duration) {
        let begun = Instant::now();
        let answer = Waiting::new(LIMIT).answer(work).await;
        (answer.err().map(|error| error.code()), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_says_whether_a_change_was_sent() {
        let quick = code_after(async {}).await;
        assert_eq!(quick, (None, Duration::ZERO));
        let (unsent, took) = code_after(pending()).await;
        assert_eq!(unsent, Some(ErrorCode::DatabaseUnavailable));
        assert!(took >= LIMIT && took < LIMIT + PAUSED_POLL, "{took:?}");
        let send = || Waiting::current().unwrap().begin_sending();
        let (sent, _) = code_after(async {
            assert!(send());
            pending().await
        })
        .await;
        assert_eq!(sent, Some(ErrorCode::UnknownOutcome));
        let (undone, _) = code_after(async {
            assert!(send());
            Waiting::current().unwrap().note_undone();
            pending().await
        })
        .await;
        assert_eq!(undone, Some(ErrorCode::DatabaseUnavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_after_the_answer() {
        let waiting = Waiting::new(LIMIT);
        assert_eq!(waiting.answer(pending::<()>()).await.unwrap_err().code(), ErrorCode::DatabaseUnavailable);
        assert!(waiting.is_over() && !waiting.begin_sending());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_stands_still_while_bytes_are_stored() {
        let (answer, took) = code_after(async {
            unhurried(unhurried(sleep(3 * LIMIT))).await;
            pending().await
        })
        .await;
        assert_eq!(answer, Some(ErrorCode::DatabaseUnavailable));
        assert!(took >= 4 * LIMIT && took < 4 * LIMIT + PAUSED_POLL, "{took:?}");
    }
}
