//! Connections to the group's PostgreSQL nodes.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use mantle_tls::{PostgresConnector, check_database};
use mantle_types::{GroupId, Lsn};
use pgwire_replication::{ReplicationClient, ReplicationConfig, TlsConfig};
use tokio::time::timeout;
use tonic::async_trait;

use super::{
    session::PostgresSession,
    sql,
    upstream::{Database, Sampler, Session, Upstream, Walsender},
    walsender::{PostgresSampler, PostgresWalsender},
};
use crate::config::{Config, PostgresSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The slot learns applied positions this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
const EVENT_BUFFER: usize = 4096;
const APPLICATION: &str = "mantle-indexnode";
/// Settings that sessions depend on, with precedence over those of the database and of the role. There is no pooler in
/// between, which would refuse them; gateways use settings of their role instead (`mantle.pin_settings`).
const SETTINGS: &str = "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off \
                        -c synchronous_commit=on -c search_path=pg_catalog,pg_temp -c row_security=on \
                        -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0";

/// A PostgreSQL node: address and credentials.
#[derive(Clone)]
pub struct Postgres {
    settings: PostgresSettings,
    connector: PostgresConnector,
    /// It is the node of the configuration, and not one that PostgreSQL named.
    is_configured: bool,
    password: String,
    group: GroupId,
}

impl Postgres {
    /// The node of the configuration, for a group. Reads the password file.
    pub fn new(config: &Config, connector: &PostgresConnector, group: GroupId) -> Result<Self> {
        let (settings, connector) = (config.postgres.clone(), connector.clone());
        Ok(Self { settings, connector, is_configured: true, password: config.password()?, group })
    }

    /// An error if PostgreSQL named a node that the configuration permits no connection to: it would get the password in clear.
    fn check(&self) -> Result<()> {
        let PostgresSettings { host, port, tls, plain, .. } = &self.settings;
        // The configured one was checked with the configuration.
        if self.is_configured { Ok(()) } else { check_database(host, *port, tls.as_ref(), *plain) }
    }

    /// The replication client verifies names only, and takes an address as one if it is said to be one.
    fn replication_tls(&self) -> TlsConfig {
        let PostgresSettings { host, tls, .. } = &self.settings;
        let Some(tls) = tls.as_ref().filter(|_| !host.starts_with('/')) else { return TlsConfig::disabled() };
        let name = tls.server_name.as_ref().filter(|_| self.is_configured).unwrap_or(host);
        let config = TlsConfig::verify_full(Some(tls.ca_file.clone())).with_sni_hostname(name);
        match (&tls.certificate_file, &tls.key_file) {
            (Some(certificate), Some(key)) => config.with_client_cert(certificate, key),
            _ => config,
        }
    }
}

#[async_trait]
impl Upstream for Postgres {
    fn at(&self, host: &str, port: u16) -> Database {
        let settings = PostgresSettings { host: host.to_owned(), port, ..self.settings.clone() };
        let is_configured = settings.host == self.settings.host;
        Arc::new(Self { settings, is_configured, ..self.clone() })
    }

    async fn connect(&self) -> Result<Session> {
        self.check()?;
        let PostgresSettings { host, port, database, user, .. } = &self.settings;
        let mut config = self.connector.settings(host, self.is_configured)?;
        self.connector.bind_channel(&mut config);
        config.port(*port).dbname(database).user(user).password(&self.password);
        config.application_name(APPLICATION).connect_timeout(CONNECT_TIMEOUT).options(SETTINGS);
        let connected = timeout(CONNECT_TIMEOUT, config.connect(self.connector.clone())).await;
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
        let client = self.replication_client(slot, start).await?;
        Ok(Box::new(PostgresWalsender { client, slot: slot.to_owned() }))
    }

    async fn sampler(&self) -> Result<Box<dyn Sampler>> {
        // It never streams, so it needs no slot.
        let client = self.replication_client("", Lsn::INVALID).await?;
        Ok(Box::new(PostgresSampler::new(client).await?))
    }
}

impl Postgres {
    /// A connection to the walsender whose stream has not begun.
    async fn replication_client(&self, slot: &str, start: Lsn) -> Result<ReplicationClient> {
        self.check()?;
        let PostgresSettings { host, port, database, user, .. } = &self.settings;
        let config = ReplicationConfig::new(host, user, &self.password, database, slot, sql::PUBLICATION)
            .with_port(*port)
            .with_tls(self.replication_tls())
            .with_start_lsn(pgwire_replication::Lsn(start.0))
            .with_status_interval(STATUS_INTERVAL)
            .with_wakeup_interval(STATUS_INTERVAL)
            .with_buffer_size(EVENT_BUFFER)
            .with_application_name(APPLICATION);
        let connected = timeout(CONNECT_TIMEOUT, ReplicationClient::connect_gated(config)).await;
        connected.map_err(|_| anyhow!("no answer"))?.context("replication connection")
    }
}

#[cfg(test)]
mod tests {
    use mantle_tls::{
        PostgresTls,
        testing::{
            Authority, Files,
            postgres::{PostgresStandIn, Session as Negotiated},
        },
    };

    use super::*;

    #[tokio::test]
    async fn a_node_that_postgresql_names_is_not_connected_to_in_clear() {
        let configured = Postgres {
            settings: PostgresSettings {
                host: "127.0.0.1".into(),
                port: 5432,
                database: "mantle".into(),
                user: "index".into(),
                password_file: "password".into(),
                tls: None,
                plain: false,
            },
            connector: PostgresConnector::load(None).unwrap(),
            is_configured: true,
            password: String::new(),
            group: GroupId(1),
        };
        let named = configured.at("198.51.100.1", 5432);
        for refused in [named.connect().await.err(), named.walsender("slot", Lsn::INVALID).await.err()] {
            let why = format!("{:#}", refused.unwrap());
            assert!(why.contains("another machine"), "{why}");
        }
    }

    const ADDRESS: &str = "127.0.0.1";
    const COMMON: &str = "tafdb";

    /// A node with certificates, behind a proxy at this address, whose servers have a common name.
    fn verified(files: &Files, host: &str, port: u16) -> Postgres {
        let tls = PostgresTls {
            ca_file: files.path("ca.crt"),
            certificate_file: Some(files.path("own.crt")),
            key_file: Some(files.path("own.key")),
            server_name: Some(COMMON.into()),
        };
        Postgres {
            connector: PostgresConnector::load(Some(tls.clone())).unwrap(),
            settings: PostgresSettings {
                host: host.into(),
                port,
                database: "mantle".into(),
                user: "index".into(),
                password_file: "password".into(),
                tls: Some(tls),
                plain: false,
            },
            is_configured: true,
            password: "secret".into(),
            group: GroupId(1),
        }
    }

    #[tokio::test]
    async fn sessions_and_the_change_stream_begin_only_with_the_right_server() {
        let (ca, foreign, folder) = (Authority::default(), Authority::default(), tempfile::tempdir().unwrap());
        let own = Files::new(&folder.path().join("own"), &[&ca], &ca, ("mantle-peer", "index"));
        for (is_configured, issuer, name, is_accepted) in [
            (true, &ca, COMMON, true),
            (true, &foreign, COMMON, false),
            (true, &ca, ADDRESS, false),
            // A node that PostgreSQL named has to be the one at that address.
            (false, &ca, ADDRESS, true),
            (false, &foreign, ADDRESS, false),
            (false, &ca, COMMON, false),
            (false, &ca, "127.0.0.2", false),
        ] {
            let files = Files::new(&folder.path().join("server"), &[&ca], issuer, ("", name));
            let mut server = PostgresStandIn::new(Some(&files), &["SCRAM-SHA-256"]).await;
            let node: Database = if is_configured {
                Arc::new(verified(&own, ADDRESS, server.port()))
            } else {
                verified(&own, "127.0.0.2", 5432).at(ADDRESS, server.port())
            };
            let what = format!("{name}, configured: {is_configured}, accepted: {is_accepted}");
            // The stand-in lets nobody in.
            assert!(node.connect().await.is_err());
            let sql = server.session().await;
            // The change stream connects in the background.
            let begun = node.walsender("slot", Lsn::INVALID).await;
            let stream = server.session().await;
            drop(begun);
            if !is_accepted {
                assert_eq!((sql, stream), <(Negotiated, Negotiated)>::default(), "{what}");
                continue;
            }
            assert!(sql.has_certificate && stream.has_certificate, "{what}: {sql:?} {stream:?}");
            assert!(stream.parameters.contains(&"replication".into()), "{what}: {stream:?}");
            // No password without channel binding. The replication client knows none: it has the certificate.
            assert_eq!((sql.mechanism, stream.mechanism.as_deref()), (None, Some("SCRAM-SHA-256")), "{what}");
        }
    }
}
