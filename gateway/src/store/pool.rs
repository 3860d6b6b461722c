//! Connections. PgBouncer in transaction mode allows no named statements and no session settings. So statements go
//! unnamed with their parameter types (`query_typed`): one round trip, no prepare. Notices matter in one case: when the
//! wait for a synchronous standby was cancelled, PostgreSQL reports success with WARNING 01000. Such a commit is
//! unconfirmed (P18).

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use futures::StreamExt;
use mantle_tls::{PostgresConnector, check_database, secret_file};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, error::SqlState};

use crate::config::Postgres;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A machine that has failed does not close its connections. After this time without an answer a connection counts as
/// broken; without this limit, changes would hold their connections for a quarter of an hour.
const SILENCE_MAX: Duration = Duration::from_secs(15);
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Counts commits whose wait for a standby was cancelled, over all connections of a pool.
#[derive(Clone, Default)]
pub struct UnconfirmedCommits(Arc<AtomicU64>);

/// Makes the connections of a pool.
struct Connector {
    tls: PostgresConnector,
    unconfirmed: UnconfirmedCommits,
}

impl UnconfirmedCommits {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Connects, and counts on the connection.
impl Connect for Connector {
    fn connect(
        &self,
        config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + '_>> {
        let (config, tls, unconfirmed) = (config.clone(), self.tls.clone(), self.unconfirmed.clone());
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let task = tokio::spawn(async move {
                let mut messages = futures::stream::poll_fn(move |cx| connection.poll_message(cx));
                while let Some(message) = messages.next().await {
                    match message {
                        Ok(AsyncMessage::Notice(notice)) if *notice.code() == SqlState::WARNING => {
                            unconfirmed.0.fetch_add(1, Ordering::AcqRel);
                            tracing::warn!(notice = notice.message(), "PostgreSQL warns");
                        }
                        Ok(_) => {}
                        Err(cause) => {
                            tracing::debug!(%cause, "a database connection ended");
                            break;
                        }
                    }
                }
            });
            Ok((client, task))
        })
    }
}

/// Makes a pool, which connects at the first statement. A server that PostgreSQL named must be reachable as the configuration
/// permits it for the configured one: it gets the same password.
pub fn build(
    config: &Postgres,
    tls: &PostgresConnector,
    (application_name, is_configured): (&str, bool),
    wait: Duration,
) -> anyhow::Result<(Pool, UnconfirmedCommits)> {
    if !is_configured {
        check_database(&config.host, config.port, config.tls.as_ref(), config.plain)?;
    }
    let mut pg = tls.settings(&config.host, is_configured)?;
    pg.port(config.port).dbname(&config.database).user(&config.user);
    pg.application_name(application_name).connect_timeout(CONNECT_TIMEOUT);
    pg.keepalives(true).keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(2);
    pg.tcp_user_timeout(SILENCE_MAX);
    if let Some(file) = &config.password_file {
        pg.password(secret_file::password(file).context("postgres.password_file")?);
    }
    let unconfirmed = UnconfirmedCommits::default();
    let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager =
        Manager::from_connect(pg, Connector { tls: tls.clone(), unconfirmed: unconfirmed.clone() }, manager_config);
    let pool = Pool::builder(manager)
        .max_size(config.pool_size)
        .wait_timeout(Some(wait))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .runtime(Runtime::Tokio1)
        .build()?;
    Ok((pool, unconfirmed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_postgresql_names_is_not_connected_to_in_clear() {
        let refusal = |host: &str, plain: bool| {
            let config = Postgres {
                host: host.into(),
                port: 5432,
                node_port: None,
                database: "mantle".into(),
                user: "gateway".into(),
                password_file: None,
                tls: None,
                plain,
                pool_size: 1,
                batches_in_flight_max: 1,
                batch_elements_max: 1,
            };
            let tls = PostgresConnector::load(None).unwrap();
            build(&config, &tls, ("test", false), CONNECT_TIMEOUT).err().map(|error| error.to_string())
        };
        assert_eq!(refusal("127.0.0.1", false), None);
        assert!(refusal("198.51.100.1", false).unwrap().contains("another machine"));
        assert_eq!(refusal("198.51.100.1", true), None, "the configuration permits it");
    }
}
