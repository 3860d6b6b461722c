//! Raft's ReadIndex for linearizable lookups, in batches without a timer (P39).
//!
//! Invariant: a read index serves only the callers that waited before it was requested (P27). A batch is closed when its
//! request leaves; later callers wait for the next. The leader answers by its lease, or confirms its leadership with a quorum;
//! any other replica asks the leader.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mantle_types::{Error, ErrorCode, GroupId, Result};
use openraft::{ReadPolicy, async_runtime::watch::WatchReceiver};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{Raft, peers::Peers, request_stream::RequestStream};
use crate::{
    failpoints::{self, Failpoint},
    proto::peer::ReadIndexRequest,
};

/// Time limit of a request to the leader; callers with a longer limit repeat it.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Counters since this incarnation of the replica started.
#[derive(Debug, Default)]
pub struct ReadCounters {
    /// Read indexes requested, from this replica's own leadership or from the leader.
    pub batches: AtomicU64,
    /// Batches of lookups that waited for a read index; several share one.
    pub requests: AtomicU64,
    pub paths: AtomicU64,
}

pub struct ReadIndexBatcher {
    raft: Raft,
    pub counters: Arc<ReadCounters>,
    queue: mpsc::UnboundedSender<Waiting>,
}

type Waiting = oneshot::Sender<Result<u64>>;

impl ReadIndexBatcher {
    /// Starts the batching task, which ends with the last handle.
    pub fn spawn(raft: Raft, peers: Peers, group: GroupId, cluster_id: String) -> Self {
        let (queue, requests) = mpsc::unbounded_channel();
        let counters = Arc::<ReadCounters>::default();
        let requester =
            LeaderRequester { raft: raft.clone(), counters: counters.clone(), peers, group, cluster_id, leader: None };
        tokio::spawn(answer_batches(requests, requester));
        Self { raft, counters, queue }
    }

    /// A log index: a read after it is applied sees every change that was committed before this call.
    pub async fn read_index(&self) -> Result<u64> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if self.raft.is_leader() {
            self.counters.batches.fetch_add(1, Ordering::Relaxed);
            // No RPC is needed, so there is nothing to batch.
            return local_read_index(&self.raft).await;
        }
        let (reply, answer) = oneshot::channel();
        let stopping = || Error::new(ErrorCode::IndexUnavailable, "this replica is stopping");
        self.queue.send(reply).map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

/// The read index of a leader: by its lease if that holds, else confirmed by a quorum.
pub async fn local_read_index(raft: &Raft) -> Result<u64> {
    if failpoints::is_hit(Failpoint::ReadBeforeFirstEntry) {
        return Ok(raft.metrics().borrow_watched().local_committed.map_or(0, |id| id.index));
    }
    if let Ok(linearizer) = raft.get_read_linearizer(ReadPolicy::LeaseRead).await {
        return Ok(linearizer.read_log_id().index());
    }
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(e) => Err(Error::new(ErrorCode::NotLeader, format!("leadership is not confirmed: {e}"))),
    }
}

trait Requester: Send {
    /// A read index that covers everything that was committed before the call.
    fn request(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

/// Answers all callers that wait when a request leaves by that request.
async fn answer_batches(mut requests: mpsc::UnboundedReceiver<Waiting>, mut requester: impl Requester) {
    let mut batch = Vec::new();
    while requests.recv_many(&mut batch, usize::MAX).await > 0 {
        let result = requester.request().await;
        for reply in batch.drain(..) {
            // The caller may have gone; ignore the send error.
            let _ = reply.send(result.clone());
        }
    }
}

struct LeaderRequester {
    raft: Raft,
    counters: Arc<ReadCounters>,
    peers: Peers,
    group: GroupId,
    cluster_id: String,
    /// The address of the leader that was asked last, and the stream to it.
    leader: Option<(String, RequestStream<ReadIndexRequest>)>,
}

impl Requester for LeaderRequester {
    async fn request(&mut self) -> Result<u64> {
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        if self.raft.is_leader() {
            return local_read_index(&self.raft).await;
        }
        let unavailable = |why: String| Error::new(ErrorCode::IndexUnavailable, why);
        let address = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            let node = metrics.current_leader.and_then(|id| metrics.membership_config.get_node(&id));
            node.map(|node| node.addr.clone())
        };
        let address = address.ok_or_else(|| unavailable("the group has no leader now".into()))?;
        let known = self.leader.take().filter(|(known, _)| *known == address);
        let stream = match known {
            Some((_, stream)) => stream,
            None => RequestStream::new(self.peers.client(&address)?),
        };
        let (_, stream) = self.leader.insert((address.clone(), stream));
        let request = ReadIndexRequest { group: self.group.0, cluster_id: self.cluster_id.clone() };
        match timeout(ASK_TIMEOUT, stream.send(request)).await {
            Ok(Ok(response)) => {
                let not_leading = || unavailable(format!("{address} does not lead the group"));
                response.is_leader.then_some(response.log_index).ok_or_else(not_leading)
            }
            Ok(Err(status)) => Err(unavailable(format!("the leader {address}: {}", status.message()))),
            Err(_) => Err(unavailable(format!("the leader {address} does not answer"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// The test answers the requests.
    impl Requester for mpsc::UnboundedSender<Waiting> {
        async fn request(&mut self) -> Result<u64> {
            let (reply, answer) = oneshot::channel();
            self.send(reply).unwrap();
            answer.await.unwrap()
        }
    }

    /// P27: the answer may lack what commits while its request is in flight.
    #[tokio::test]
    async fn a_caller_during_a_request_waits_for_the_next() {
        let (queue, requests) = mpsc::unbounded_channel();
        let (questions, mut asked) = mpsc::unbounded_channel::<Waiting>();
        let wait = || {
            let (reply, answer) = oneshot::channel();
            queue.send(reply).unwrap();
            answer
        };
        let test = async {
            let (first, second) = (wait(), wait());
            let question = asked.recv().await.unwrap();
            let mut late = wait();
            question.send(Ok(5)).unwrap();
            assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(5), Ok(5)));
            assert!(late.try_recv().is_err(), "it was answered by a request that left before it came");
            let question = asked.recv().await.unwrap();
            question.send(Ok(7)).unwrap();
            assert_eq!(late.await.unwrap(), Ok(7));
            assert!(asked.recv().now_or_never().is_none());
        };
        tokio::select! {
            () = test => {}
            () = answer_batches(requests, questions) => unreachable!("the queue is open"),
        }
    }
}
