//! Connections to the group's PostgreSQL nodes.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use mantle_types::{GroupId, Lsn};
use pgwire_replication::{ReplicationClient, ReplicationConfig};
use tokio::time::timeout;
use tokio_postgres::NoTls;
use tonic::async_trait;

use super::{
    session::PostgresSession,
    sql,
    upstream::{Database, Session, Upstream, Walsender},
    walsender::PostgresWalsender,
};
use crate::config::Config;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The slot learns applied positions this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
const EVENT_BUFFER: usize = 4096;
const APPLICATION: &str = "mantle-indexnode";

/// A PostgreSQL node: address and credentials.
#[derive(Clone)]
pub struct Postgres {
    config: tokio_postgres::Config,
    host: String,
    port: u16,
    database: String,
    user: String,
    password: String,
    group: GroupId,
}

impl Postgres {
    /// The node of the configuration, for a group. Reads the password file.
    pub fn new(config: &Config, group: GroupId) -> Result<Self> {
        let settings = &config.postgres;
        let named = Self {
            config: tokio_postgres::Config::new(),
            host: String::new(),
            port: 0,
            database: settings.database.clone(),
            user: settings.user.clone(),
            password: config.password()?,
            group,
        };
        Ok(named.with_address(&settings.host, settings.port))
    }

    fn with_address(&self, host: &str, port: u16) -> Self {
        let mut other = self.clone();
        other.config = tokio_postgres::Config::new();
        other
            .config
            .host(host)
            .port(port)
            .dbname(&self.database)
            .user(&self.user)
            .password(&self.password)
            .application_name(APPLICATION)
            .connect_timeout(CONNECT_TIMEOUT);
        (other.host, other.port) = (host.to_owned(), port);
        other
    }
}

#[async_trait]
impl Upstream for Postgres {
    fn at(&self, host: &str, port: u16) -> Database {
        Arc::new(self.with_address(host, port))
    }

    async fn connect(&self) -> Result<Session> {
        let connected = timeout(CONNECT_TIMEOUT, self.config.connect(NoTls)).await;
        let (client, connection) = connected
            .map_err(|_| anyhow!("no answer"))?
            .with_context(|| format!("PostgreSQL at {}:{}", self.host, self.port))?;
        let driver = tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a PostgreSQL session ended");
            }
        });
        Ok(Arc::new(PostgresSession { client, driver, group: self.group }))
    }

    async fn walsender(&self, slot: &str, start: Lsn) -> Result<Box<dyn Walsender>> {
        let config =
            ReplicationConfig::new(&self.host, &self.user, &self.password, &self.database, slot, sql::PUBLICATION)
                .with_port(self.port)
                .with_start_lsn(pgwire_replication::Lsn(start.0))
                .with_status_interval(STATUS_INTERVAL)
                .with_wakeup_interval(STATUS_INTERVAL)
                .with_buffer_size(EVENT_BUFFER)
                .with_application_name(APPLICATION);
        let connected = timeout(CONNECT_TIMEOUT, ReplicationClient::connect_gated(config)).await;
        let client = connected.map_err(|_| anyhow!("no answer"))?.context("replication connection")?;
        Ok(Box::new(PostgresWalsender { client, slot: slot.to_owned() }))
    }
}
