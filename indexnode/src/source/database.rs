//! Sessions with the group's PostgreSQL node.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mantle_types::{Epoch, Lsn, RequestKey};
use pgwire_replication::{ReplicationClient, ReplicationConfig};
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::{Client, NoTls, types::PgLsn};
use uuid::Uuid;

use super::sql;
use crate::config::Config;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A statement that takes longer is taken for lost; none but an abort record and a slot's creation may wait for others.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
const ABORT_TIMEOUT: Duration = Duration::from_secs(30);
/// The slot is told of applied positions this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
const EVENT_BUFFER: usize = 4096;

/// Where PostgreSQL is, and as whom.
#[derive(Clone)]
pub struct Database {
    config: tokio_postgres::Config,
    host: String,
    port: u16,
    database: String,
    user: String,
    password: String,
    group: i32,
}

/// The group's row in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexGroup {
    /// Its epoch.
    pub epoch: Epoch,
    /// The Raft cluster that raised it last.
    pub cluster_id: Option<String>,
    /// Its replication slot.
    pub slot_name: String,
}

/// A logical slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The session that reads it.
    pub active_pid: Option<i32>,
    /// Its WAL is gone.
    pub is_lost: bool,
    /// Transactions below are not sent again.
    pub confirmed: Lsn,
}

impl Database {
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

    /// A new session for statements.
    pub async fn connect(&self) -> Result<Session> {
        let connected = timeout(CONNECT_TIMEOUT, self.config.connect(NoTls)).await;
        let (client, connection) = connected
            .map_err(|_| anyhow!("no answer"))?
            .with_context(|| format!("PostgreSQL at {}:{}", self.host, self.port))?;
        let driver = tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a PostgreSQL session ended");
            }
        });
        Ok(Session { client, driver, group: self.group })
    }

    /// A replication connection for a slot, which has authenticated and waits.
    pub async fn replication(&self, slot: &str, start: Lsn) -> Result<ReplicationClient> {
        let config =
            ReplicationConfig::new(&self.host, &self.user, &self.password, &self.database, slot, sql::PUBLICATION)
                .with_port(self.port)
                .with_start_lsn(pgwire_replication::Lsn(start.0))
                .with_status_interval(STATUS_INTERVAL)
                .with_wakeup_interval(STATUS_INTERVAL)
                .with_buffer_size(EVENT_BUFFER)
                .with_application_name("mantle-indexnode");
        let connected = timeout(CONNECT_TIMEOUT, ReplicationClient::connect_gated(config)).await;
        connected.map_err(|_| anyhow!("no answer"))?.context("replication connection")
    }
}

/// One session; it ends when dropped.
pub struct Session {
    client: Client,
    driver: JoinHandle<()>,
    group: i32,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session {
    /// The session itself, for COPY.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// System identifier and timeline.
    pub async fn system(&self) -> Result<(u64, u32)> {
        let row = bounded(self.client.query_one(sql::SYSTEM, &[])).await.context("identity of PostgreSQL")?;
        Ok((row.get::<_, i64>(0) as u64, row.get::<_, i32>(1) as u32))
    }

    /// The group's row.
    pub async fn index_group(&self) -> Result<IndexGroup> {
        let row =
            bounded(self.client.query_opt(sql::INDEX_GROUP, &[&self.group])).await.context("mantle.index_group")?;
        let row = row.with_context(|| format!("group {} is not in mantle.index_groups", self.group))?;
        Ok(IndexGroup {
            epoch: Epoch(row.get::<_, i64>(0) as u64),
            cluster_id: row.get::<_, Option<String>>(1).filter(|id| !id.is_empty()),
            slot_name: row.get(2),
        })
    }

    /// Raises the epoch from `expected` for a cluster; `None` when somebody else was first.
    pub async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>> {
        let expected = expected.0 as i64;
        let row = bounded(self.client.query_one(sql::RAISE_EPOCH, &[&self.group, &expected, &cluster_id])).await;
        let raised: Option<i64> = row.context("mantle.raise_epoch")?.get(0);
        Ok(raised.map(|epoch| Epoch(epoch as u64)))
    }

    /// Writes the abort record of an attempt: afterwards it cannot commit. `false`: it is committed already.
    pub async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool> {
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

    /// The slot, if it exists.
    pub async fn slot(&self, name: &str) -> Result<Option<Slot>> {
        let row = bounded(self.client.query_opt(sql::SLOT, &[&name])).await.context("state of the slot")?;
        Ok(row.map(|row| Slot {
            active_pid: row.get(0),
            is_lost: row.get::<_, Option<String>>(1).as_deref() == Some("lost"),
            confirmed: Lsn(row.get::<_, Option<PgLsn>>(2).map_or(0, u64::from)),
        }))
    }

    /// Ends the session that reads the slot.
    pub async fn terminate(&self, pid: i32) -> Result<()> {
        bounded(self.client.query(sql::TERMINATE, &[&pid])).await.context("ending the slot's reader")?;
        Ok(())
    }

    /// Drops the slot, if it is there.
    pub async fn drop_slot(&self, name: &str) -> Result<()> {
        bounded(self.client.query(sql::DROP_SLOT, &[&name])).await.context("dropping the slot")?;
        Ok(())
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
