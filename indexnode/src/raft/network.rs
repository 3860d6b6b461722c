//! openraft's network: its messages over the peer service.
//!
//! Invariant: every message names the cluster and node that it is for. So a replica that uses the address of a dead one
//! is never mistaken for it.

use std::{
    fs::File,
    future::Future,
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, future::BoxFuture, stream::BoxStream};
use mantle_types::GroupId;
use openraft::{
    BasicNode, RaftNetworkFactory, RaftNetworkV2,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::mpsc,
    time::{error::Elapsed, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    NodeId, TypeConfig,
    commit_notices::{GivenReadIndexes, without_idle_commits},
    disk_executor::DiskExecutor,
    doubt::Doubt,
    log::LogStore,
    peers::{PeerChannel, Peers},
    promises::{Promise, Promises},
    request_stream::RequestStream,
    snapshot::SnapshotFile,
    terms::TermCheck,
    types::{LogId, Snapshot, Vote},
};
use crate::proto::peer::{Destination, RaftMessage, SnapshotPart, peer_client::PeerClient};

/// Longer than a heartbeat's, because an append may carry large entries.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
const VOTE_TIMEOUT: Duration = Duration::from_secs(2);
const SNAPSHOT_PART_BYTES: usize = 1 << 20;

/// Creates the connections that openraft uses: one for each peer and purpose, so that a heartbeat never waits behind megabytes
/// of entries or snapshots.
pub struct Network {
    pub group: GroupId,
    pub cluster_id: String,
    pub peers: Peers,
    pub disk: DiskExecutor,
    pub known: Known,
    pub given: Arc<GivenReadIndexes>,
}

/// What the messages tell to others and learn from them (P48).
#[derive(Clone)]
pub struct Known {
    pub log: LogStore,
    pub promises: Arc<Promises>,
    pub doubt: Arc<Doubt>,
    pub terms: TermCheck,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> PeerNetwork {
        let client = self.peers.new_client(&node.addr).map_err(|e| e.to_string());
        PeerNetwork {
            appends: client.clone().map(RequestStream::new),
            client,
            to: Destination { group: self.group.0, cluster_id: self.cluster_id.clone(), node_id: target },
            disk: self.disk.clone(),
            known: self.known.clone(),
            given: self.given.clone(),
        }
    }
}

pub struct PeerNetwork {
    client: Result<PeerClient<PeerChannel>, String>,
    appends: Result<RequestStream<RaftMessage>, String>,
    to: Destination,
    disk: DiskExecutor,
    known: Known,
    given: Arc<GivenReadIndexes>,
}

type Appended = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;
type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

impl PeerNetwork {
    fn client(&self) -> RpcResult<PeerClient<PeerChannel>> {
        self.client.clone().map_err(unreachable)
    }

    fn message<Q: Serialize>(&self, request: &Q) -> RpcResult<RaftMessage> {
        let body = encode(request).map_err(network_error)?;
        let promises = self.known.promises.to_messages(self.known.log.promise());
        Ok(RaftMessage { to: Some(self.to.clone()), body, promises, ..RaftMessage::default() })
    }

    /// Checks a vote in an answer. openraft would take a higher term from it, as from a message.
    fn believe(&self, vote: &Vote) -> RpcResult<()> {
        self.known.terms.check(vote.leader_id.term).map_err(unreachable)
    }

    /// Notes what the addressee has promised with its answer.
    fn note_promise(&self, vote: &Vote, log: Option<LogId>) {
        let promise = Promise::of_vote(Some(vote), log);
        // An answer may name any entry.
        if self.known.terms.check_promised(promise.highest_term()).is_ok() {
            self.known.promises.note(self.to.node_id, promise);
        }
    }

    async fn call<Q, R, Fut>(
        &self,
        request: &Q,
        limit: Duration,
        send: impl FnOnce(PeerClient<PeerChannel>, RaftMessage) -> Fut,
    ) -> RpcResult<(R, bool)>
    where
        Q: Serialize,
        R: DeserializeOwned,
        Fut: Future<Output = Result<tonic::Response<RaftMessage>, tonic::Status>>,
    {
        let message = self.message(request)?;
        let answered = timeout(limit, send(self.client()?, message)).await;
        answer_of(answered.map(|answer| answer.map(tonic::Response::into_inner)))
    }
}

/// The decoded answer, and whether the other replica is unconfirmed.
fn answer_of<R: DeserializeOwned>(
    answered: Result<Result<RaftMessage, tonic::Status>, Elapsed>,
) -> RpcResult<(R, bool)> {
    match answered {
        Ok(Ok(answer)) => Ok((decode(&answer.body).map_err(network_error)?, answer.is_unconfirmed)),
        Ok(Err(status)) => Err(unreachable(status.message())),
        Err(_) => Err(unreachable("no answer in time")),
    }
}

/// Encodes a message of openraft.
pub fn encode<T: Serialize>(value: &T) -> io::Result<Bytes> {
    postcard::to_stdvec(value).map(Bytes::from).map_err(io::Error::other)
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}

fn network_error(error: io::Error) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(&error))
}

fn unreachable(why: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

impl RaftNetworkV2<TypeConfig> for PeerNetwork {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        let limit = if rpc.entries.is_empty() { option.hard_ttl().max(VOTE_TIMEOUT) } else { APPEND_TIMEOUT };
        let message = self.message(&rpc)?;
        let appends = self.appends.as_mut().map_err(unreachable)?;
        let (answer, _) = answer_of(timeout(limit, appends.send(message)).await)?;
        match &answer {
            AppendEntriesResponse::Success => {
                self.note_promise(&rpc.vote, rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id));
            }
            AppendEntriesResponse::PartialSuccess(last) => self.note_promise(&rpc.vote, *last),
            AppendEntriesResponse::HigherVote(vote) => self.believe(vote)?,
            AppendEntriesResponse::Conflict => {}
        }
        Ok(answer)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<BoxStream<'s, Appended>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        let requests = without_idle_commits(input, self.given.clone());
        stream_append_sequential(self, requests, option)
    }

    async fn vote(&mut self, rpc: VoteRequest<TypeConfig>, _option: RPCOption) -> RpcResult<VoteResponse<TypeConfig>> {
        let call = self.call(&rpc, VOTE_TIMEOUT, |mut client, message| async move { client.vote(message).await });
        let (answer, is_unconfirmed): (VoteResponse<TypeConfig>, _) = call.await?;
        self.believe(&answer.vote)?;
        if answer.vote_granted {
            self.note_promise(&rpc.vote, None);
            if is_unconfirmed {
                // Before openraft counts the vote.
                self.known.doubt.note_doubtful_vote(rpc.vote.leader_id.term);
            }
        }
        Ok(answer)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let call = self.call(&rpc, VOTE_TIMEOUT, |mut client, message| async move { client.pre_vote(message).await });
        let (answer, _): (VoteResponse<TypeConfig>, _) = call.await?;
        self.believe(&answer.vote)?;
        Ok(answer)
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        let call =
            self.call(&rpc, VOTE_TIMEOUT, |mut client, message| async move { client.transfer_leader(message).await });
        call.await.map(|(answer, _)| answer)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let head =
            SnapshotPart { to: Some(self.to.clone()), vote: encode(&vote).map_err(network_error)?, data: Bytes::new() };
        let file = snapshot.snapshot.file.try_clone().map_err(network_error)?;
        let (parts, stream) = mpsc::channel(4);
        let reader = tokio::spawn(send_parts(head, file, parts, self.disk.clone()));
        let mut client = self.client()?;
        tokio::select! {
            closed = cancel => {
                reader.abort();
                Err(StreamingError::Closed(closed))
            }
            answer = client.install_snapshot(ReceiverStream::new(stream)) => {
                let answer = answer.map_err(|status| unreachable(status.message()))?;
                let answer: SnapshotResponse<TypeConfig> = decode(&answer.into_inner().body).map_err(network_error)?;
                self.believe(&answer.vote)?;
                Ok(answer)
            }
        }
    }
}

async fn send_parts(head: SnapshotPart, mut file: File, parts: mpsc::Sender<SnapshotPart>, disk: DiskExecutor) {
    if parts.send(head).await.is_err() {
        return;
    }
    loop {
        let part = disk.run(move || {
            let mut data = vec![0; SNAPSHOT_PART_BYTES];
            let read = file.read(&mut data)?;
            data.truncate(read);
            Ok((file, data))
        });
        let data;
        (file, data) = match part.await {
            Ok((_, data)) if data.is_empty() => return,
            Ok(part) => part,
            Err(e) => {
                // The receiver's checksum finds the file too short, and the leader tries again.
                tracing::warn!(error = %e, "cannot read the snapshot to send");
                return;
            }
        };
        if parts.send(SnapshotPart { to: None, vote: Bytes::new(), data: data.into() }).await.is_err() {
            return;
        }
    }
}
