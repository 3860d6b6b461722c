//! Streams of numbered calls: `Awaits` and `PrepareRenames`. A call of its own costs a wait, or a prepare, more than its work.
//!
//! The calls of a stream end with it. One entry of the log often answers several; their answers share a message.

use std::collections::HashMap;

use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::{self, BoxStream, FuturesUnordered},
};
use mantle_index_client::proto::{
    AwaitRequest, AwaitResponse, AwaitsRequest, AwaitsResponse, NumberedAnswer, NumberedPrepared, PrepareRenameRequest,
    PrepareRenameResponse, PrepareRenamesRequest, PrepareRenamesResponse,
};
use tonic::{Status, Streaming};

use crate::requests::WAITERS_MAX;

/// A message that tells which calls begin and end.
pub trait CallsMessage: Send + 'static {
    type Request: Default + Send + 'static;
    type Answer: Send + 'static;
    /// The message of the answers that are ready together.
    type Answers: Send + 'static;

    /// The calls that begin, and the numbers of those that need no answer any more.
    fn into_parts(self) -> (impl Iterator<Item = (u64, Option<Self::Request>)>, Vec<u64>);

    fn answers(answers: impl Iterator<Item = (u64, Self::Answer)>) -> Self::Answers;
}

impl CallsMessage for AwaitsRequest {
    type Request = AwaitRequest;
    type Answer = AwaitResponse;
    type Answers = AwaitsResponse;

    fn into_parts(self) -> (impl Iterator<Item = (u64, Option<AwaitRequest>)>, Vec<u64>) {
        (self.begin.into_iter().map(|wait| (wait.number, wait.request)), self.end)
    }

    fn answers(answers: impl Iterator<Item = (u64, AwaitResponse)>) -> AwaitsResponse {
        let numbered = |(number, answer)| NumberedAnswer { number, answer: Some(answer) };
        AwaitsResponse { answers: answers.map(numbered).collect() }
    }
}

impl CallsMessage for PrepareRenamesRequest {
    type Request = PrepareRenameRequest;
    type Answer = PrepareRenameResponse;
    type Answers = PrepareRenamesResponse;

    fn into_parts(self) -> (impl Iterator<Item = (u64, Option<PrepareRenameRequest>)>, Vec<u64>) {
        (self.begin.into_iter().map(|prepare| (prepare.number, prepare.request)), self.end)
    }

    fn answers(answers: impl Iterator<Item = (u64, PrepareRenameResponse)>) -> PrepareRenamesResponse {
        let numbered = |(number, answer)| NumberedPrepared { number, answer: Some(answer) };
        PrepareRenamesResponse { answers: answers.map(numbered).collect() }
    }
}

/// Answers a stream of calls, in any order.
pub fn answers<M: CallsMessage>(
    messages: Streaming<M>,
    answer: impl Fn(M::Request) -> BoxFuture<'static, M::Answer> + Send + 'static,
) -> BoxStream<'static, Result<M::Answers, Status>> {
    let messages = messages.map(Result::ok).take_while(|message| std::future::ready(message.is_some()));
    let messages = messages.filter_map(std::future::ready).boxed();
    Calls { answer: Box::new(answer), messages, pending: FuturesUnordered::new(), ends: HashMap::new() }.stream()
}

type Answering<M> = Box<dyn Fn(<M as CallsMessage>::Request) -> BoxFuture<'static, <M as CallsMessage>::Answer> + Send>;
type Numbered<M> = (u64, <M as CallsMessage>::Answer);

struct Calls<M: CallsMessage> {
    answer: Answering<M>,
    messages: BoxStream<'static, M>,
    pending: FuturesUnordered<Abortable<BoxFuture<'static, Numbered<M>>>>,
    /// How to end a pending call, by its number.
    ends: HashMap<u64, AbortHandle>,
}

impl<M: CallsMessage> Calls<M> {
    fn stream(self) -> BoxStream<'static, Result<M::Answers, Status>> {
        stream::unfold(self, Self::next).boxed()
    }

    /// The next answers. `None` when the caller has gone, which ends what is pending.
    async fn next(mut self) -> Option<(Result<M::Answers, Status>, Self)> {
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
                message = self.messages.next(), if self.pending.len() < WAITERS_MAX => self.take(message?),
            }
            if !answers.is_empty() {
                answers.iter().for_each(|(number, _)| drop(self.ends.remove(number)));
                return Some((Ok(M::answers(answers.into_iter())), self));
            }
        }
    }

    fn take(&mut self, message: M) {
        let (begin, end) = message.into_parts();
        for (number, request) in begin {
            let answered = (self.answer)(request.unwrap_or_default());
            let (handle, registration) = AbortHandle::new_pair();
            let numbered = answered.map(move |answer| (number, answer)).boxed();
            self.pending.push(Abortable::new(numbered, registration));
            self.ends.insert(number, handle);
        }
        for number in end {
            if let Some(handle) = self.ends.remove(&number) {
                handle.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
            let waits = Calls {
                answer: Box::new(answer),
                messages: UnboundedReceiverStream::new(requests).boxed(),
                pending: FuturesUnordered::new(),
                ends: HashMap::new(),
            };
            Self { requests: Some(sender), ends, answers: waits.stream() }
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
