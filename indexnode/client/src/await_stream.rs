//! Waits at one replica, over one stream. A call of its own would cost each wait more than the wait itself: on both sides a
//! stream of HTTP/2 with headers and trailers.
//!
//! Invariant: a caller that has gone is told to the replica, which then gives the wait's place to others (P24). When the stream
//! fails, every wait in it does, and the next one opens another. There is no timer: a wait on an idle stream leaves at once.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::{
    Stub,
    proto::{AwaitRequest, AwaitResponse, AwaitsRequest, AwaitsResponse, NumberedAwait},
};

/// Most waits that begin or end with one message.
const JOBS_MAX: usize = 1024;

type Reply = oneshot::Sender<Result<AwaitResponse, Status>>;

enum Job {
    Begin(NumberedAwait, Reply),
    End(u64),
}

pub(crate) struct AwaitStream {
    jobs: mpsc::UnboundedSender<Job>,
    next: AtomicU64,
    /// The replica is of an older release, which knows single calls only.
    is_unary_only: AtomicBool,
}

impl AwaitStream {
    /// A stream, which opens with the first wait. Must be called within a tokio runtime.
    pub(crate) fn new(stub: Stub) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(stub, queue));
        Self { jobs, next: AtomicU64::new(1), is_unary_only: AtomicBool::new(false) }
    }

    /// The replica's answer, which it gives within `limit`; dropping the future ends the wait.
    pub(crate) async fn wait(
        &self,
        stub: Stub,
        request: AwaitRequest,
        limit: Duration,
    ) -> Result<AwaitResponse, Status> {
        if !self.is_unary_only.load(Ordering::Relaxed) {
            match self.submit(request.clone()).await {
                Err(status) if status.code() == Code::Unimplemented => {}
                answer => return answer,
            }
        }
        let answer = call(stub, request, limit).await;
        // After a failure, the replica may come back with another release.
        self.is_unary_only.store(answer.is_ok(), Ordering::Relaxed);
        answer
    }

    async fn submit(&self, request: AwaitRequest) -> Result<AwaitResponse, Status> {
        let gone = || Status::unavailable("the client is shutting down");
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let wait = NumberedAwait { number, request: Some(request) };
        self.jobs.send(Job::Begin(wait, reply)).map_err(|_| gone())?;
        let mut end = EndOnDrop { jobs: &self.jobs, number: Some(number) };
        let answer = answer.await;
        end.number = None;
        answer.unwrap_or_else(|_| Err(gone()))
    }
}

/// Waits by a call of its own.
pub(crate) async fn call(mut stub: Stub, request: AwaitRequest, limit: Duration) -> Result<AwaitResponse, Status> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(limit);
    // The method's name is a keyword, so the generator renamed it.
    stub.r#await(request).await.map(tonic::Response::into_inner)
}

struct EndOnDrop<'a> {
    jobs: &'a mpsc::UnboundedSender<Job>,
    number: Option<u64>,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // Fails only when the client shuts down.
            let _ = self.jobs.send(Job::End(number));
        }
    }
}

async fn run(mut stub: Stub, mut queue: mpsc::UnboundedReceiver<Job>) {
    let mut jobs = Vec::new();
    while queue.recv_many(&mut jobs, JOBS_MAX).await > 0 {
        let mut waiting = Waiting::default();
        let Some(first) = waiting.message(&mut jobs) else { continue };
        let status = waiting.serve(&mut stub, first, &mut queue).await;
        tracing::debug!(%status, waits = waiting.0.len(), "a stream of waits ended");
        // A caller may have gone; ignore the send error.
        waiting.0.into_values().for_each(|reply| drop(reply.send(Err(status.clone()))));
    }
}

/// The waits of a stream, by their number.
#[derive(Default)]
struct Waiting(HashMap<u64, Reply>);

impl Waiting {
    /// Serves waits until the stream fails or the client is dropped; returns the reason.
    async fn serve(
        &mut self,
        stub: &mut Stub,
        first: AwaitsRequest,
        queue: &mut mpsc::UnboundedReceiver<Job>,
    ) -> Status {
        // Its bound is that of the callers. A bounded one could stop both sides, each before the other's messages.
        let (sender, requests) = mpsc::unbounded_channel();
        let _ = sender.send(first);
        let mut answers = match stub.awaits(UnboundedReceiverStream::new(requests)).await {
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
    fn message(&mut self, jobs: &mut Vec<Job>) -> Option<AwaitsRequest> {
        let mut message = AwaitsRequest::default();
        for job in jobs.drain(..) {
            match job {
                Job::Begin(_, reply) if reply.is_closed() => {}
                Job::Begin(wait, reply) => {
                    self.0.insert(wait.number, reply);
                    message.begin.push(wait);
                }
                Job::End(number) if self.0.remove(&number).is_some() => message.end.push(number),
                Job::End(_) => {}
            }
        }
        (!message.begin.is_empty() || !message.end.is_empty()).then_some(message)
    }

    fn distribute(&mut self, answered: AwaitsResponse) {
        for answer in answered.answers {
            // A wait that has just been ended may still be answered.
            if let Some(reply) = self.0.remove(&answer.number) {
                let _ = reply.send(Ok(answer.answer.unwrap_or_default()));
            }
        }
    }
}

async fn next(answers: &mut Streaming<AwaitsResponse>) -> Result<AwaitsResponse, Status> {
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
    use tonic::{Request, Response, service::interceptor::InterceptedService};

    use super::*;
    use crate::proto::{self, NumberedAnswer, index_server};

    type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
    type Called<T> = Result<Response<T>, Status>;

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
        async fn start(&self) -> (AwaitStream, Stub) {
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
            (AwaitStream::new(stub.clone()), stub)
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
            assert_eq!(waits.wait(stub.clone(), wait_of(0), LIMIT).await.unwrap(), answered(number), "its own answer");
        }
        assert_eq!(other.counts(), (1, 0));
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_ends_on_the_replica() {
        let other = Other::default();
        let (waits, stub) = other.start().await;
        waits.wait(stub.clone(), wait_of(0), LIMIT).await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(20), waits.wait(stub.clone(), wait_of(LATE), LIMIT));
        assert!(late.await.is_err());
        // Messages come in order, so the end has come before this is answered.
        waits.wait(stub, wait_of(0), LIMIT).await.unwrap();
        assert_eq!((other.ended.load(Ordering::SeqCst), other.counts()), (1, (1, 0)));
    }

    #[tokio::test]
    async fn the_waits_of_a_stream_fail_with_it_and_the_next_opens_another() {
        let other = Other::default();
        let (waits, stub) = other.start().await;
        let (late, end) =
            tokio::join!(waits.wait(stub.clone(), wait_of(LATE), LIMIT), waits.wait(stub.clone(), wait_of(END), LIMIT));
        assert_eq!([late, end].map(|failed| failed.unwrap_err().code()), [Code::Unavailable; 2]);
        waits.wait(stub, wait_of(0), LIMIT).await.unwrap();
        assert_eq!(other.counts(), (2, 0));
    }

    #[tokio::test]
    async fn an_older_replica_is_called() {
        let other = Other { is_old: true, ..Other::default() };
        let (waits, stub) = other.start().await;
        for _ in 0..2 {
            waits.wait(stub.clone(), wait_of(0), LIMIT).await.unwrap();
        }
        assert_eq!(other.counts(), (0, 2));
    }

    fn begin(number: u64) -> (Job, oneshot::Receiver<Result<AwaitResponse, Status>>) {
        let (reply, answer) = oneshot::channel();
        (Job::Begin(NumberedAwait { number, request: None }, reply), answer)
    }

    #[test]
    fn a_message_tells_what_began_and_ended() {
        let mut waiting = Waiting::default();
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
