//! Natural batching of lookups to one replica: one RPC is under way at a time, and whatever arrives meanwhile goes
//! together in the next. No timer: the first lookup on an idle lane leaves at once.

use std::{sync::Arc, time::Duration};

use mantle_types::{Epoch, Error, ErrorCode, Result};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::Channel;

use crate::{
    RESOLVE_QUERIES_MAX,
    convert::check_outcome,
    model::{Query, Resolution},
    proto::{ResolveRequest, ResolveResponse, index_client::IndexClient as Stub},
};

/// What a replica said to one batch, and the epoch it said it under.
pub(crate) struct Answer {
    pub(crate) epoch: Option<Epoch>,
    pub(crate) result: Result<Vec<Resolution>>,
}

impl Answer {
    pub(crate) fn failure(error: Error) -> Self {
        Self { epoch: None, result: Err(error) }
    }
}

struct Job {
    epoch: Epoch,
    queries: Arc<[Query]>,
    limit: Duration,
    reply: oneshot::Sender<Answer>,
}

pub(crate) struct Lane {
    jobs: mpsc::UnboundedSender<Job>,
}

impl Lane {
    pub(crate) fn new(stub: Stub<Channel>) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(stub, queue));
        Self { jobs }
    }

    /// Answers when the replica has; the caller limits the wait, a job whose caller left is not sent.
    pub(crate) async fn submit(&self, epoch: Epoch, queries: Arc<[Query]>, limit: Duration) -> Answer {
        let (reply, answer) = oneshot::channel();
        let gone = || Answer::failure(Error::new(ErrorCode::IndexUnavailable, "the client is shutting down"));
        if self.jobs.send(Job { epoch, queries, limit, reply }).is_err() {
            return gone();
        }
        answer.await.unwrap_or_else(|_| gone())
    }
}

async fn run(mut stub: Stub<Channel>, mut queue: mpsc::UnboundedReceiver<Job>) {
    let mut held: Option<Job> = None;
    loop {
        let first = match held.take() {
            Some(job) => job,
            None => match queue.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let mut batch = Batch::new(first);
        while let Ok(job) = queue.try_recv() {
            if let Some(refused) = batch.add(job) {
                held = Some(refused);
                break;
            }
        }
        batch.send(&mut stub).await;
    }
}

/// Jobs of one epoch, at most [`RESOLVE_QUERIES_MAX`] queries.
struct Batch {
    epoch: Epoch,
    queries: usize,
    limit: Duration,
    jobs: Vec<Job>,
}

impl Batch {
    fn new(first: Job) -> Self {
        Self { epoch: first.epoch, queries: first.queries.len(), limit: first.limit, jobs: vec![first] }
    }

    /// Gives a job back that does not fit.
    fn add(&mut self, job: Job) -> Option<Job> {
        if job.reply.is_closed() {
            return None;
        }
        if job.epoch != self.epoch || self.queries + job.queries.len() > RESOLVE_QUERIES_MAX {
            return Some(job);
        }
        self.queries += job.queries.len();
        self.limit = self.limit.max(job.limit);
        self.jobs.push(job);
        None
    }

    async fn send(mut self, stub: &mut Stub<Channel>) {
        self.jobs.retain(|job| !job.reply.is_closed());
        if self.jobs.is_empty() {
            return;
        }
        let queries = self.jobs.iter().flat_map(|job| job.queries.iter().map(Into::into)).collect();
        let timeout_ms = u32::try_from(self.limit.as_millis()).unwrap_or(u32::MAX);
        let mut request = tonic::Request::new(ResolveRequest { epoch: self.epoch.0, queries, timeout_ms, lineages: vec![] });
        request.set_timeout(self.limit);
        match tokio::time::timeout(self.limit, stub.resolve(request)).await {
            Ok(Ok(response)) => self.distribute(response.into_inner()),
            Ok(Err(status)) => self.fail(status.message()),
            Err(_) => self.fail("no answer in time"),
        }
    }

    fn distribute(self, response: ResolveResponse) {
        let epoch = Some(Epoch(response.epoch));
        let expected: usize = self.jobs.iter().map(|job| job.queries.len()).sum();
        let mut check = check_outcome(response.outcome.as_ref());
        if check.is_ok() && response.results.len() != expected {
            check = Err(Error::new(ErrorCode::Internal, "an index replica answered too few results"));
        }
        let mut results = response.results.into_iter().map(Resolution::from);
        for job in self.jobs {
            let result = match &check {
                Ok(()) => Ok(results.by_ref().take(job.queries.len()).collect()),
                Err(e) => Err(e.clone()),
            };
            // The caller may have left meanwhile; nobody misses its answer.
            let _ = job.reply.send(Answer { epoch, result });
        }
    }

    fn fail(self, why: &str) {
        for job in self.jobs {
            let _ = job.reply.send(Answer::failure(Error::new(ErrorCode::IndexUnavailable, why)));
        }
    }
}
