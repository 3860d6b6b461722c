//! Raft's ReadIndex for linearizable lookups, in batches without a timer (P39).
//!
//! Invariant: a read index serves only the callers that waited before it was requested (P27). A batch is closed when its
//! request leaves; later callers wait for the next. The leader answers by its lease, or confirms its leadership with a quorum;
//! any other replica asks the leader, which compares its state with the replica's (P49). A leader in doubt gives none (P48).
//! Lookups whose misses have to be final wait for more (P58): a queue of their own lets the others go ahead.

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
    time::{sleep, timeout},
};

use super::{
    Raft,
    doubt::Doubt,
    fault::{Fault, FaultCell, FaultKind},
    peers::Peers,
    request_stream::RequestStream,
    state::IndexState,
};
use crate::{
    failpoints::{self, Failpoint},
    proto::peer::{Agreement, ReadIndexRequest, ReadIndexResponse},
};

/// Time limit of a request to the leader; callers with a longer limit repeat it.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
const COMPARE_RETRY: Duration = Duration::from_millis(1);

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
    doubt: Arc<Doubt>,
    pub counters: Arc<ReadCounters>,
    queue: mpsc::UnboundedSender<Waiting>,
    settling: mpsc::UnboundedSender<Waiting>,
}

type Waiting = oneshot::Sender<Result<ReadIndex>>;

/// What a lookup has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIndex {
    /// A read after this entry is applied sees every change that was committed in the log before the call.
    pub log_index: u64,
    /// It also sees everything that PostgreSQL showed before the call.
    pub is_settled: bool,
}

impl ReadIndex {
    fn of_log(log_index: u64) -> Self {
        Self { log_index, is_settled: false }
    }
}

impl ReadIndexBatcher {
    /// Starts the batching task, which ends with the last handle.
    pub fn spawn(raft: Raft, peers: Peers, of: (GroupId, String), knows: Knows) -> Self {
        let counters = Arc::<ReadCounters>::default();
        let spawn = |settles| {
            let (queue, requests) = mpsc::unbounded_channel();
            let (raft, peers, of, knows) = (raft.clone(), peers.clone(), of.clone(), knows.clone());
            let counters = counters.clone();
            let requester = LeaderRequester { raft, counters, peers, of, knows, settles, agreed_term: 0, leader: None };
            tokio::spawn(answer_batches(requests, requester));
            queue
        };
        let (queue, settling) = (spawn(false), spawn(true));
        Self { raft, doubt: knows.doubt, counters, queue, settling }
    }

    /// A log index: a read after it is applied sees every change that was committed before this call.
    pub async fn read_index(&self) -> Result<u64> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if self.raft.is_leader() {
            self.counters.batches.fetch_add(1, Ordering::Relaxed);
            // No RPC is needed, so there is nothing to batch.
            return local_read_index(&self.raft, &self.doubt).await;
        }
        Ok(ask(&self.queue).await?.log_index)
    }

    /// The same, and settled if the leader knows such an entry. Only for a replica that does not lead.
    pub async fn settled_index(&self) -> Result<ReadIndex> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        ask(&self.settling).await
    }
}

async fn ask(queue: &mpsc::UnboundedSender<Waiting>) -> Result<ReadIndex> {
    let (reply, answer) = oneshot::channel();
    queue.send(reply).map_err(|_| unavailable("this replica is stopping"))?;
    answer.await.unwrap_or_else(|_| Err(unavailable("this replica is stopping")))
}

/// What a replica knows of itself when it asks the leader.
#[derive(Clone)]
pub struct Knows {
    pub state: Arc<IndexState>,
    pub doubt: Arc<Doubt>,
    pub fault: Arc<FaultCell>,
}

/// The read index of a leader that is not in doubt.
pub async fn local_read_index(raft: &Raft, doubt: &Doubt) -> Result<u64> {
    let log_index = raft_read_index(raft).await?;
    // After the leadership is confirmed: in which term this replica leads is known then.
    if doubt.covers(raft.server_metrics().borrow_watched().vote.leader_id.term) {
        let why = "the leader is reading from PostgreSQL what its log may lack";
        return Err(Error::new(ErrorCode::IndexUnavailable, why));
    }
    Ok(log_index)
}

/// The read index of a leader, in doubt or not: by its lease if that holds, else confirmed by a quorum.
pub async fn raft_read_index(raft: &Raft) -> Result<u64> {
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
    fn request(&mut self) -> impl Future<Output = Result<ReadIndex>> + Send;
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
    of: (GroupId, String),
    knows: Knows,
    /// It asks for settled read indexes.
    settles: bool,
    /// The last term in which the leader found this replica's state equal to its own.
    agreed_term: u64,
    /// The address of the leader that was asked last, and the stream to it.
    leader: Option<(String, RequestStream<ReadIndexRequest>)>,
}

fn unavailable(why: impl Into<String>) -> Error {
    Error::new(ErrorCode::IndexUnavailable, why)
}

impl Requester for LeaderRequester {
    async fn request(&mut self) -> Result<ReadIndex> {
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        if let Some(fault) = self.knows.fault.get().filter(|_| !failpoints::is_hit(Failpoint::ServeDifferingState)) {
            return Err(unavailable(fault.to_string()));
        }
        if self.raft.is_leader() {
            return local_read_index(&self.raft, &self.knows.doubt).await.map(ReadIndex::of_log);
        }
        timeout(ASK_TIMEOUT, self.ask_until_compared())
            .await
            .unwrap_or_else(|_| Err(unavailable("the leader does not answer, or this replica is far behind it")))
    }
}

impl LeaderRequester {
    /// Asks the leader. Under a new leader, and after a restart, this replica's state has to be compared with the leader's before
    /// it answers; the leader remembers its own for the last entries only.
    async fn ask_until_compared(&mut self) -> Result<ReadIndex> {
        loop {
            let (term, address) = self.leader()?;
            let response = self.ask(&address).await?;
            match response.agreement() {
                Agreement::Same => self.agreed_term = term,
                Agreement::Differs if failpoints::is_hit(Failpoint::ServeDifferingState) => {}
                Agreement::Differs => {
                    let fault = self.knows.fault.raise(Fault::new(FaultKind::StateDiffers, response.difference));
                    return Err(unavailable(fault.to_string()));
                }
                Agreement::Unknown if self.agreed_term != term => {
                    self.knows.state.wait_applied(response.log_index).await;
                    // The leader may still have to apply it.
                    sleep(COMPARE_RETRY).await;
                    continue;
                }
                Agreement::Unknown | Agreement::Unspecified => {}
            }
            return Ok(ReadIndex { log_index: response.log_index, is_settled: response.settled });
        }
    }

    /// Term and address of the leader.
    fn leader(&self) -> Result<(u64, String)> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.current_leader.and_then(|id| metrics.membership_config.get_node(&id));
        let node = node.ok_or_else(|| unavailable("the group has no leader now"))?;
        Ok((metrics.vote.leader_id.term, node.addr.clone()))
    }

    async fn ask(&mut self, address: &str) -> Result<ReadIndexResponse> {
        let known = self.leader.take().filter(|(known, _)| known == address);
        let stream = match known {
            Some((_, stream)) => stream,
            None => RequestStream::new(self.peers.client(address)?),
        };
        let (_, stream) = self.leader.insert((address.to_owned(), stream));
        let (group, cluster_id) = (self.of.0.0, self.of.1.clone());
        let fingerprint = self.knows.state.fingerprints.newest().map(Into::into);
        let settles = self.settles;
        let response = stream.send(ReadIndexRequest { group, cluster_id, fingerprint, settles }).await;
        let response = response.map_err(|status| unavailable(format!("the leader {address}: {}", status.message())))?;
        if !response.is_leader {
            let why = if response.difference.is_empty() { "does not lead the group" } else { &response.difference };
            return Err(unavailable(format!("{address} {why}")));
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// The test answers the requests.
    impl Requester for mpsc::UnboundedSender<Waiting> {
        async fn request(&mut self) -> Result<ReadIndex> {
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
            let of_log = |index| Ok(ReadIndex::of_log(index));
            question.send(of_log(5)).unwrap();
            assert_eq!((first.await.unwrap(), second.await.unwrap()), (of_log(5), of_log(5)));
            assert!(late.try_recv().is_err(), "it was answered by a request that left before it came");
            let question = asked.recv().await.unwrap();
            question.send(of_log(7)).unwrap();
            assert_eq!(late.await.unwrap(), of_log(7));
            assert!(asked.recv().now_or_never().is_none());
        };
        tokio::select! {
            () = test => {}
            () = answer_batches(requests, questions) => unreachable!("the queue is open"),
        }
    }
}
