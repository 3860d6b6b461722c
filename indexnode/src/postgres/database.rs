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
use crate::config::{Config, PostgresSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The slot learns applied positions this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
const EVENT_BUFFER: usize = 4096;
const APPLICATION: &str = "mantle-indexnode";

/// A PostgreSQL node: address and credentials.
#[derive(Clone)]
pub struct Postgres {
    settings: PostgresSettings,
    password: String,
    group: GroupId,
}

impl Postgres {
    /// The node of the configuration, for a group. Reads the password file.
    pub fn new(config: &Config, group: GroupId) -> Result<Self> {
        Ok(Self { settings: config.postgres.clone(), password: config.password()?, group })
    }
}

#[async_trait]
impl Upstream for Postgres {
    fn at(&self, host: &str, port: u16) -> Database {
        let settings = PostgresSettings { host: host.to_owned(), port, ..self.settings.clone() };
        Arc::new(Self { settings, ..self.clone() })
    }

    async fn connect(&self) -> Result<Session> {
        let PostgresSettings { host, port, database, user, .. } = &self.settings;
        let mut config = tokio_postgres::Config::new();
        config.host(host).port(*port).dbname(database).user(user).password(&self.password);
        config.application_name(APPLICATION).connect_timeout(CONNECT_TIMEOUT);
        let connected = timeout(CONNECT_TIMEOUT, config.connect(NoTls)).await;
        let connected = connected.map_err(|_| anyhow!("no answer"))?;
        let (client, connection) = connected.with_context(|| format!("PostgreSQL at {host}:{port}"))?;
        let driver = tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a PostgreSQL session ended");
            }
        });
        Ok(Arc::new(PostgresSession { client, driver, group: self.group }))
    }

    async fn walsender(&self, slot: &str, start: Lsn) -> Result<Box<dyn Walsender>> {
        let PostgresSettings { host, port, database, user, .. } = &self.settings;
        let config = ReplicationConfig::new(host, user, &self.password, database, slot, sql::PUBLICATION)
            .with_port(*port)
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
