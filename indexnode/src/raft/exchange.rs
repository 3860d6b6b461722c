//! Questions to another replica, one after the other over a call that stays open.
//!
//! A call of its own costs each question a header, two writes and two wakes of the other side instead of one (measured: a
//! mkdir asks the followers four times). Invariant: an answer belongs to the question before it: whoever gives up on an answer
//! gives up the stream.

use std::{fmt::Debug, future::Future};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Response, Status, Streaming};

use super::network::PeerChannel;
use crate::proto::peer::{RaftMessage, ReadIndexRequest, ReadIndexResponse, peer_client::PeerClient};

type Client = PeerClient<PeerChannel>;
type Called<A> = Result<Response<A>, Status>;

/// What can be asked both ways. Asking twice must do no harm.
pub trait Question: Clone + Debug + Send + 'static {
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
pub struct Exchange<Q: Question> {
    client: Client,
    stream: Option<Stream<Q>>,
    /// The other side is an older program, as far as is known.
    knows_no_streams: bool,
}

struct Stream<Q: Question> {
    questions: mpsc::Sender<Q>,
    answers: Streaming<Q::Answer>,
}

impl<Q: Question> Exchange<Q> {
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
