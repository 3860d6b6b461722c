//! Calls to one replica over one stream, for the requests of `streamed.rs`. A call of its own would cost each more than its
//! work: on both sides a stream of HTTP/2 with headers and trailers.
//!
//! Invariant: a caller that has gone is told to the replica, which then gives the call's place to others (P24). When the stream
//! fails, every call in it does, and the next one opens another. There is no timer: a call on an idle stream leaves at once.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Response, Status, Streaming};

use crate::Stub;

/// Most calls that begin or end with one message.
const JOBS_MAX: usize = 1024;

type Called<T> = Result<Response<T>, Status>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Reply<C> = oneshot::Sender<Result<<C as StreamedCall>::Answer, Status>>;

/// A request that exists in a stream of numbered calls and as a call of its own.
pub(crate) trait StreamedCall: Clone + Send + Sync + 'static {
    type Answer: Default + Send + 'static;
    /// Tells which calls begin and end.
    type Message: Send + 'static;
    /// The answers that were ready together.
    type Answers: Send + 'static;

    /// The message that tells of these calls, and of the numbers of those that need no answer any more.
    fn message(begin: Vec<(u64, Self)>, end: Vec<u64>) -> Self::Message;

    /// The answers with the numbers of their calls.
    fn answers(answers: Self::Answers) -> impl Iterator<Item = (u64, Option<Self::Answer>)> + Send;

    fn open(
        stub: &mut Stub,
        messages: UnboundedReceiverStream<Self::Message>,
    ) -> impl Future<Output = Called<Streaming<Self::Answers>>> + Send;

    /// Sends the request by a call of its own.
    fn call(stub: Stub, request: tonic::Request<Self>) -> impl Future<Output = Called<Self::Answer>> + Send;
}

enum Job<C: StreamedCall> {
    Begin(u64, C, Reply<C>),
    End(u64),
}

pub(crate) struct CallStream<C: StreamedCall> {
    jobs: mpsc::UnboundedSender<Job<C>>,
    next: AtomicU64,
    /// The replica is of an older release, which knows single calls only.
    is_unary_only: AtomicBool,
}

impl<C: StreamedCall> CallStream<C> {
    /// A stream, which opens with the first call. Must be called within a tokio runtime.
    pub(crate) fn new(stub: Stub) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(stub, queue));
        Self { jobs, next: AtomicU64::new(1), is_unary_only: AtomicBool::new(false) }
    }

    /// The replica's answer, for which the caller waits at most `limit`; dropping the future ends the call. A traced request is
    /// a call of its own, because its headers name the trace.
    pub(crate) async fn send(&self, stub: Stub, request: C, limit: Duration) -> Result<C::Answer, Status> {
        if mantle_telemetry::is_traced() {
            return single(stub, request, limit).await;
        }
        if !self.is_unary_only.load(Ordering::Relaxed) {
            match self.submit(request.clone()).await {
                Err(status) if status.code() == Code::Unimplemented => {}
                answer => return answer,
            }
        }
        let answer = single(stub, request, limit).await;
        // After a failure, the replica may come back with another release.
        self.is_unary_only.store(answer.is_ok(), Ordering::Relaxed);
        answer
    }

    async fn submit(&self, request: C) -> Result<C::Answer, Status> {
        let gone = || Status::unavailable("the client is shutting down");
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Begin(number, request, reply)).map_err(|_| gone())?;
        let mut end = EndOnDrop { jobs: &self.jobs, number: Some(number) };
        let answer = answer.await;
        end.number = None;
        answer.unwrap_or_else(|_| Err(gone()))
    }
}

/// Sends a request by a call of its own. Boxed: it is rare, and its future is large.
fn single<C: StreamedCall>(stub: Stub, request: C, limit: Duration) -> BoxFuture<Result<C::Answer, Status>> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(limit);
    Box::pin(async move { C::call(stub, request).await.map(Response::into_inner) })
}

struct EndOnDrop<'a, C: StreamedCall> {
    jobs: &'a mpsc::UnboundedSender<Job<C>>,
    number: Option<u64>,
}

impl<C: StreamedCall> Drop for EndOnDrop<'_, C> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // Fails only when the client shuts down.
            let _ = self.jobs.send(Job::End(number));
        }
    }
}

async fn run<C: StreamedCall>(mut stub: Stub, mut queue: mpsc::UnboundedReceiver<Job<C>>) {
    let mut jobs = Vec::new();
    while queue.recv_many(&mut jobs, JOBS_MAX).await > 0 {
        let mut pending = Pending::<C>(HashMap::new());
        let Some(first) = pending.message(&mut jobs) else { continue };
        let status = pending.serve(&mut stub, first, &mut queue).await;
        tracing::debug!(%status, calls = pending.0.len(), "a stream of calls ended");
        // A caller may have gone; ignore the send error.
        pending.0.into_values().for_each(|reply| drop(reply.send(Err(status.clone()))));
    }
}

/// The calls of a stream that are not answered, by their number.
struct Pending<C: StreamedCall>(HashMap<u64, Reply<C>>);

impl<C: StreamedCall> Pending<C> {
    /// Serves calls until the stream fails or the client is dropped; returns the reason.
    async fn serve(
        &mut self,
        stub: &mut Stub,
        first: C::Message,
        queue: &mut mpsc::UnboundedReceiver<Job<C>>,
    ) -> Status {
        // Its bound is that of the callers. A bounded one could stop both sides, each before the other's messages.
        let (sender, messages) = mpsc::unbounded_channel();
        let _ = sender.send(first);
        let mut answers = match C::open(stub, UnboundedReceiverStream::new(messages)).await {
            Ok(answers) => answers.into_inner(),
            Err(status) => return status,
        };
        let mut jobs = Vec::new();
        loop {
            tokio::select! {
                answered = next(&mut answers) => match answered {
                    Ok(answered) => self.distribute(answered),
                    Err(status) => return status,
                },
                count = queue.recv_many(&mut jobs, JOBS_MAX) => {
                    if count == 0 || self.message(&mut jobs).is_some_and(|message| sender.send(message).is_err()) {
                        return Status::unavailable("the stream is closed");
                    }
                }
            }
        }
    }

    /// The message that tells of these jobs, if there is something to tell. Empties the list.
    fn message(&mut self, jobs: &mut Vec<Job<C>>) -> Option<C::Message> {
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        for job in jobs.drain(..) {
            match job {
                Job::Begin(_, _, reply) if reply.is_closed() => {}
                Job::Begin(number, request, reply) => {
                    self.0.insert(number, reply);
                    begin.push((number, request));
                }
                Job::End(number) if self.0.remove(&number).is_some() => end.push(number),
                Job::End(_) => {}
            }
        }
        (!begin.is_empty() || !end.is_empty()).then(|| C::message(begin, end))
    }

    fn distribute(&mut self, answered: C::Answers) {
        for (number, answer) in C::answers(answered) {
            // A call that has just been ended may still be answered.
            if let Some(reply) = self.0.remove(&number) {
                let _ = reply.send(Ok(answer.unwrap_or_default()));
            }
        }
    }
}

async fn next<A>(answers: &mut Streaming<A>) -> Result<A, Status> {
    answers.message().await?.ok_or_else(|| Status::unavailable("the replica ended the stream"))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        pin::Pin,
        sync::{Arc, atomic::AtomicUsize},
    };

    use tokio::net::{TcpListener, TcpStream};
    use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
    use tonic::{Request, service::interceptor::InterceptedService};

    use super::*;
    use crate::proto::{
        self, AwaitRequest, AwaitResponse, AwaitsRequest, AwaitsResponse, NumberedAnswer, NumberedAwait, index_server,
    };

    type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

    /// A replica. A wait of `LATE` is not answered, and one of `END` ends its stream.
    #[derive(Clone, Default)]
    struct Other {
        is_old: bool,
        streams: Arc<AtomicUsize>,
        calls: Arc<AtomicUsize>,
        ended: Arc<AtomicUsize>,
    }

    const LATE: u32 = 1;
    const END: u32 = 2;
    const LIMIT: Duration = Duration::from_secs(10);

    fn wait_of(kind: u32) -> AwaitRequest {
        AwaitRequest { source: kind, ..AwaitRequest::default() }
    }

    impl Other {
        /// Serves on a port of its own.
        async fn start(&self) -> (CallStream<AwaitRequest>, Stub) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let (sender, accepted) = mpsc::channel::<io::Result<TcpStream>>(1);
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    if sender.send(Ok(socket)).await.is_err() {
                        return;
                    }
                }
            });
            let server = tonic::transport::Server::builder().add_service(index_server::IndexServer::new(self.clone()));
            tokio::spawn(server.serve_with_incoming(ReceiverStream::new(accepted)));
            let channel = crate::connect_lazy(&address, 1 << 20, None).unwrap();
            let stub = Stub::new(InterceptedService::new(channel, mantle_telemetry::Propagate));
            (CallStream::new(stub.clone()), stub)
        }

        fn answers(&self, request: AwaitsRequest) -> Result<AwaitsResponse, Status> {
            self.ended.fetch_add(request.end.len(), Ordering::SeqCst);
            let kind = |wait: &NumberedAwait| wait.request.as_ref().map_or(0, |request| request.source);
            if request.begin.iter().any(|wait| kind(wait) == END) {
                return Err(Status::unavailable("it ends"));
            }
            let begun = request.begin.iter().filter(|wait| kind(wait) != LATE);
            let answer = |number| NumberedAnswer { number, answer: Some(answered(number)) };
            Ok(AwaitsResponse { answers: begun.map(|wait| answer(wait.number)).collect() })
        }

        fn counts(&self) -> (usize, usize) {
            (self.streams.load(Ordering::SeqCst), self.calls.load(Ordering::SeqCst))
        }
    }

    fn answered(applied_index: u64) -> AwaitResponse {
        AwaitResponse { outcome: Some(proto::Outcome::default()), applied_index }
    }

    /// Implements the service by the methods for waits; the others are not part of the test.
    macro_rules! index_that_only_waits {
        ($($unused:ident: $request:ty => $response:ty,)+) => {
            #[tonic::async_trait]
            impl index_server::Index for Other {
                type ResolveStream = Streamed<proto::ResolveResponse>;
                type AwaitsStream = Streamed<AwaitsResponse>;
                type PrepareRenamesStream = Streamed<proto::PrepareRenamesResponse>;

                async fn awaits(&self, request: Request<Streaming<AwaitsRequest>>) -> Called<Self::AwaitsStream> {
                    if self.is_old {
                        return Err(Status::unimplemented("awaits"));
                    }
                    self.streams.fetch_add(1, Ordering::SeqCst);
                    let other = self.clone();
                    let answers = request.into_inner().map(move |request| other.answers(request?));
                    Ok(Response::new(Box::pin(answers)))
                }

                async fn r#await(&self, _: Request<AwaitRequest>) -> Called<AwaitResponse> {
                    self.calls.fetch_add(1, Ordering::SeqCst);
                    Ok(Response::new(answered(1)))
                }

                $(async fn $unused(&self, _: Request<$request>) -> Called<$response> {
                    Err(Status::internal("not part of the test"))
                })+
            }
        };
    }

    index_that_only_waits! {
        resolve: Streaming<proto::ResolveRequest> => Self::ResolveStream,
        prepare_renames: Streaming<proto::PrepareRenamesRequest> => Self::PrepareRenamesStream,
        prepare_rename: proto::PrepareRenameRequest => proto::PrepareRenameResponse,
        release_rename: proto::ReleaseRenameRequest => proto::ReleaseRenameResponse,
        status: proto::StatusRequest => proto::StatusResponse,
        members: proto::MembersRequest => proto::MembersResponse,
        change_member: proto::ChangeMemberRequest => proto::ChangeMemberResponse,
        directories: proto::DirectoriesRequest => proto::DirectoriesResponse,
    }

    #[tokio::test]
    async fn waits_share_a_stream() {
        let other = Other::default();
        let (waits, stub) = other.start().await;
        for number in 1..=3 {
            assert_eq!(waits.send(stub.clone(), wait_of(0), LIMIT).await.unwrap(), answered(number), "its own answer");
        }
        assert_eq!(other.counts(), (1, 0));
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_ends_on_the_replica() {
        let other = Other::default();
        let (waits, stub) = other.start().await;
        waits.send(stub.clone(), wait_of(0), LIMIT).await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(20), waits.send(stub.clone(), wait_of(LATE), LIMIT));
        assert!(late.await.is_err());
        // Messages come in order, so the end has come before this is answered.
        waits.send(stub, wait_of(0), LIMIT).await.unwrap();
        assert_eq!((other.ended.load(Ordering::SeqCst), other.counts()), (1, (1, 0)));
    }

    #[tokio::test]
    async fn the_waits_of_a_stream_fail_with_it_and_the_next_opens_another() {
        let other = Other::default();
        let (waits, stub) = other.start().await;
        let (late, end) =
            tokio::join!(waits.send(stub.clone(), wait_of(LATE), LIMIT), waits.send(stub.clone(), wait_of(END), LIMIT));
        assert_eq!([late, end].map(|failed| failed.unwrap_err().code()), [Code::Unavailable; 2]);
        waits.send(stub, wait_of(0), LIMIT).await.unwrap();
        assert_eq!(other.counts(), (2, 0));
    }

    #[tokio::test]
    async fn an_older_replica_is_called() {
        let other = Other { is_old: true, ..Other::default() };
        let (waits, stub) = other.start().await;
        for _ in 0..2 {
            waits.send(stub.clone(), wait_of(0), LIMIT).await.unwrap();
        }
        assert_eq!(other.counts(), (0, 2));
    }

    fn begin(number: u64) -> (Job<AwaitRequest>, oneshot::Receiver<Result<AwaitResponse, Status>>) {
        let (reply, answer) = oneshot::channel();
        (Job::Begin(number, AwaitRequest::default(), reply), answer)
    }

    #[test]
    fn a_message_tells_what_began_and_ended() {
        let mut waiting = Pending::<AwaitRequest>(HashMap::new());
        let ((one, _first), (two, gone), (three, mut third)) = (begin(1), begin(2), begin(3));
        drop(gone);
        let message = waiting.message(&mut vec![one, two, Job::End(2), three, Job::End(1)]).unwrap();
        assert_eq!(message.begin.iter().map(|wait| wait.number).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(message.end, [1], "the second never began");
        assert_eq!(waiting.message(&mut vec![Job::End(1), Job::End(9)]), None);
        let answer = |number| NumberedAnswer { number, answer: Some(AwaitResponse::default()) };
        waiting.distribute(AwaitsResponse { answers: vec![answer(1), answer(3)] });
        assert_eq!(third.try_recv().unwrap().unwrap(), AwaitResponse::default());
        assert!(waiting.0.is_empty());
    }
}
