//! Natural batching of lookups to one replica, over one stream: at most [`IN_FLIGHT_MAX`] batches are under way at a time,
//! and whatever arrives meanwhile goes together in the next. No timer: the first lookup on an idle lane leaves at once.
//! Two, so that this side fills a batch while the replica answers another.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mantle_types::{Epoch, Error, ErrorCode, Result};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{
    Stub, answer, batch,
    convert::check_outcome,
    model::{Ask, Resolutions},
    proto::{ResolveRequest, ResolveResponse},
};

/// Queries of different callers that travel together; what is more goes in the next. Without a bound all callers of a busy
/// client end up in one batch, whose answer wakes them all: both sides then take turns and never work at once (measured:
/// the bench's 256 callers, 220,000 lookups a second without it, 260,000–360,000 with it).
const BATCH_QUERIES: usize = 128;
/// Batches under way at once.
const IN_FLIGHT_MAX: usize = 2;

/// What a replica said to one batch, and the epoch it said it under.
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
    ask: Arc<Ask>,
    limit: Duration,
    reply: oneshot::Sender<Answer>,
}

pub(crate) struct LookupStream {
    jobs: mpsc::UnboundedSender<Job>,
}

impl LookupStream {
    /// Of a group's lookups.
    pub(crate) fn new(stub: Stub, group: u32) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(stub, group, queue));
        Self { jobs }
    }

    /// Answers when the replica has, or when it is late: a batch by the time limits of its own jobs, and with it whatever
    /// waits behind it. (No timer a lookup: that costs as much as the lookup.) A job whose caller left is not sent.
    pub(crate) async fn submit(&self, ask: Arc<Ask>, limit: Duration) -> Answer {
        let (reply, answer) = oneshot::channel();
        let gone = || Answer::failure(Error::new(ErrorCode::IndexUnavailable, "the client is shutting down"));
        if self.jobs.send(Job { ask, limit, reply }).is_err() {
            return gone();
        }
        answer.await.unwrap_or_else(|_| gone())
    }
}

/// The lookups of one replica. A stream that fails takes those under way and in the queue with it; the next opens another.
async fn run(mut stub: Stub, group: u32, mut queue: mpsc::UnboundedReceiver<Job>) {
    let mut number = 0;
    while let Some(first) = queue.recv().await {
        let mut stream = OpenStream { group, queue: &mut queue, held: Some(first), under_way: VecDeque::new(), number };
        let why = stream.serve(&mut stub).await;
        number = stream.number;
        stream.fail(&why);
    }
}

/// One stream to the replica.
struct OpenStream<'a> {
    group: u32,
    queue: &'a mut mpsc::UnboundedReceiver<Job>,
    /// The job that did not fit into the last batch, or that the stream was opened for.
    held: Option<Job>,
    under_way: VecDeque<Batch>,
    number: u64,
}

impl OpenStream<'_> {
    /// Serves jobs until the stream fails, or the client is gone; why.
    async fn serve(&mut self, stub: &mut Stub) -> String {
        let (sender, requests) = mpsc::channel(IN_FLIGHT_MAX);
        // The first batch goes with the call: a replica may answer the call only after it read something.
        if let Err(gone) = self.send(&sender) {
            return gone;
        }
        let Some(deadline) = self.deadline() else { return "nobody waits".into() };
        let call = timeout_at(deadline, stub.resolve(ReceiverStream::new(requests))).await;
        let mut answers = match call {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return status.message().to_owned(),
            Err(_) => return "no answer in time".into(),
        };
        loop {
            let is_free = self.under_way.len() < IN_FLIGHT_MAX;
            tokio::select! {
                answer = next(&mut answers, self.deadline()) => match answer {
                    Ok(answer) => {
                        if let Err(why) = self.distribute(answer) {
                            return why;
                        }
                    }
                    Err(why) => return why,
                },
                job = self.queue.recv(), if is_free && self.held.is_none() => match job {
                    Some(job) => self.held = Some(job),
                    None => return "the client is shutting down".into(),
                },
            }
            if self.under_way.len() < IN_FLIGHT_MAX
                && let Err(gone) = self.send(&sender)
            {
                return gone;
            }
        }
    }

    /// When the oldest batch under way is late.
    fn deadline(&self) -> Option<Instant> {
        self.under_way.front().map(|batch| batch.deadline)
    }

    /// Sends what waits, if anything does.
    fn send(&mut self, sender: &mpsc::Sender<ResolveRequest>) -> Result<(), String> {
        let Some(mut batch) = self.gather() else { return Ok(()) };
        self.number += 1;
        batch.request.number = self.number;
        let request = std::mem::take(&mut batch.request);
        batch.number = self.number;
        self.under_way.push_back(batch);
        sender.try_send(request).map_err(|_| "the stream is closed".to_owned())
    }

    fn gather(&mut self) -> Option<Batch> {
        let mut batch: Option<Batch> = None;
        while let Some(job) = self.held.take().or_else(|| self.queue.try_recv().ok()) {
            if job.reply.is_closed() {
                continue;
            }
            match &mut batch {
                None => batch = Some(Batch::new(self.group, job)),
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
        match self.under_way.pop_front() {
            Some(batch) if batch.number == response.number => {
                batch.distribute(&response);
                Ok(())
            }
            batch => {
                self.under_way.extend(batch);
                Err("an index replica answered what was not asked".into())
            }
        }
    }

    /// Tells everybody, who waits in the queue too: a stream that is late has kept them waiting.
    fn fail(&mut self, why: &str) {
        let queued = std::iter::from_fn(|| self.queue.try_recv().ok());
        for job in self.under_way.drain(..).flat_map(|batch| batch.jobs).chain(self.held.take()).chain(queued) {
            let _ = job.reply.send(Answer::failure(Error::new(ErrorCode::IndexUnavailable, why)));
        }
    }
}

/// The next answer, if it comes in time; without a deadline, for ever.
async fn next(answers: &mut Streaming<ResolveResponse>, deadline: Option<Instant>) -> Result<ResolveResponse, String> {
    let message = answers.message();
    let answer = match deadline {
        Some(deadline) => timeout_at(deadline, message).await.map_err(|_| "no answer in time".to_owned())?,
        None => message.await,
    };
    match answer {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err("the replica ended the stream".into()),
        Err(status) => Err(status.message().to_owned()),
    }
}

/// Jobs of one basis: one, of at most [`RESOLVE_QUERIES_MAX`](crate::RESOLVE_QUERIES_MAX) queries, or several of at most
/// [`BATCH_QUERIES`].
struct Batch {
    number: u64,
    request: ResolveRequest,
    limit: Duration,
    deadline: Instant,
    jobs: Vec<Job>,
}

impl Batch {
    fn new(group: u32, first: Job) -> Self {
        let mut request = ResolveRequest {
            group,
            reads_rows: true,
            epoch: first.ask.basis.epoch.0,
            lineages: first.ask.basis.lineages.to_vec(),
            ..ResolveRequest::default()
        };
        first.ask.queries.iter().for_each(|query| batch::push(&mut request, query));
        let mut batch =
            Self { number: 0, request, limit: first.limit, deadline: Instant::now() + first.limit, jobs: vec![first] };
        batch.extend_limit(batch.limit);
        batch
    }

    fn extend_limit(&mut self, limit: Duration) {
        self.deadline += limit.saturating_sub(self.limit);
        self.limit = self.limit.max(limit);
        self.request.timeout_ms = u32::try_from(self.limit.as_millis()).unwrap_or(u32::MAX);
    }

    /// Gives a job back that does not fit.
    fn add(&mut self, job: Job) -> Option<Job> {
        let (basis, queries) = (&job.ask.basis, &job.ask.queries);
        if *basis != self.jobs[0].ask.basis || self.request.path_bytes.len() + queries.len() > BATCH_QUERIES {
            return Some(job);
        }
        queries.iter().for_each(|query| batch::push(&mut self.request, query));
        self.extend_limit(job.limit);
        self.jobs.push(job);
        None
    }

    fn distribute(self, response: &ResolveResponse) {
        let epoch = Some(Epoch(response.epoch));
        let expected = self.jobs.iter().map(|job| job.ask.queries.len()).sum();
        let answered = check_outcome(response.outcome.as_ref()).and_then(|()| answer::resolutions(response, expected));
        let (mut resolutions, error) = match answered {
            Ok(resolutions) => (Some(resolutions), None),
            Err(e) => (None, Some(e)),
        };
        for job in self.jobs {
            let own = resolutions.iter_mut().flat_map(|all| all.by_ref().take(job.ask.queries.len()));
            let result = error.clone().map_or_else(|| Ok(own.collect()), Err);
            // The caller may have left meanwhile; nobody misses its answer.
            let _ = job.reply.send(Answer { epoch, result });
        }
    }
}
