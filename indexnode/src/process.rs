//! Process start: opens the data directory, starts the services, and runs one replica of each group.
//!
//! Invariant: the services are up from the start, also while a replica is empty or waits for its cluster, because a replica
//! founds a cluster only when all replicas answer.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures::FutureExt;
use mantle_tls::{PostgresConnector, Tls};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tracing::Instrument;

use crate::{
    config::Config,
    groups::Groups,
    health,
    membership::{bootstrap, join, promises},
    node::{Node, NodeEnd},
    postgres::database::Postgres,
    raft::{
        disk_executor::DiskExecutor,
        fault::Fault,
        identity::{DataDir, Identity},
        log_limit,
        peers::Tcp,
    },
    replica::Replica,
    server::{grpc, http, metrics::Metrics},
    source::leader,
};

/// Runs all replicas of the process until `stop` becomes true.
pub async fn run(config: Config, mut stop: watch::Receiver<bool>) -> Result<()> {
    let config = Arc::new(config);
    let at = || format!("data directory {}", config.data_dir.display());
    let process = DataDir::open(&config.data_dir).with_context(at)?;
    let tls = config.tls.clone().map(Tls::load).transpose().context("tls")?;
    let connector = PostgresConnector::load(config.postgres.tls.clone()).context("postgres.tls")?;
    let mut replicas = Vec::new();
    for group in &config.groups {
        let folder = process.of_group(*group, config.groups[0]).with_context(at)?;
        let identity = folder.identity().with_context(at)?;
        let database = Arc::new(Postgres::new(&config, &connector, *group)?);
        let replica =
            Replica::new(config.clone(), *group, identity, database, Arc::new(Tcp(tls.clone())), DiskExecutor::Threads);
        replicas.push((replica, folder));
    }
    let groups = Groups::new(replicas.iter().map(|(replica, _)| replica.clone()));
    let metrics = Metrics::install()?;
    let (grpc_listener, http_listener) = (listen(&config.listen).await?, listen(&config.http_listen).await?);
    let mut services = JoinSet::new();
    services.spawn(grpc::serve(groups.clone(), grpc_listener, tls.clone()));
    let watched = [tls.map(|tls| tls.watch().boxed()), connector.live().map(|live| live.clone().watch().boxed())];
    for watch in watched.into_iter().flatten() {
        services.spawn(watch.map(Ok));
    }
    services.spawn(http::serve(groups.clone(), metrics, http_listener));
    for (replica, folder) in replicas {
        let span = tracing::info_span!("group", id = replica.group.0);
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

pub(crate) async fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Runs one incarnation after the other: an empty data directory finds its cluster; a node runs until its cluster is gone.
pub async fn incarnations(replica: &Arc<Replica>, folder: &DataDir) -> Result<()> {
    loop {
        let mut identity = folder.identity().context("identity")?;
        folder.finish_reset(&identity).context("cleaning the data directory")?;
        replica.set(&identity, None);
        let peers = replica.peers();
        if identity.cluster_id.is_none() {
            let (config, group) = (&*replica.config, replica.group);
            identity = bootstrap::find_cluster((config, group), folder, identity, &peers, &replica.database).await?;
            replica.set(&identity, None);
        }
        let (config, disk) = (replica.config.clone(), replica.disk.clone());
        let started = Node::start(config, replica.group, &folder.raft_path(), &identity, peers, disk).await;
        let node = match started.map_err(|e| (fault_of(&e), e)) {
            Ok(node) => node,
            Err((Some(fault), _)) => {
                tracing::error!(reason = fault.why, "{fault}; it joins the group anew");
                replica.readiness.note_reset(Some(fault));
                folder.reset().context("resetting the data directory")?;
                continue;
            }
            Err((None, e)) => return Err(e),
        };
        replica.set(&identity, Some(node.clone()));
        let end = run_node(replica, &node, &identity).await;
        replica.set(&identity, None);
        node.shutdown().await;
        match end {
            NodeEnd::Reset(fault) => {
                replica.readiness.note_reset(fault);
                folder.reset().context("resetting the data directory")?;
            }
            NodeEnd::Failed(e) => return Err(e),
        }
    }
}

/// The fault of the data directory for which a node was not started, if that is the reason.
fn fault_of(error: &anyhow::Error) -> Option<Fault> {
    let of_io = |e: &std::io::Error| e.get_ref()?.downcast_ref::<Fault>().cloned();
    error.chain().find_map(|e| e.downcast_ref::<Fault>().cloned().or_else(|| of_io(e.downcast_ref()?)))
}

/// The tasks of a node besides leading and serving; never returns.
pub(crate) async fn run_background_tasks(node: &Arc<Node>) {
    tokio::join!(
        node.enable_elections(),
        promises::ask(node),
        promises::keep(node),
        join::until_member(node),
        log_limit::enforce(&node.raft, &node.log),
        node.state.cache.purge_forever()
    );
}

/// Runs a node's tasks until it ends. Each is a tokio task of its own: events of the stream must not poll the others.
async fn run_node(replica: &Arc<Replica>, node: &Arc<Node>, identity: &Identity) -> NodeEnd {
    if let Err(e) = bootstrap::initialize(node, identity).await {
        return NodeEnd::Failed(e);
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(leader::run(node.clone(), replica.database.clone()).in_current_span());
    let watching = bootstrap::watch_abandonment(node.clone(), identity.clone(), replica.database.clone());
    tasks.spawn(watching.in_current_span());
    let background = node.clone();
    let maintenance = async move {
        run_background_tasks(&background).await;
        unreachable!("runs as long as the node")
    };
    tasks.spawn(maintenance.in_current_span());
    let watched = node.clone();
    tasks.spawn(async move { NodeEnd::Failed(watched.wait_failed().await) });
    let (held, faulty) = (replica.clone(), node.clone());
    let fault = async move { NodeEnd::Reset(Some(health::wait_fault(&held, &faulty).await)) };
    tasks.spawn(fault.in_current_span());
    let (held, checked) = (replica.clone(), node.clone());
    let checks = async move {
        health::watch(held, checked).await;
        unreachable!("runs as long as the node")
    };
    tasks.spawn(checks.in_current_span());
    let ended = tasks.join_next().await.expect("some tasks were spawned");
    let end = ended.unwrap_or_else(|e| NodeEnd::Failed(anyhow::anyhow!("a task of the replica panicked: {e}")));
    tasks.shutdown().await;
    end
}
