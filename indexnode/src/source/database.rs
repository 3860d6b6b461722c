//! Sessions with the group's PostgreSQL node.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mantle_types::{Epoch, Lsn, RequestKey, message::DirectoryRecord};
use pgwire_replication::{ReplicationClient, ReplicationConfig, ReplicationEvent};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_postgres::{Client, NoTls, types::PgLsn};
use tonic::async_trait;
use uuid::Uuid;

use super::{
    copy, sql,
    upstream::{ChangeStream, IndexGroup, Session, Slot, Statements, Upstream},
};
use crate::config::Config;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A statement that takes longer is taken for lost; none but an abort record and a slot's creation may wait for others.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
const ABORT_TIMEOUT: Duration = Duration::from_secs(30);
/// The slot is told of applied positions this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
const EVENT_BUFFER: usize = 4096;

/// PostgreSQL itself: where it is, and as whom.
pub struct Postgres {
    config: tokio_postgres::Config,
    host: String,
    port: u16,
    database: String,
    user: String,
    password: String,
    group: i32,
}

impl Postgres {
    /// Reads the password file.
    pub fn new(config: &Config) -> Result<Self> {
        let settings = &config.postgres;
        let password = config.password()?;
        let mut postgres = tokio_postgres::Config::new();
        postgres
            .host(&settings.host)
            .port(settings.port)
            .dbname(&settings.database)
            .user(&settings.user)
            .password(&password)
            .application_name("mantle-indexnode")
            .connect_timeout(CONNECT_TIMEOUT);
        Ok(Self {
            config: postgres,
            host: settings.host.clone(),
            port: settings.port,
            database: settings.database.clone(),
            user: settings.user.clone(),
            password,
            group: i32::try_from(config.group).context("group")?,
        })
    }

    async fn open(&self) -> Result<PostgresSession> {
        let connected = timeout(CONNECT_TIMEOUT, self.config.connect(NoTls)).await;
        let (client, connection) = connected
            .map_err(|_| anyhow!("no answer"))?
            .with_context(|| format!("PostgreSQL at {}:{}", self.host, self.port))?;
        let driver = tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a PostgreSQL session ended");
            }
        });
        Ok(PostgresSession { client, driver, group: self.group })
    }
}

#[async_trait]
impl Upstream for Postgres {
    async fn connect(&self) -> Result<Session> {
        Ok(Box::new(self.open().await?))
    }

    async fn replication(&self, slot: &str, start: Lsn) -> Result<Box<dyn ChangeStream>> {
        let config =
            ReplicationConfig::new(&self.host, &self.user, &self.password, &self.database, slot, sql::PUBLICATION)
                .with_port(self.port)
                .with_start_lsn(pgwire_replication::Lsn(start.0))
                .with_status_interval(STATUS_INTERVAL)
                .with_wakeup_interval(STATUS_INTERVAL)
                .with_buffer_size(EVENT_BUFFER)
                .with_application_name("mantle-indexnode");
        let connected = timeout(CONNECT_TIMEOUT, ReplicationClient::connect_gated(config)).await;
        Ok(Box::new(connected.map_err(|_| anyhow!("no answer"))?.context("replication connection")?))
    }
}

struct PostgresSession {
    client: Client,
    driver: JoinHandle<()>,
    group: i32,
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[async_trait]
impl Statements for PostgresSession {
    async fn system(&self) -> Result<(u64, u32)> {
        let row = bounded(self.client.query_one(sql::SYSTEM, &[])).await.context("identity of PostgreSQL")?;
        Ok((row.get::<_, i64>(0) as u64, row.get::<_, i32>(1) as u32))
    }

    async fn index_group(&self) -> Result<IndexGroup> {
        let row =
            bounded(self.client.query_opt(sql::INDEX_GROUP, &[&self.group])).await.context("mantle.index_group")?;
        let row = row.with_context(|| format!("group {} is not in mantle.index_groups", self.group))?;
        Ok(IndexGroup {
            epoch: Epoch(row.get::<_, i64>(0) as u64),
            cluster_id: row.get::<_, Option<String>>(1).filter(|id| !id.is_empty()),
            slot_name: row.get(2),
        })
    }

    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>> {
        let expected = expected.0 as i64;
        let row = bounded(self.client.query_one(sql::RAISE_EPOCH, &[&self.group, &expected, &cluster_id])).await;
        let raised: Option<i64> = row.context("mantle.raise_epoch")?.get(0);
        Ok(raised.map(|epoch| Epoch(epoch as u64)))
    }

    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool> {
        let (principal, ns, id) = (request.principal as i32, request.ns.as_i64(), request.id);
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&principal, &ns, &id as &(dyn tokio_postgres::types::ToSql + Sync), &(attempt as i64)];
        let row = timeout(ABORT_TIMEOUT, self.client.query_one(sql::ABORT_RENAME, &parameters)).await;
        let state: String = row.context("mantle.abort_rename waits too long")?.context("mantle.abort_rename")?.get(0);
        match state.as_str() {
            "aborted" => Ok(true),
            "committed" => Ok(false),
            other => Err(anyhow!("mantle.abort_rename answered `{other}`")),
        }
    }

    async fn slot(&self, name: &str) -> Result<Option<Slot>> {
        let row = bounded(self.client.query_opt(sql::SLOT, &[&name])).await.context("state of the slot")?;
        Ok(row.map(|row| Slot {
            active_pid: row.get(0),
            is_lost: row.get::<_, Option<String>>(1).as_deref() == Some("lost"),
            confirmed: Lsn(row.get::<_, Option<PgLsn>>(2).map_or(0, u64::from)),
        }))
    }

    async fn terminate(&self, pid: i32) -> Result<()> {
        bounded(self.client.query(sql::TERMINATE, &[&pid])).await.context("ending the slot's reader")?;
        Ok(())
    }

    async fn drop_slot(&self, name: &str) -> Result<()> {
        bounded(self.client.query(sql::DROP_SLOT, &[&name])).await.context("dropping the slot")?;
        Ok(())
    }

    async fn copy_directories(&self, snapshot: &str, chunks: mpsc::Sender<Vec<DirectoryRecord>>) -> Result<()> {
        copy::copy_directories(&self.client, snapshot, chunks).await
    }
}

#[async_trait]
impl ChangeStream for ReplicationClient {
    async fn create_slot(&mut self, slot: &str) -> Result<(Lsn, String)> {
        let rows = self.simple_query(&sql::create_slot(slot)).await.context("creating the slot")?;
        let text = |column: usize| -> Result<String> {
            let value = rows.first().and_then(|row| row.get(column)).and_then(Option::as_ref);
            let value = value.context("CREATE_REPLICATION_SLOT answered too few columns")?;
            Ok(String::from_utf8(value.to_vec())?)
        };
        Ok((text(1)?.parse()?, text(2)?))
    }

    async fn start(&mut self) -> Result<()> {
        ReplicationClient::start(self).await.context("START_REPLICATION")?;
        self.wait_started().await.context("START_REPLICATION")
    }

    async fn recv(&mut self) -> Result<Option<ReplicationEvent>> {
        ReplicationClient::recv(self).await.context("change stream")
    }

    fn confirm(&self, position: Lsn) {
        self.update_applied_lsn(pgwire_replication::Lsn(position.0));
    }
}

async fn bounded<T>(statement: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T> {
    let result = timeout(STATEMENT_TIMEOUT, statement).await;
    result.map_err(|_| anyhow!("PostgreSQL does not answer"))?.map_err(describe)
}

/// `tokio_postgres::Error` alone says "db error".
fn describe(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(db) => anyhow!("{} ({})", db.message(), db.code().code()),
        None => anyhow!(error),
    }
}

/// A cluster's new name.
pub fn new_cluster_id() -> String {
    Uuid::new_v4().to_string()
}
