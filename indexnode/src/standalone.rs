//! A replica without PostgreSQL, for measurements of lookups: Raft, log, services and clients are the real ones; its owner
//! proposes the commands that the change stream would.

use std::sync::Arc;

use anyhow::Result;
use mantle_tls::{PostgresConnector, Tls};
use mantle_types::Result as MantleResult;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::task::JoinSet;

use crate::{
    config::Config,
    groups::Groups,
    index::command::{Applied, Command},
    membership::bootstrap,
    node::Node,
    postgres::database::Postgres,
    process,
    raft::{
        disk_executor::DiskExecutor,
        identity::{DataDir, Identity},
        peers::Tcp,
    },
    replica::Replica,
    server::grpc,
};

/// A running replica; it stops when dropped.
pub struct Standalone {
    node: Arc<Node>,
    _folder: DataDir,
    _tasks: JoinSet<()>,
}

impl Standalone {
    /// Starts a replica of a cluster in an empty data directory. One replica founds the cluster, the others join.
    pub async fn start(config: Config, cluster_id: &str, is_founder: bool) -> Result<Self> {
        let (config, group) = (Arc::new(config.clone()), config.groups[0]);
        let folder = DataDir::open(&config.data_dir)?;
        let identity = Identity { cluster_id: Some(cluster_id.to_owned()), is_founder, ..folder.identity()? };
        folder.save_identity(&identity)?;
        let tls = config.tls.clone().map(Tls::load).transpose()?;
        let database = Arc::new(Postgres::new(&config, &PostgresConnector::load(None)?, group)?);
        let replica = Replica::new(
            config.clone(),
            group,
            identity.clone(),
            database,
            Arc::new(Tcp(tls.clone())),
            DiskExecutor::Threads,
        );
        let groups = Groups::new([replica.clone()]);
        let listener = process::listen(&config.listen).await?;
        let node =
            Node::start(config, group, &folder.raft_path(), &identity, replica.peers(), DiskExecutor::Threads).await?;
        replica.set(&identity, Some(node.clone()));
        bootstrap::initialize(&node, &identity).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async {
            if let Err(e) = grpc::serve(groups, listener, tls).await {
                tracing::error!(error = format!("{e:#}"), "the gRPC service ended");
            }
        });
        let background = node.clone();
        tasks.spawn(async move { process::run_background_tasks(&background).await });
        Ok(Self { node, _folder: folder, _tasks: tasks })
    }

    /// The running node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Builds a snapshot of the applied state; returns when it is durable.
    pub async fn snapshot(&self) -> Result<()> {
        let applied = self.node.raft.metrics().borrow_watched().last_applied;
        self.node.raft.trigger().snapshot().await?;
        self.node.raft.wait(None).metrics(|metrics| metrics.snapshot >= applied, "a snapshot").await?;
        Ok(())
    }

    /// Proposes a command once this replica leads; returns when it is applied here.
    pub async fn propose(&self, command: &Command) -> MantleResult<Applied> {
        let leadership = self.node.wait_leadership().await;
        self.node.propose_as(&leadership, command).await
    }
}
