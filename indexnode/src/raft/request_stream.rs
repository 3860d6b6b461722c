//! Questions to another replica, one after the other over a call that stays open.
//!
//! A call of its own costs each question a header, two writes and two wakes of the other side instead of one (measured: a
//! mkdir asks the followers four times). Invariant: an answer belongs to the question before it: whoever gives up on an answer
//! gives up the stream.

use std::future::Future;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Response, Status, Streaming};

use super::peers::PeerChannel;
use crate::proto::peer::{RaftMessage, ReadIndexRequest, ReadIndexResponse, peer_client::PeerClient};

type Client = PeerClient<PeerChannel>;
type Called<A> = Result<Response<A>, Status>;

/// What can be asked both ways. Asking twice must do no harm.
pub trait Question: Clone + Send + 'static {
    /// What comes back.
    type Answer: Send + 'static;

    /// Opens a stream of them.
    fn open(
        client: &mut Client,
        questions: ReceiverStream<Self>,
    ) -> impl Future<Output = Called<Streaming<Self::Answer>>> + Send;

    /// Asks by a call of its own.
    fn call(client: &mut Client, question: Self) -> impl Future<Output = Called<Self::Answer>> + Send;
}

impl Question for RaftMessage {
    type Answer = Self;

    async fn open(client: &mut Client, questions: ReceiverStream<Self>) -> Called<Streaming<Self>> {
        client.appends(questions).await
    }

    async fn call(client: &mut Client, question: Self) -> Called<Self> {
        client.append(question).await
    }
}

impl Question for ReadIndexRequest {
    type Answer = ReadIndexResponse;

    async fn open(client: &mut Client, questions: ReceiverStream<Self>) -> Called<Streaming<ReadIndexResponse>> {
        client.read_indexes(questions).await
    }

    async fn call(client: &mut Client, question: Self) -> Called<ReadIndexResponse> {
        client.read_index(question).await
    }
}

/// The questions of one kind to one replica.
pub struct RequestStream<Q: Question> {
    client: Client,
    stream: Option<Stream<Q>>,
    /// The other side is an older program, as far as is known.
    knows_no_streams: bool,
}

struct Stream<Q: Question> {
    questions: mpsc::Sender<Q>,
    answers: Streaming<Q::Answer>,
}

impl<Q: Question> RequestStream<Q> {
    /// Nothing is sent before the first question.
    pub fn new(client: Client) -> Self {
        Self { client, stream: None, knows_no_streams: false }
    }

    /// Asks. A stream that was open and has broken meanwhile is opened again, once. Dropping the future gives up the stream;
    /// time limits are the caller's.
    pub async fn ask(&mut self, question: Q) -> Result<Q::Answer, Status> {
        if let Some(stream) = self.stream.take() {
            match stream.ask(question.clone()).await {
                Ok((answer, stream)) => {
                    self.stream = Some(stream);
                    return Ok(answer);
                }
                Err(broken) => tracing::debug!(status = %broken, "a stream between replicas ended"),
            }
        }
        if !self.knows_no_streams {
            match Stream::open(&mut self.client, question.clone()).await {
                Ok((answer, stream)) => {
                    self.stream = Some(stream);
                    return Ok(answer);
                }
                Err(status) if status.code() == Code::Unimplemented => self.knows_no_streams = true,
                Err(status) => return Err(status),
            }
        }
        let answer = Q::call(&mut self.client, question).await;
        // Whoever answers next may be another program.
        self.knows_no_streams = answer.is_ok();
        answer.map(Response::into_inner)
    }
}

impl<Q: Question> Stream<Q> {
    /// Opens a stream with its first question.
    async fn open(client: &mut Client, question: Q) -> Result<(Q::Answer, Self), Status> {
        let (questions, receiver) = mpsc::channel(1);
        questions.try_send(question).map_err(|_| ended())?;
        let answers = Q::open(client, ReceiverStream::new(receiver)).await?.into_inner();
        Self { questions, answers }.answer().await
    }

    async fn ask(self, question: Q) -> Result<(Q::Answer, Self), Status> {
        self.questions.try_send(question).map_err(|_| ended())?;
        self.answer().await
    }

    async fn answer(mut self) -> Result<(Q::Answer, Self), Status> {
        let answer = self.answers.message().await?.ok_or_else(ended)?;
        Ok((answer, self))
    }
}

fn ended() -> Status {
    Status::unavailable("the other replica ended the stream")
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use futures::{StreamExt, stream::BoxStream};
    use tonic::{Request, body::Body};
    use tower::{ServiceExt, service_fn, util::BoxCloneSyncService};

    use super::*;
    use crate::proto::peer::{
        DescribeRequest, DescribeResponse, JoinRequest, JoinResponse, SnapshotPart,
        peer_server::{Peer, PeerServer},
    };

    /// The other replica: answers a question's body; `late` takes its time, `end` ends the stream instead.
    #[derive(Clone, Default)]
    struct Other {
        is_old: bool,
        streams: Arc<AtomicUsize>,
        calls: Arc<AtomicUsize>,
    }

    impl Other {
        fn exchange(&self) -> RequestStream<RaftMessage> {
            let server = PeerServer::new(self.clone());
            let way = service_fn(move |request: http::Request<Body>| {
                let served = server.clone().oneshot(request);
                async move { served.await.map_err(|never| match never {}) }
            });
            RequestStream::new(PeerClient::new(BoxCloneSyncService::new(way)))
        }

        fn counts(&self) -> (usize, usize) {
            (self.streams.load(SeqCst), self.calls.load(SeqCst))
        }
    }

    async fn echo(question: Result<RaftMessage, Status>) -> Result<RaftMessage, Status> {
        let question = question?;
        match &question.body[..] {
            b"late" => tokio::time::sleep(Duration::from_secs(1)).await,
            b"end" => return Err(Status::failed_precondition("another node is here")),
            _ => {}
        }
        Ok(question)
    }

    type Unused<T> = Result<Response<T>, Status>;

    fn unused<T>() -> Unused<T> {
        Err(Status::internal("not part of the test"))
    }

    #[tonic::async_trait]
    impl Peer for Other {
        type AppendsStream = BoxStream<'static, Result<RaftMessage, Status>>;
        type ReadIndexesStream = BoxStream<'static, Result<ReadIndexResponse, Status>>;

        async fn appends(&self, request: Request<Streaming<RaftMessage>>) -> Unused<Self::AppendsStream> {
            if self.is_old {
                return Err(Status::unimplemented("appends"));
            }
            self.streams.fetch_add(1, SeqCst);
            Ok(Response::new(request.into_inner().then(echo).boxed()))
        }

        async fn append(&self, request: Request<RaftMessage>) -> Unused<RaftMessage> {
            self.calls.fetch_add(1, SeqCst);
            echo(Ok(request.into_inner())).await.map(Response::new)
        }

        async fn describe(&self, _: Request<DescribeRequest>) -> Unused<DescribeResponse> {
            unused()
        }

        async fn join(&self, _: Request<JoinRequest>) -> Unused<JoinResponse> {
            unused()
        }

        async fn read_index(&self, _: Request<ReadIndexRequest>) -> Unused<ReadIndexResponse> {
            unused()
        }

        async fn read_indexes(&self, _: Request<Streaming<ReadIndexRequest>>) -> Unused<Self::ReadIndexesStream> {
            unused()
        }

        async fn vote(&self, _: Request<RaftMessage>) -> Unused<RaftMessage> {
            unused()
        }

        async fn pre_vote(&self, _: Request<RaftMessage>) -> Unused<RaftMessage> {
            unused()
        }

        async fn transfer_leader(&self, _: Request<RaftMessage>) -> Unused<RaftMessage> {
            unused()
        }

        async fn install_snapshot(&self, _: Request<Streaming<SnapshotPart>>) -> Unused<RaftMessage> {
            unused()
        }
    }

    async fn ask(exchange: &mut RequestStream<RaftMessage>, text: &'static str) -> Result<String, Code> {
        let answer = exchange.ask(RaftMessage { to: None, body: text.into() }).await;
        answer.map(|answer| String::from_utf8(answer.body.to_vec()).unwrap()).map_err(|status| status.code())
    }

    #[tokio::test]
    async fn questions_share_a_stream() {
        let other = Other::default();
        let mut exchange = other.exchange();
        for text in ["a", "b", "c"] {
            assert_eq!(ask(&mut exchange, text).await.unwrap(), text);
        }
        assert_eq!(other.counts(), (1, 0));
    }

    #[tokio::test]
    async fn a_stream_that_broke_is_opened_again_once() {
        let other = Other::default();
        let mut exchange = other.exchange();
        assert_eq!(ask(&mut exchange, "a").await.unwrap(), "a");
        assert_eq!(ask(&mut exchange, "end").await, Err(Code::FailedPrecondition));
        assert_eq!(other.counts(), (2, 0));
        assert_eq!(ask(&mut exchange, "b").await.unwrap(), "b");
        assert_eq!(other.counts(), (3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_given_up_reaches_no_later_question() {
        let other = Other::default();
        let mut exchange = other.exchange();
        assert_eq!(ask(&mut exchange, "a").await.unwrap(), "a");
        let late = tokio::time::timeout(Duration::from_millis(1), ask(&mut exchange, "late")).await;
        assert!(late.is_err());
        assert_eq!(ask(&mut exchange, "b").await.unwrap(), "b");
        assert_eq!(other.counts(), (2, 0));
    }

    #[tokio::test]
    async fn an_older_replica_is_called_until_it_may_be_another() {
        let other = Other { is_old: true, ..Other::default() };
        let mut exchange = other.exchange();
        for text in ["a", "b"] {
            assert_eq!(ask(&mut exchange, text).await.unwrap(), text);
        }
        assert_eq!(other.counts(), (0, 2));
        assert_eq!(ask(&mut exchange, "end").await, Err(Code::FailedPrecondition));
        let newer = Other::default();
        exchange.client = newer.exchange().client;
        assert_eq!(ask(&mut exchange, "c").await.unwrap(), "c");
        assert_eq!((other.counts(), newer.counts()), ((0, 3), (1, 0)));
    }
}
