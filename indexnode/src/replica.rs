//! The process: its replicas, one of each group, and each through all its incarnations.
//!
//! Invariant: the services are up from the start, also while the replica is empty or waits for its cluster: a replica that
//! decides for all has to hear from all.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use mantle_index_client::proto::index_server::IndexServer;
use parking_lot::RwLock;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tonic::transport::server::TcpIncoming;
use tracing::{Instrument, Span};

use crate::{
    config::Config,
    groups::Groups,
    membership::{join, settle},
    node::{Node, NodeEnd},
    proto::peer::peer_server::PeerServer,
    raft::{
        identity::{DataFolder, Identity},
        network::{Dial, MESSAGE_BYTES_MAX, Peers, Tcp},
        offload::Offload,
        upkeep,
    },
    server::{http, index_service::IndexService, peer_service::PeerService},
    source::{database::Postgres, lead, upstream::Database},
};

const WINDOW_BYTES: u32 = 16 << 20;
const STREAMS_MAX: u32 = 65_536;
/// What gateways call, before the method's name.
const INDEX_SERVICE: &str = "/mantle.index.v1.Index/";

/// One group's replica: what the services of this process share of it.
pub struct Replica {
    /// The group.
    pub group: u64,
    /// The configuration.
    pub config: Arc<Config>,
    /// PostgreSQL.
    pub database: Database,
    dial: Arc<dyn Dial>,
    offload: Offload,
    current: RwLock<(Identity, Option<Arc<Node>>)>,
}

impl Replica {
    /// One that does not run yet.
    pub fn new(
        config: Arc<Config>,
        group: u64,
        identity: Identity,
        database: Database,
        dial: Arc<dyn Dial>,
        offload: Offload,
    ) -> Arc<Self> {
        Arc::new(Self { group, config, database, dial, offload, current: RwLock::new((identity, None)) })
    }

    /// The identity of the folder, and the node while one runs.
    pub fn current(&self) -> (Identity, Option<Arc<Node>>) {
        self.current.read().clone()
    }

    /// The node, while one runs.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.current.read().1.clone()
    }

    /// Ways to other replicas, none of them used yet.
    pub(crate) fn peers(&self) -> Peers {
        Peers::new(self.dial.clone())
    }

    pub(crate) fn set(&self, identity: &Identity, node: Option<Arc<Node>>) {
        *self.current.write() = (identity.clone(), node);
    }
}

/// Runs all replicas of the process until `stop` is told.
pub async fn run(config: Config, mut stop: watch::Receiver<bool>) -> Result<()> {
    let config = Arc::new(config);
    let at = || format!("data folder {}", config.data_dir.display());
    let process = DataFolder::open(&config.data_dir).with_context(at)?;
    let mut replicas = Vec::new();
    for group in &config.groups {
        let folder = process.of_group(*group, config.groups[0]).with_context(at)?;
        let identity = folder.identity().with_context(at)?;
        let database = Arc::new(Postgres::new(&config, *group)?);
        let replica = Replica::new(config.clone(), *group, identity, database, Arc::new(Tcp), Offload::Threads);
        replicas.push((replica, folder));
    }
    let groups = Groups::new(replicas.iter().map(|(replica, _)| replica.clone()))?;
    let mut services = JoinSet::new();
    let grpc =
        TcpListener::bind(&config.listen).await.with_context(|| format!("cannot listen on {}", config.listen))?;
    let probes = TcpListener::bind(&config.http_listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.http_listen))?;
    services.spawn(serve_grpc(groups.clone(), grpc));
    services.spawn(http::serve(groups.clone(), probes));
    for (replica, folder) in replicas {
        let span = tracing::info_span!("group", id = replica.group);
        services.spawn(async move { incarnations(&replica, &folder).await }.instrument(span));
    }
    let result = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => Ok(()),
        Some(ended) = services.join_next() => ended.context("a service or replica panicked")?,
    };
    for replica in groups.all() {
        if let Some(node) = replica.node() {
            node.shutdown().await;
        }
    }
    result
}

/// The span of a gateway's call, if the gateway traces it. A stream of lookups is of many requests, and has none.
fn span_of(call: &::http::Request<()>) -> Span {
    let method = call.uri().path().strip_prefix(INDEX_SERVICE);
    match method {
        Some(method) if mantle_telemetry::is_continuation(call.headers()) => {
            let span = tracing::debug_span!(
                target: mantle_telemetry::TARGET,
                "call",
                otel.name = method,
                otel.kind = "server",
                rpc.system = "grpc",
                applied_index = tracing::field::Empty,
            );
            mantle_telemetry::continue_trace(&span, call.headers());
            span
        }
        _ => Span::none(),
    }
}

pub(crate) async fn serve_grpc(groups: Arc<Groups>, listener: TcpListener) -> Result<()> {
    let peer = PeerServer::new(PeerService::new(groups.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        // A gateway's waits share one connection; the default of 200 would queue them.
        .max_concurrent_streams(STREAMS_MAX)
        .trace_fn(span_of)
        .add_service(IndexServer::new(IndexService::new(groups)))
        .add_service(peer)
        .serve_with_incoming(incoming)
        .await
        .context("gRPC service")?;
    bail!("the gRPC service ended")
}

/// One incarnation after the other: an empty folder finds its cluster; a node runs until its cluster is gone.
pub async fn incarnations(replica: &Arc<Replica>, folder: &DataFolder) -> Result<()> {
    loop {
        let mut identity = folder.identity().context("identity")?;
        folder.finish_reset(&identity).context("cleaning the data folder")?;
        replica.set(&identity, None);
        let peers = replica.peers();
        if identity.cluster_id.is_none() {
            identity =
                settle::find_cluster((&replica.config, replica.group), folder, identity, &peers, &replica.database)
                    .await?;
            replica.set(&identity, None);
        }
        let node = Node::start(
            replica.config.clone(),
            replica.group,
            &folder.raft_path(),
            &identity,
            peers,
            replica.offload.clone(),
        )
        .await?;
        replica.set(&identity, Some(node.clone()));
        let end = live(replica, &node, &identity).await;
        replica.set(&identity, None);
        node.shutdown().await;
        match end {
            NodeEnd::Reset => folder.reset().context("resetting the data folder")?,
            NodeEnd::Failed(e) => return Err(e),
        }
    }
}

/// What a node does besides leading and answering, for ever.
pub(crate) async fn look_after(node: &Arc<Node>) {
    tokio::join!(
        node.enable_elections(),
        join::until_member(node),
        upkeep::run(node),
        node.state.cache.purge_forever()
    );
}

/// Runs what a node does besides answering, each in a task of its own: the stream's events must not poll all the rest.
async fn live(replica: &Replica, node: &Arc<Node>, identity: &Identity) -> NodeEnd {
    if let Err(e) = settle::initialize(node, identity).await {
        return NodeEnd::Failed(e);
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(lead::run(node.clone(), replica.database.clone()).in_current_span());
    let watching = settle::watch_abandonment(node.clone(), identity.clone(), replica.database.clone());
    tasks.spawn(watching.in_current_span());
    let background = node.clone();
    let looking_after = async move {
        look_after(&background).await;
        unreachable!("upkeep runs as long as the node")
    };
    tasks.spawn(looking_after.in_current_span());
    let watched = node.clone();
    tasks.spawn(async move { NodeEnd::Failed(watched.wait_failed().await) });
    let end = match tasks.join_next().await {
        Some(Ok(end)) => end,
        Some(Err(e)) => NodeEnd::Failed(anyhow::anyhow!("a task of the replica panicked: {e}")),
        None => NodeEnd::Failed(anyhow::anyhow!("the replica has nothing to do")),
    };
    tasks.shutdown().await;
    end
}
