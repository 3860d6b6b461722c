//! When a follower learns that an entry is committed: with the entries that follow, or once somebody needs it there.
//!
//! openraft tells each follower of each commit in a message of its own as soon as it has no entries to send. With one change at
//! a time that is half of the messages between replicas, and the next entry waits for their answers. No rule needs them: a
//! lookup on a follower begins with a read index (P39), so the leader knows when a follower has to apply more.
//!
//! Invariant: once the leader has given a read index, no message that commits it is kept back. What is kept back counts as sent
//! only after it was sent, or when a later message was: leases go by that (P38).

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt, stream, stream::BoxStream};
use openraft::raft::AppendEntriesRequest;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::TypeConfig;

/// A commit is kept back for at most this long: so long an idle follower is behind.
const KEPT_MAX: Duration = Duration::from_millis(5);

type Append = AppendEntriesRequest<TypeConfig>;

/// The read indexes that this replica has given to others.
#[derive(Debug, Default)]
pub struct GivenReadIndexes {
    highest: AtomicU64,
    raised: Notify,
}

impl GivenReadIndexes {
    /// Notes a read index before it is answered.
    pub fn note(&self, log_index: u64) {
        if self.highest.fetch_max(log_index, Ordering::SeqCst) < log_index {
            self.raised.notify_waiters();
        }
    }

    /// Waits until a read index above this one is given; returns at once if it was.
    async fn above(&self, log_index: u64) {
        let mut raised = pin!(self.raised.notified());
        loop {
            // Registers the wait before the look, so that nothing is missed in between.
            raised.as_mut().enable();
            if self.highest.load(Ordering::SeqCst) > log_index {
                return;
            }
            raised.as_mut().await;
            raised.set(self.raised.notified());
        }
    }
}

/// The requests to a follower of one session, less the commits that need no message. The first request passes: it may be a
/// heartbeat or a probe.
pub fn without_idle_commits<S>(requests: S, given: Arc<GivenReadIndexes>) -> BoxStream<'static, Append>
where
    S: Stream<Item = Append> + Send + Unpin + 'static,
{
    let session = Session { requests: requests.fuse(), given, told: None };
    stream::unfold(session, Session::next).boxed()
}

struct Session<S> {
    requests: stream::Fuse<S>,
    given: Arc<GivenReadIndexes>,
    /// The commit that the last request told; `None` before the first.
    told: Option<u64>,
}

impl<S: Stream<Item = Append> + Unpin> Session<S> {
    async fn next(mut self) -> Option<(Append, Self)> {
        let mut request = self.requests.next().await?;
        if let Some(told) = self.told {
            let until = Instant::now() + KEPT_MAX;
            while request.entries.is_empty() {
                tokio::select! {
                    biased;
                    next = self.requests.next() => match next {
                        // It tells of the same commit, or of a later one.
                        Some(next) => request = next,
                        None => break,
                    },
                    () = self.given.above(told) => break,
                    () = sleep_until(until) => break,
                }
            }
        }
        self.told = Some(request.leader_commit.map_or(0, |id| id.index));
        Some((request, self))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use openraft::{EntryPayload, vote::RaftLeaderId};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;
    use crate::raft::types::{CommittedLeaderId, Entry, LogId, Vote};

    fn id(index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(1, 1), index)
    }

    fn request(commit: u64, entries: &[u64]) -> Append {
        let entry = |index: &u64| Entry { log_id: id(*index), payload: EntryPayload::Blank };
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            leader_commit: Some(id(commit)),
            entries: entries.iter().map(entry).collect(),
        }
    }

    /// What openraft asks to send, and what is sent.
    struct Scene {
        asks: Option<mpsc::UnboundedSender<Append>>,
        given: Arc<GivenReadIndexes>,
        sent: BoxStream<'static, Append>,
    }

    impl Scene {
        /// After the first request, which told of commit 1.
        fn new() -> Self {
            let (asks, requests) = mpsc::unbounded_channel();
            let given = Arc::<GivenReadIndexes>::default();
            let sent = without_idle_commits(UnboundedReceiverStream::new(requests), given.clone());
            let mut scene = Self { asks: Some(asks), given, sent };
            scene.ask(request(1, &[]));
            assert_eq!(scene.sent_now(), Some((1, 0)), "the first passes");
            scene
        }

        fn ask(&self, request: Append) {
            self.asks.as_ref().unwrap().send(request).unwrap();
        }

        /// Commit and number of entries of the next request, if it leaves without a wait.
        fn sent_now(&mut self) -> Option<(u64, usize)> {
            let sent = self.sent.next().now_or_never()?;
            sent.map(|request| (request.leader_commit.unwrap().index, request.entries.len()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_goes_with_the_next_entries() {
        let mut scene = Scene::new();
        scene.ask(request(2, &[]));
        assert_eq!(scene.sent_now(), None);
        scene.ask(request(3, &[]));
        assert_eq!(scene.sent_now(), None);
        scene.ask(request(3, &[4]));
        assert_eq!(scene.sent_now(), Some((3, 1)));
        assert_eq!(scene.sent_now(), None, "both are told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_goes_alone_when_nothing_follows() {
        let mut scene = Scene::new();
        scene.ask(request(2, &[]));
        let begun = Instant::now();
        assert_eq!(scene.sent.next().await.unwrap().leader_commit, Some(id(2)));
        assert!(begun.elapsed() >= KEPT_MAX && begun.elapsed() < KEPT_MAX * 2);
        // Others that come while it waits do not prolong its wait.
        let begun = Instant::now();
        for commit in 3..100 {
            scene.ask(request(commit, &[]));
            tokio::select! {
                biased;
                sent = scene.sent.next() => {
                    assert_eq!(sent.unwrap().leader_commit, Some(id(commit)));
                    assert!(begun.elapsed() < KEPT_MAX * 2);
                    return;
                }
                () = tokio::time::sleep(KEPT_MAX / 3) => {}
            }
        }
        panic!("it was never sent");
    }

    /// Otherwise a lookup on the follower, which waits for its read index, would wait for a change of somebody else.
    #[tokio::test(start_paused = true)]
    async fn a_commit_that_a_read_index_needs_is_not_kept() {
        let mut scene = Scene::new();
        scene.given.note(1);
        scene.ask(request(2, &[]));
        assert_eq!(scene.sent_now(), None, "the follower was told of commit 1");
        scene.given.note(2);
        assert_eq!(scene.sent_now(), Some((2, 0)), "kept when it was needed");
        scene.given.note(3);
        scene.ask(request(3, &[]));
        assert_eq!(scene.sent_now(), Some((3, 0)), "needed before it could be kept");
        scene.given.note(2);
        scene.ask(request(4, &[]));
        assert_eq!(scene.sent_now(), None, "an older read index needs nothing more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_is_told_before_the_session_ends() {
        let mut scene = Scene::new();
        scene.ask(request(2, &[]));
        assert_eq!(scene.sent_now(), None);
        scene.asks = None;
        assert_eq!(scene.sent_now(), Some((2, 0)));
        assert!(scene.sent.next().await.is_none());
    }
}
