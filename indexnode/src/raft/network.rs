//! The network from this replica to the others: openraft's messages over the peer service.
//!
//! Invariant: every message names the cluster and node that it is for, so that a replica which took over a dead one's
//! address is never taken for it. A peer's connections are shared; losses are repaired by the channel. Times are
//! [`Duration`]s.

use std::{
    collections::HashMap,
    fs::File,
    future::Future,
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use mantle_types::{Error, ErrorCode};
use openraft::{
    BasicNode, RaftNetworkFactory, RaftNetworkV2,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
        VoteRequest, VoteResponse,
    },
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::mpsc,
    time::{error::Elapsed, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{body::Body, transport::Endpoint};
use tower::{ServiceExt, util::BoxCloneSyncService};

use super::{
    NodeId, TypeConfig,
    exchange::Exchange,
    offload::Offload,
    snapshot::SnapshotFile,
    types::{Snapshot, Vote},
};
use crate::proto::peer::{Destination, RaftMessage, SnapshotPart, peer_client::PeerClient};

/// Longest message between replicas: a Raft entry is far below.
pub const MESSAGE_BYTES_MAX: usize = 128 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// An append of large entries may take longer than a heartbeat's time.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
const VOTE_TIMEOUT: Duration = Duration::from_secs(2);
const SNAPSHOT_PART_BYTES: usize = 1 << 20;
const WINDOW_BYTES: u32 = 16 << 20;

/// A way to another replica: HTTP requests of gRPC go in, their answers come out.
pub type PeerChannel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, io::Error>;

/// Makes the ways to other replicas.
pub trait Dial: Send + Sync {
    /// A way to an address; it connects when used, and again after a loss.
    fn channel(&self, address: &str) -> Result<PeerChannel, Error>;
}

/// The network itself.
pub struct Tcp;

impl Dial for Tcp {
    fn channel(&self, address: &str) -> Result<PeerChannel, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| {
            Error::new(ErrorCode::InvalidArgument, format!("`{address}` is not a replica's address: {e}"))
        })?;
        let channel = endpoint
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .connect_lazy();
        Ok(BoxCloneSyncService::new(channel.map_err(io::Error::other)))
    }
}

/// Connections to other replicas, by address.
#[derive(Clone)]
pub struct Peers {
    dial: Arc<dyn Dial>,
    clients: Arc<Mutex<HashMap<String, PeerClient<PeerChannel>>>>,
}

impl Peers {
    /// No connections yet.
    pub fn new(dial: Arc<dyn Dial>) -> Self {
        Self { dial, clients: Arc::default() }
    }

    /// The client of an address; it connects when used.
    pub fn client(&self, address: &str) -> Result<PeerClient<PeerChannel>, Error> {
        if let Some(client) = self.clients.lock().get(address) {
            return Ok(client.clone());
        }
        let client = self.new_client(address)?;
        self.clients.lock().insert(address.to_owned(), client.clone());
        Ok(client)
    }

    /// A client with a connection that it shares with nobody.
    fn new_client(&self, address: &str) -> Result<PeerClient<PeerChannel>, Error> {
        let client = PeerClient::new(self.dial.channel(address)?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }
}

/// Makes the networks to single peers. Appends, heartbeats and snapshots get connections of their own, so that a heartbeat
/// never waits behind megabytes.
pub struct Network {
    group: u64,
    cluster_id: String,
    peers: Peers,
    offload: Offload,
}

impl Network {
    /// The network of a member of this cluster.
    pub fn new(group: u64, cluster_id: String, peers: Peers, offload: Offload) -> Self {
        Self { group, cluster_id, peers, offload }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> PeerNetwork {
        let client = self.peers.new_client(&node.addr).map_err(|e| e.to_string());
        PeerNetwork {
            appends: client.clone().map(Exchange::new),
            client,
            to: Destination { group: self.group as u32, cluster_id: self.cluster_id.clone(), node_id: target },
            offload: self.offload.clone(),
        }
    }
}

/// The way to one peer.
pub struct PeerNetwork {
    client: Result<PeerClient<PeerChannel>, String>,
    appends: Result<Exchange<RaftMessage>, String>,
    to: Destination,
    offload: Offload,
}

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

impl PeerNetwork {
    fn client(&self) -> RpcResult<PeerClient<PeerChannel>> {
        self.client.clone().map_err(unreachable)
    }

    fn message<Q: Serialize>(&self, request: &Q) -> RpcResult<RaftMessage> {
        Ok(RaftMessage { to: Some(self.to.clone()), body: encode(request).map_err(network_error)? })
    }

    /// One request and its answer.
    async fn call<Q, R, Fut>(
        &self,
        request: &Q,
        limit: Duration,
        send: impl FnOnce(PeerClient<PeerChannel>, RaftMessage) -> Fut,
    ) -> RpcResult<R>
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

/// What a replica answered in time, if it did.
fn answer_of<R: DeserializeOwned>(answered: Result<Result<RaftMessage, tonic::Status>, Elapsed>) -> RpcResult<R> {
    match answered {
        Ok(Ok(answer)) => decode(&answer.body).map_err(network_error),
        Ok(Err(status)) => Err(rpc_error(&status)),
        Err(_) => Err(unreachable("no answer in time")),
    }
}

/// Encodes a message of openraft.
pub fn encode<T: Serialize>(value: &T) -> io::Result<Bytes> {
    postcard::to_stdvec(value).map(Bytes::from).map_err(io::Error::other)
}

/// Decodes one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}

fn network_error(error: io::Error) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(&error))
}

fn rpc_error(status: &tonic::Status) -> RPCError<TypeConfig> {
    unreachable(status.message())
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
        answer_of(timeout(limit, appends.ask(message)).await)
    }

    async fn vote(&mut self, rpc: VoteRequest<TypeConfig>, _option: RPCOption) -> RpcResult<VoteResponse<TypeConfig>> {
        self.call(&rpc, VOTE_TIMEOUT, |mut client, message| async move { client.vote(message).await }).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.call(&rpc, VOTE_TIMEOUT, |mut client, message| async move { client.pre_vote(message).await }).await
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        self.call(&rpc, VOTE_TIMEOUT, |mut client, message| async move { client.transfer_leader(message).await }).await
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
        let reader = tokio::spawn(send_parts(head, file, parts, self.offload.clone()));
        let mut client = self.client()?;
        tokio::select! {
            closed = cancel => {
                reader.abort();
                Err(StreamingError::Closed(closed))
            }
            answer = client.install_snapshot(ReceiverStream::new(stream)) => {
                let answer = answer.map_err(|status| rpc_error(&status))?;
                Ok(decode(&answer.into_inner().body).map_err(network_error)?)
            }
        }
    }
}

async fn send_parts(head: SnapshotPart, mut file: File, parts: mpsc::Sender<SnapshotPart>, offload: Offload) {
    if parts.send(head).await.is_err() {
        return;
    }
    loop {
        let part = offload.run(move || {
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
                // The receiver finds the file too short by its checksum, and the leader tries again.
                tracing::warn!(error = %e, "cannot read the snapshot to send");
                return;
            }
        };
        if parts.send(SnapshotPart { to: None, vote: Bytes::new(), data: data.into() }).await.is_err() {
            return;
        }
    }
}
