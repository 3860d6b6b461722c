//! `Await` and `Awaits`: one wait, and a stream of waits. A call of its own costs a wait more than the wait itself.
//!
//! The waits of a stream end with it, as the wait of a call ends with the call. One entry of the log often ends several; their
//! answers share a message.

use std::{collections::HashMap, sync::Arc};

use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::{self, BoxStream, FuturesUnordered},
};
use mantle_index_client::proto::{
    AwaitRequest, AwaitResponse, AwaitsRequest, AwaitsResponse, NumberedAnswer, await_request::What,
};
use mantle_types::{Error, ErrorCode, GroupId, Lsn, RequestKey, Result};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::{
    metrics,
    request::{outcome_of, time_limit},
};
use crate::{groups::Groups, index::command::SourceId, node::Node, requests::WAITERS_MAX, waits};

/// Answers one wait.
pub async fn answer(groups: &Groups, request: AwaitRequest) -> AwaitResponse {
    let started = Instant::now();
    let group = GroupId(request.group);
    let node = groups.node(group);
    let result = match &node {
        Ok(node) => await_change(node, request).await,
        Err(e) => Err(e.clone()),
    };
    metrics::count_await(group, started.elapsed(), result.is_ok());
    let applied_end = node.map_or(0, |node| node.state.positions().borrow().applied_end);
    AwaitResponse { outcome: Some(outcome_of(groups, group, &result)), applied_index: applied_end.saturating_sub(1) }
}

async fn await_change(node: &Node, request: AwaitRequest) -> Result<()> {
    let limit = time_limit(request.timeout_ms);
    match request.what {
        Some(What::Request(key)) => waits::request(node, RequestKey::try_from(key)?, limit).await,
        Some(What::Lsn(lsn)) => waits::position(node, SourceId(request.source), Lsn(lsn), limit).await,
        None => Err(Error::new(ErrorCode::InvalidArgument, "nothing to wait for")),
    }
}

/// Answers a stream of waits, in any order.
pub fn answers(
    groups: Arc<Groups>,
    requests: Streaming<AwaitsRequest>,
) -> BoxStream<'static, Result<AwaitsResponse, Status>> {
    let answer = move |request: AwaitRequest| {
        let groups = groups.clone();
        async move { answer(&groups, request).await }.boxed()
    };
    let requests = requests.map(Result::ok).take_while(|request| std::future::ready(request.is_some()));
    let requests = requests.filter_map(std::future::ready).boxed();
    let waits = Waits { answer: Box::new(answer), requests, pending: FuturesUnordered::new(), ends: HashMap::new() };
    stream::unfold(waits, Waits::next).boxed()
}

type Answer = NumberedAnswer;
type Answering = Box<dyn Fn(AwaitRequest) -> BoxFuture<'static, AwaitResponse> + Send>;

struct Waits {
    answer: Answering,
    requests: BoxStream<'static, AwaitsRequest>,
    pending: FuturesUnordered<Abortable<BoxFuture<'static, Answer>>>,
    /// How to end a pending wait, by its number.
    ends: HashMap<u64, AbortHandle>,
}

impl Waits {
    /// The next answers. `None` when the caller has gone, which ends what is pending.
    async fn next(mut self) -> Option<(Result<AwaitsResponse, Status>, Self)> {
        loop {
            let mut answers = Vec::new();
            tokio::select! {
                biased;
                Some(first) = self.pending.next() => {
                    answers.extend(first.ok());
                    while let Some(Some(more)) = self.pending.next().now_or_never() {
                        answers.extend(more.ok());
                    }
                }
                // Bounded as the waits of a process are (P24).
                request = self.requests.next(), if self.pending.len() < WAITERS_MAX => self.take(request?),
            }
            if !answers.is_empty() {
                answers.iter().for_each(|answer| drop(self.ends.remove(&answer.number)));
                return Some((Ok(AwaitsResponse { answers }), self));
            }
        }
    }

    fn take(&mut self, request: AwaitsRequest) {
        for wait in request.begin {
            let (number, answered) = (wait.number, (self.answer)(wait.request.unwrap_or_default()));
            let (end, registration) = AbortHandle::new_pair();
            let numbered = answered.map(move |answer| Answer { number, answer: Some(answer) }).boxed();
            self.pending.push(Abortable::new(numbered, registration));
            self.ends.insert(number, end);
        }
        for number in request.end {
            if let Some(end) = self.ends.remove(&number) {
                end.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mantle_index_client::proto::NumberedAwait;
    use parking_lot::Mutex;
    use tokio::sync::{mpsc, oneshot};
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    type Ends = Arc<Mutex<HashMap<u32, oneshot::Sender<()>>>>;

    /// A stream whose waits end when the test says so. A wait is known by its time limit.
    struct Scene {
        requests: Option<mpsc::UnboundedSender<AwaitsRequest>>,
        ends: Ends,
        answers: BoxStream<'static, Result<AwaitsResponse, Status>>,
    }

    impl Scene {
        fn new() -> Self {
            let (sender, requests) = mpsc::unbounded_channel();
            let ends = Ends::default();
            let begun = ends.clone();
            let answer = move |request: AwaitRequest| {
                let (end, ended) = oneshot::channel();
                begun.lock().insert(request.timeout_ms, end);
                async move {
                    ended.await.unwrap();
                    AwaitResponse { applied_index: request.timeout_ms.into(), ..AwaitResponse::default() }
                }
                .boxed()
            };
            let waits = Waits {
                answer: Box::new(answer),
                requests: UnboundedReceiverStream::new(requests).boxed(),
                pending: FuturesUnordered::new(),
                ends: HashMap::new(),
            };
            Self { requests: Some(sender), ends, answers: stream::unfold(waits, Waits::next).boxed() }
        }

        fn send(&self, begin: &[u64], end: &[u64]) {
            let wait = |number: &u64| NumberedAwait {
                number: *number,
                request: Some(AwaitRequest { timeout_ms: *number as u32, ..AwaitRequest::default() }),
            };
            let begin = begin.iter().map(wait).collect();
            self.requests.as_ref().unwrap().send(AwaitsRequest { begin, end: end.to_vec() }).unwrap();
        }

        fn end(&self, number: u32) {
            self.ends.lock().remove(&number).expect("the wait has begun").send(()).expect("it is waited for");
        }

        /// The numbers of the next message, sorted; each has its own answer.
        fn answered(&mut self) -> Option<Vec<u64>> {
            let message = self.answers.next().now_or_never()??.unwrap();
            let own = |a: &NumberedAnswer| a.answer.as_ref().is_some_and(|answer| answer.applied_index == a.number);
            assert!(message.answers.iter().all(own));
            let mut numbers: Vec<_> = message.answers.iter().map(|answer| answer.number).collect();
            numbers.sort_unstable();
            Some(numbers)
        }
    }

    #[test]
    fn what_is_ready_is_answered_together_and_in_any_order() {
        let mut scene = Scene::new();
        scene.send(&[1, 2, 3], &[]);
        assert_eq!(scene.answered(), None);
        scene.end(3);
        scene.end(1);
        assert_eq!(scene.answered(), Some(vec![1, 3]));
        scene.send(&[4], &[]);
        assert_eq!(scene.answered(), None);
        scene.end(2);
        assert_eq!(scene.answered(), Some(vec![2]));
        scene.end(4);
        assert_eq!(scene.answered(), Some(vec![4]));
    }

    #[test]
    fn a_wait_that_nobody_wants_ends_and_is_not_answered() {
        let mut scene = Scene::new();
        scene.send(&[1, 2], &[]);
        scene.send(&[], &[1, 7]);
        assert_eq!(scene.answered(), None);
        assert!(scene.ends.lock()[&1].is_closed() && !scene.ends.lock()[&2].is_closed());
        scene.end(2);
        assert_eq!(scene.answered(), Some(vec![2]));
    }

    #[test]
    fn all_waits_end_with_the_stream() {
        let mut scene = Scene::new();
        scene.send(&[1, 2], &[]);
        assert_eq!(scene.answered(), None);
        scene.requests = None;
        assert!(scene.answers.next().now_or_never().expect("it ends").is_none());
        assert!(scene.ends.lock().values().all(oneshot::Sender::is_closed));
    }
}
