//! Which requests are applied, and the callers that wait for one.
//!
//! Invariant: a waiter is answered whether it registers before or after its request is applied, as long as the request is among
//! the last [`FINISHED_MAX`], and was applied after the last received snapshot and the last divergence from PostgreSQL. Callers
//! wait for older requests by position. The number of waiters is bounded, and each has a deadline (P24).

use std::collections::{HashMap, VecDeque};

use mantle_types::{Error, ErrorCode, RequestKey, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How many finished requests are remembered.
pub const FINISHED_MAX: usize = 65_536;
pub const WAITERS_MAX: usize = 65_536;

/// The applied requests and their waiters.
#[derive(Default)]
pub struct FinishedRequests {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Finished requests, oldest first; one may be there several times, as `finished` counts.
    order: VecDeque<RequestKey>,
    finished: HashMap<RequestKey, u32>,
    waiting: HashMap<RequestKey, Vec<Waiting>>,
    waiters: usize,
    next_ticket: u64,
}

struct Waiting {
    ticket: u64,
    /// `true`: applied; `false`: superseded.
    done: oneshot::Sender<bool>,
}

impl FinishedRequests {
    /// Records requests as applied and answers their waiters.
    pub fn finish(&self, requests: &[RequestKey]) {
        if requests.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        for request in requests {
            inner.remember(*request);
            for waiting in inner.waiting.remove(request).unwrap_or_default() {
                inner.waiters -= 1;
                // The waiter may have gone; ignore the send error.
                let _ = waiting.done.send(true);
            }
        }
    }

    /// Answers all waiters that a rebuild has replaced the index: the copy may have their changes, whose messages then never
    /// come. They have to wait for a position.
    pub fn supersede(&self) {
        let mut inner = self.inner.lock();
        inner.waiters = 0;
        for waiting in inner.waiting.drain().flat_map(|(_, waiting)| waiting) {
            // As above.
            let _ = waiting.done.send(false);
        }
    }

    /// Forgets all finished requests, because PostgreSQL lost applied changes: a repeated request may commit again.
    pub fn forget(&self) {
        let mut inner = self.inner.lock();
        inner.order.clear();
        inner.finished.clear();
    }

    /// Registers a wait for a request; `None` if it is already applied.
    pub fn wait(&self, request: RequestKey) -> Result<Option<Wait<'_>>> {
        let (done, applied) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.finished.contains_key(&request) {
            return Ok(None);
        }
        if inner.waiters == WAITERS_MAX {
            return Err(Error::new(ErrorCode::AwaitTimeout, "too many requests are waited for"));
        }
        inner.waiters += 1;
        inner.next_ticket += 1;
        let ticket = inner.next_ticket;
        inner.waiting.entry(request).or_default().push(Waiting { ticket, done });
        Ok(Some(Wait { registry: self, request, ticket, applied }))
    }

    pub fn waiters(&self) -> usize {
        self.inner.lock().waiters
    }
}

impl Inner {
    fn remember(&mut self, request: RequestKey) {
        self.order.push_back(request);
        *self.finished.entry(request).or_default() += 1;
        if self.order.len() > FINISHED_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(count) = self.finished.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.finished.remove(&oldest);
            }
        }
    }
}

/// A registered waiter; dropping it unregisters it.
pub struct Wait<'a> {
    registry: &'a FinishedRequests,
    request: RequestKey,
    ticket: u64,
    applied: oneshot::Receiver<bool>,
}

impl Wait<'_> {
    /// Returns once the request is applied. `false`: a rebuild has replaced the index, which may have the change.
    pub async fn done(&mut self) -> bool {
        // The sender is dropped only after it was used, or with the registry that `self` borrows.
        (&mut self.applied).await.unwrap_or(false)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut inner = self.registry.inner.lock();
        let Some(waiting) = inner.waiting.get_mut(&self.request) else { return };
        let before = waiting.len();
        waiting.retain(|w| w.ticket != self.ticket);
        let (removed, is_empty) = (before - waiting.len(), waiting.is_empty());
        inner.waiters -= removed;
        if is_empty {
            inner.waiting.remove(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use mantle_types::NamespaceId;
    use uuid::Uuid;

    use super::*;

    fn key(n: u128) -> RequestKey {
        RequestKey { principal: 1, ns: NamespaceId(1), id: Uuid::from_u128(n) }
    }

    #[tokio::test]
    async fn waiters_before_and_after_are_answered() {
        let requests = FinishedRequests::default();
        let mut first = requests.wait(key(1)).unwrap().unwrap();
        let mut second = requests.wait(key(1)).unwrap().unwrap();
        requests.finish(&[key(1)]);
        first.done().await;
        second.done().await;
        assert!(requests.wait(key(1)).unwrap().is_none());
        assert_eq!(requests.waiters(), 0);
    }

    #[tokio::test]
    async fn a_rebuild_answers_all_waiters_and_forgets_none_of_the_finished() {
        let requests = FinishedRequests::default();
        requests.finish(&[key(1)]);
        let mut wait = requests.wait(key(2)).unwrap().unwrap();
        requests.supersede();
        assert!(!wait.done().await, "the copy may have its change");
        drop(wait);
        assert_eq!(requests.waiters(), 0);
        assert!(requests.wait(key(1)).unwrap().is_none());
        let mut later = requests.wait(key(2)).unwrap().unwrap();
        requests.finish(&[key(2)]);
        assert!(later.done().await);
    }

    #[test]
    fn a_waiter_that_leaves_gives_its_place_back() {
        let requests = FinishedRequests::default();
        let held = requests.wait(key(1)).unwrap();
        drop(requests.wait(key(1)).unwrap());
        assert_eq!(requests.waiters(), 1);
        drop(held);
        assert_eq!(requests.waiters(), 0);
        assert!(requests.inner.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn the_number_of_waiters_is_bounded() {
        let requests = FinishedRequests::default();
        // Half of them for one request.
        let wait =
            |n: usize| requests.wait(key((n % (WAITERS_MAX / 2)) as u128 + 1)).map(|wait| wait.expect("not finished"));
        let mut waits: Vec<_> = (0..WAITERS_MAX).map(|n| wait(n).expect("room")).collect();
        assert_eq!(requests.waiters(), WAITERS_MAX);
        let refused = requests.wait(key(0)).err().expect("no room");
        assert_eq!(refused.code(), ErrorCode::AwaitTimeout);
        // A refused waiter does not count, nor does one that is gone or answered; a finished request needs none.
        assert_eq!(requests.waiters(), WAITERS_MAX);
        requests.finish(&[key(0)]);
        assert!(requests.wait(key(0)).expect("no wait").is_none());
        drop(waits.pop());
        let again = requests.wait(key(2)).expect("room");
        assert!(requests.wait(key(2)).is_err());
        requests.finish(&[key(1)]);
        waits[0].done().await;
        assert_eq!(requests.waiters(), WAITERS_MAX - 2, "two waited for it");
        drop((again, waits));
        assert_eq!(requests.waiters(), 0);
        assert!(requests.inner.lock().waiting.is_empty());
    }

    #[test]
    fn only_the_newest_finished_are_remembered() {
        let requests = FinishedRequests::default();
        requests.finish(&[key(0), key(1)]);
        let later: Vec<_> = (2..FINISHED_MAX as u128).map(key).collect();
        requests.finish(&later);
        // Finished twice: the newer mention counts.
        requests.finish(&[key(1)]);
        assert!(requests.wait(key(0)).unwrap().is_some());
        assert!(requests.wait(key(1)).unwrap().is_none());
        requests.finish(&[key(u128::MAX)]);
        assert!(requests.wait(key(1)).unwrap().is_none());
        assert_eq!(requests.inner.lock().order.len(), FINISHED_MAX);
    }
}
