//! Read indexes for linearizable lookups, batched naturally (P39).
//!
//! Invariant: a read index serves only those who asked before it was asked for (P27): a batch is closed when its
//! request leaves; whoever comes later waits for the next. The leader reads by its lease, or confirms it with a quorum; any
//! other replica asks the leader.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mantle_types::{Error, ErrorCode, Result};
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

/// The leader is given this long; whoever waits longer asks again.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// What was asked for since this incarnation of the replica started.
#[derive(Debug, Default)]
pub struct ReadCounters {
    /// Read indexes: of this replica's own leadership, or of the leader.
    pub batches: AtomicU64,
    /// Batches of lookups that waited for them: several for one, where they arrived while another was asked for.
    pub requests: AtomicU64,
    /// Paths looked up.
    pub paths: AtomicU64,
}

/// The gate; clones share it.
#[derive(Clone)]
pub struct ReadIndexBatcher {
    raft: Raft,
    counters: Arc<ReadCounters>,
    queue: mpsc::UnboundedSender<Waiting>,
}

/// Who waits for a read index.
type Waiting = oneshot::Sender<Result<u64>>;

impl ReadIndexBatcher {
    /// Starts the gate's task; it ends with the last handle.
    pub fn spawn(raft: Raft, peers: Peers, group: u64, cluster_id: String) -> Self {
        let (queue, requests) = mpsc::unbounded_channel();
        let counters = Arc::<ReadCounters>::default();
        let asker = Asker { raft: raft.clone(), counters: counters.clone(), peers, group, cluster_id, leader: None };
        tokio::spawn(answer_batches(requests, asker));
        Self { raft, counters, queue }
    }

    /// What was asked for.
    pub fn counters(&self) -> &ReadCounters {
        &self.counters
    }

    /// A log index such that whoever reads after it is applied sees every change that was committed before this call.
    pub async fn read_index(&self) -> Result<u64> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if self.raft.is_leader() {
            self.counters.batches.fetch_add(1, Ordering::Relaxed);
            // Nobody else is asked: a turn in the queue would only take time.
            return local_read_index(&self.raft).await;
        }
        let (reply, answer) = oneshot::channel();
        let stopping = || Error::new(ErrorCode::IndexUnavailable, "this replica is stopping");
        self.queue.send(reply).map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

/// The read index by this replica's own leadership: by lease if that holds, else confirmed by a quorum.
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

/// Who asks for read indexes.
trait Ask: Send {
    /// One that holds whatever was committed before the call.
    fn ask(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

/// Answers whoever waits, one question for all who had come before it was asked.
async fn answer_batches(mut requests: mpsc::UnboundedReceiver<Waiting>, mut asker: impl Ask) {
    let mut batch = Vec::new();
    while requests.recv_many(&mut batch, usize::MAX).await > 0 {
        let result = asker.ask().await;
        for reply in batch.drain(..) {
            // Who no longer waits misses nothing.
            let _ = reply.send(result.clone());
        }
    }
}

struct Asker {
    raft: Raft,
    counters: Arc<ReadCounters>,
    peers: Peers,
    group: u64,
    cluster_id: String,
    /// The leader that was asked last, by its address.
    leader: Option<(String, RequestStream<ReadIndexRequest>)>,
}

impl Ask for Asker {
    async fn ask(&mut self) -> Result<u64> {
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
        let exchange = match known {
            Some((_, exchange)) => exchange,
            None => RequestStream::new(self.peers.client(&address)?),
        };
        let (_, exchange) = self.leader.insert((address.clone(), exchange));
        let request = ReadIndexRequest { group: self.group as u32, cluster_id: self.cluster_id.clone() };
        match timeout(ASK_TIMEOUT, exchange.ask(request)).await {
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

    /// The test answers.
    impl Ask for mpsc::UnboundedSender<Waiting> {
        async fn ask(&mut self) -> Result<u64> {
            let (reply, answer) = oneshot::channel();
            self.send(reply).unwrap();
            answer.await.unwrap()
        }
    }

    /// P27. What commits while a question is under way may not be in its answer.
    #[tokio::test]
    async fn who_comes_while_a_question_is_under_way_waits_for_the_next() {
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
            assert!(late.try_recv().is_err(), "it was answered by what was asked before it came");
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
