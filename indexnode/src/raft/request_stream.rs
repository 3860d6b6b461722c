//! Requests to another replica, one after the other over one streaming call.
//!
//! With a call of its own, each request costs a header, two writes and two wakes of the other side instead of one (measured: a
//! mkdir sends the followers four requests). Invariant: an answer belongs to the request before it; a caller that gives up
//! waiting closes the stream.

use std::future::Future;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Response, Status, Streaming};

use super::peers::PeerChannel;
use crate::proto::peer::{RaftMessage, ReadIndexRequest, ReadIndexResponse, peer_client::PeerClient};

type Client = PeerClient<PeerChannel>;
type Called<A> = Result<Response<A>, Status>;

/// A request that exists as a streaming and as a unary call. Sending it twice must do no harm.
pub trait PeerRequest: Clone + Send + 'static {
    type Answer: Send + 'static;

    fn open(
        client: &mut Client,
        requests: ReceiverStream<Self>,
    ) -> impl Future<Output = Called<Streaming<Self::Answer>>> + Send;
    /// Sends a request by a unary call.
    fn call(client: &mut Client, request: Self) -> impl Future<Output = Called<Self::Answer>> + Send;
}

impl PeerRequest for RaftMessage {
    type Answer = Self;

    async fn open(client: &mut Client, requests: ReceiverStream<Self>) -> Called<Streaming<Self>> {
        client.appends(requests).await
    }

    async fn call(client: &mut Client, request: Self) -> Called<Self> {
        client.append(request).await
    }
}

impl PeerRequest for ReadIndexRequest {
    type Answer = ReadIndexResponse;

    async fn open(client: &mut Client, requests: ReceiverStream<Self>) -> Called<Streaming<ReadIndexResponse>> {
        client.read_indexes(requests).await
    }

    async fn call(client: &mut Client, request: Self) -> Called<ReadIndexResponse> {
        client.read_index(request).await
    }
}

pub struct RequestStream<Q: PeerRequest> {
    client: Client,
    stream: Option<Stream<Q>>,
    /// The other replica answered that it does not know the streaming call: an older release.
    is_unary_only: bool,
}

struct Stream<Q: PeerRequest> {
    requests: mpsc::Sender<Q>,
    answers: Streaming<Q::Answer>,
}

impl<Q: PeerRequest> RequestStream<Q> {
    pub fn new(client: Client) -> Self {
        Self { client, stream: None, is_unary_only: false }
    }

    /// Sends a request and waits for its answer, without a time limit. A stream that has broken is opened again, once. Dropping
    /// the future closes the stream.
    pub async fn send(&mut self, request: Q) -> Result<Q::Answer, Status> {
        let mut answered = None;
        if let Some(stream) = self.stream.take() {
            match stream.send(request.clone()).await {
                Ok(answer) => answered = Some(answer),
                Err(broken) => tracing::debug!(status = %broken, "a stream between replicas ended"),
            }
        }
        if answered.is_none() && !self.is_unary_only {
            match Stream::open(&mut self.client, request.clone()).await {
                Ok(answer) => answered = Some(answer),
                Err(status) if status.code() == Code::Unimplemented => self.is_unary_only = true,
                Err(status) => return Err(status),
            }
        }
        if let Some((answer, stream)) = answered {
            self.stream = Some(stream);
            return Ok(answer);
        }
        let answer = Q::call(&mut self.client, request).await;
        // After a failure, the replica may come back with another release.
        self.is_unary_only = answer.is_ok();
        answer.map(Response::into_inner)
    }
}

impl<Q: PeerRequest> Stream<Q> {
    async fn open(client: &mut Client, request: Q) -> Result<(Q::Answer, Self), Status> {
        let (requests, receiver) = mpsc::channel(1);
        requests.try_send(request).map_err(|_| ended())?;
        let answers = Q::open(client, ReceiverStream::new(receiver)).await?.into_inner();
        Self { requests, answers }.answer().await
    }

    async fn send(self, request: Q) -> Result<(Q::Answer, Self), Status> {
        self.requests.try_send(request).map_err(|_| ended())?;
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

    /// The other replica: echoes a request; `late` takes a second, `end` ends the stream instead.
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

    async fn echo(request: Result<RaftMessage, Status>) -> Result<RaftMessage, Status> {
        let request = request?;
        match &request.body[..] {
            b"late" => tokio::time::sleep(Duration::from_secs(1)).await,
            b"end" => return Err(Status::failed_precondition("another node is here")),
            _ => {}
        }
        Ok(request)
    }

    /// Implements the service by two methods; the others are not part of the test.
    macro_rules! peer_that_only_appends {
        ($($unused:ident: $request:ty => $response:ty,)+) => {
            #[tonic::async_trait]
            impl Peer for Other {
                type AppendsStream = BoxStream<'static, Result<RaftMessage, Status>>;
                type ReadIndexesStream = BoxStream<'static, Result<ReadIndexResponse, Status>>;

                async fn appends(&self, request: Request<Streaming<RaftMessage>>) -> Called<Self::AppendsStream> {
                    if self.is_old {
                        return Err(Status::unimplemented("appends"));
                    }
                    self.streams.fetch_add(1, SeqCst);
                    Ok(Response::new(request.into_inner().then(echo).boxed()))
                }

                async fn append(&self, request: Request<RaftMessage>) -> Called<RaftMessage> {
                    self.calls.fetch_add(1, SeqCst);
                    echo(Ok(request.into_inner())).await.map(Response::new)
                }

                $(async fn $unused(&self, _: Request<$request>) -> Called<$response> {
                    Err(Status::internal("not part of the test"))
                })+
            }
        };
    }

    peer_that_only_appends! {
        describe: DescribeRequest => DescribeResponse,
        join: JoinRequest => JoinResponse,
        read_index: ReadIndexRequest => ReadIndexResponse,
        read_indexes: Streaming<ReadIndexRequest> => Self::ReadIndexesStream,
        vote: RaftMessage => RaftMessage,
        pre_vote: RaftMessage => RaftMessage,
        transfer_leader: RaftMessage => RaftMessage,
        install_snapshot: Streaming<SnapshotPart> => RaftMessage,
    }

    async fn ask(exchange: &mut RequestStream<RaftMessage>, text: &'static str) -> Result<String, Code> {
        let answer = exchange.send(RaftMessage { body: text.into(), ..RaftMessage::default() }).await;
        answer.map(|answer| String::from_utf8(answer.body.to_vec()).unwrap()).map_err(|status| status.code())
    }

    #[tokio::test]
    async fn requests_share_a_stream() {
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
    async fn an_answer_that_was_given_up_reaches_no_later_request() {
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
