//! Lookups to one replica, in batches over one stream. At most [`IN_FLIGHT_MAX`] batches are in flight; lookups that arrive
//! meanwhile share the next one. There is no timer: a lookup on an idle stream leaves at once.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use mantle_types::{Epoch, Error, ErrorCode, GroupId, Result};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{
    Stub, answer, batch,
    convert::{check_outcome, milliseconds},
    model::{Lookup, Resolutions},
    proto::{ResolveRequest, ResolveResponse},
};

/// Highest number of queries of different callers in one batch. Without a bound, all callers of a busy client end up in one
/// batch, and its answer wakes them all: then client and replica never work at the same time (measured with the bench's 256
/// callers: 220,000 lookups/s without the bound, 260,000–360,000 with it).
const BATCH_QUERIES: usize = 128;
/// Batches in flight: two, so that the client fills one while the replica answers the other.
const IN_FLIGHT_MAX: usize = 2;

pub(crate) struct Answer {
    pub(crate) epoch: Option<Epoch>,
    pub(crate) result: Result<Resolutions>,
}

impl Answer {
    pub(crate) fn failure(error: Error) -> Self {
        Self { epoch: None, result: Err(error) }
    }
}

struct Job {
    lookup: Arc<Lookup>,
    limit: Duration,
    reply: oneshot::Sender<Answer>,
}

/// What all lookups of a stream have in common.
#[derive(Clone, Copy)]
pub(crate) struct LookupKind {
    pub(crate) group: GroupId,
    /// Their misses have to be final.
    pub(crate) settles: bool,
}

pub(crate) struct LookupStream {
    jobs: mpsc::UnboundedSender<Job>,
}

impl LookupStream {
    /// A stream of lookups, which opens with the first.
    pub(crate) fn new(stub: Stub, kind: LookupKind) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(stub, kind, queue));
        Self { jobs }
    }

    /// Waits for the replica's answer. A batch that exceeds the time limits of its lookups fails, and with it all that wait behind
    /// it. (There is no timer for each lookup: it would cost as much as the lookup.) A lookup whose caller has gone is not sent.
    pub(crate) async fn submit(&self, lookup: Arc<Lookup>, limit: Duration) -> Answer {
        let (reply, answer) = oneshot::channel();
        let gone = || Answer::failure(Error::new(ErrorCode::IndexUnavailable, "the client is shutting down"));
        if self.jobs.send(Job { lookup, limit, reply }).is_err() {
            return gone();
        }
        answer.await.unwrap_or_else(|_| gone())
    }
}

/// Serves the lookups of one replica. When a stream fails, the lookups in flight and in the queue fail with it, and the next
/// lookup opens another stream.
async fn run(mut stub: Stub, kind: LookupKind, mut queue: mpsc::UnboundedReceiver<Job>) {
    let mut number = 0;
    while let Some(first) = queue.recv().await {
        let mut stream = OpenStream { kind, queue: &mut queue, held: Some(first), in_flight: VecDeque::new(), number };
        let Err(why) = stream.serve(&mut stub).await;
        number = stream.number;
        stream.fail(&why);
    }
}

struct OpenStream<'a> {
    kind: LookupKind,
    queue: &'a mut mpsc::UnboundedReceiver<Job>,
    /// The job that did not fit into the last batch, or for which the stream was opened.
    held: Option<Job>,
    in_flight: VecDeque<Batch>,
    number: u64,
}

impl OpenStream<'_> {
    /// Serves jobs until the stream fails or the client is dropped. Returns only with the reason.
    async fn serve(&mut self, stub: &mut Stub) -> Result<Infallible, String> {
        let (sender, requests) = mpsc::channel(IN_FLIGHT_MAX);
        // The first batch goes with the call: a replica may answer the call only after it read something.
        self.send(&sender)?;
        let deadline = self.deadline().ok_or("no lookup waits")?;
        let call = timeout_at(deadline, stub.resolve(ReceiverStream::new(requests))).await;
        let call = call.map_err(|_| "no answer in time")?;
        let mut answers = call.map_err(|status| status.message().to_owned())?.into_inner();
        loop {
            let is_free = self.in_flight.len() < IN_FLIGHT_MAX && self.held.is_none();
            tokio::select! {
                answer = next(&mut answers, self.deadline()) => self.distribute(answer?)?,
                job = self.queue.recv(), if is_free => self.held = Some(job.ok_or("the client is shutting down")?),
            }
            if self.in_flight.len() < IN_FLIGHT_MAX {
                self.send(&sender)?;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.in_flight.front().map(|batch| batch.deadline)
    }

    fn send(&mut self, sender: &mpsc::Sender<ResolveRequest>) -> Result<(), String> {
        let Some(mut batch) = self.gather() else { return Ok(()) };
        self.number += 1;
        batch.request.number = self.number;
        let request = std::mem::take(&mut batch.request);
        batch.number = self.number;
        self.in_flight.push_back(batch);
        sender.try_send(request).map_err(|_| "the stream is closed".to_owned())
    }

    fn gather(&mut self) -> Option<Batch> {
        let mut batch: Option<Batch> = None;
        while let Some(job) = self.held.take().or_else(|| self.queue.try_recv().ok()) {
            if job.reply.is_closed() {
                continue;
            }
            match &mut batch {
                None => batch = Some(Batch::new(self.kind, job)),
                Some(batch) => {
                    if let Some(refused) = batch.add(job) {
                        self.held = Some(refused);
                        break;
                    }
                }
            }
        }
        batch
    }

    fn distribute(&mut self, response: ResolveResponse) -> Result<(), String> {
        match self.in_flight.pop_front() {
            Some(batch) if batch.number == response.number => {
                batch.distribute(&response);
                Ok(())
            }
            batch => {
                self.in_flight.extend(batch);
                Err("an index replica answered another batch".into())
            }
        }
    }

    /// Fails all jobs, also those in the queue, which have waited for the failed stream.
    fn fail(&mut self, why: &str) {
        let queued = std::iter::from_fn(|| self.queue.try_recv().ok());
        for job in self.in_flight.drain(..).flat_map(|batch| batch.jobs).chain(self.held.take()).chain(queued) {
            let _ = job.reply.send(Answer::failure(Error::new(ErrorCode::IndexUnavailable, why)));
        }
    }
}

async fn next(answers: &mut Streaming<ResolveResponse>, deadline: Option<Instant>) -> Result<ResolveResponse, String> {
    let message = answers.message();
    let answer = match deadline {
        Some(deadline) => timeout_at(deadline, message).await.map_err(|_| "no answer in time".to_owned())?,
        None => message.await,
    };
    answer.map_err(|status| status.message().to_owned())?.ok_or_else(|| "the replica ended the stream".to_owned())
}

/// Jobs with the same context: one of at most [`RESOLVE_QUERIES_MAX`](crate::RESOLVE_QUERIES_MAX) queries, or several with together
/// at most [`BATCH_QUERIES`].
struct Batch {
    number: u64,
    request: ResolveRequest,
    limit: Duration,
    deadline: Instant,
    jobs: Vec<Job>,
}

impl Batch {
    fn new(kind: LookupKind, first: Job) -> Self {
        let mut request = ResolveRequest {
            group: kind.group.0,
            settles: kind.settles,
            reads_rows: true,
            epoch: first.lookup.context.epoch.0,
            lineages: first.lookup.context.lineages.to_vec(),
            ..ResolveRequest::default()
        };
        first.lookup.queries.iter().for_each(|query| batch::push(&mut request, query));
        let mut batch =
            Self { number: 0, request, limit: first.limit, deadline: Instant::now() + first.limit, jobs: vec![first] };
        batch.extend_limit(batch.limit);
        batch
    }

    fn extend_limit(&mut self, limit: Duration) {
        self.deadline += limit.saturating_sub(self.limit);
        self.limit = self.limit.max(limit);
        self.request.timeout_ms = milliseconds(self.limit);
    }

    /// Adds a job, or returns it if it does not fit.
    fn add(&mut self, job: Job) -> Option<Job> {
        let (context, queries) = (&job.lookup.context, &job.lookup.queries);
        if *context != self.jobs[0].lookup.context || self.request.path_bytes.len() + queries.len() > BATCH_QUERIES {
            return Some(job);
        }
        queries.iter().for_each(|query| batch::push(&mut self.request, query));
        self.extend_limit(job.limit);
        self.jobs.push(job);
        None
    }

    fn distribute(self, response: &ResolveResponse) {
        let epoch = Some(Epoch(response.epoch));
        let expected = self.jobs.iter().map(|job| job.lookup.queries.len()).sum();
        let answered = check_outcome(response.outcome.as_ref()).and_then(|()| answer::resolutions(response, expected));
        let (mut resolutions, error) = match answered {
            Ok(resolutions) => (Some(resolutions), None),
            Err(e) => (None, Some(e)),
        };
        for job in self.jobs {
            let own = resolutions.iter_mut().flat_map(|all| all.by_ref().take(job.lookup.queries.len()));
            let result = error.clone().map_or_else(|| Ok(own.collect()), Err);
            // The caller may have gone; ignore the send error.
            let _ = job.reply.send(Answer { epoch, result });
        }
    }
}
