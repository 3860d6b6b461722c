//! PostgreSQL connections. Each call of the import is idempotent, so after a lost connection it is repeated on a new one.

use std::{sync::LazyLock, time::Duration};

use anyhow::Result;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_util::task::TaskTracker;

use crate::{
    database_url::DatabaseUrl,
    exit::{self, Exit, failure},
    passing::is_passing,
};

/// Attempts of one call before giving up, the first included.
pub const ATTEMPTS_MAX: u32 = 10;
/// The pause before the second attempt. It doubles for each further one, up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a command that is done waits for the ends of its sessions. The server may be away.
const END_MAX: Duration = Duration::from_secs(1);

/// The connections of this process.
static CONNECTIONS: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

#[derive(clap::Args)]
pub struct DatabaseOptions {
    /// Direct PostgreSQL URL (not a pooler) of a role that the command needs: docs/command-line.md
    ///
    /// `?sslmode=verify-full&sslrootcert=FILE` asks for TLS. A password that the URL lacks is taken from the file that
    /// PGPASSFILE names.
    #[arg(long = "database", env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub url: DatabaseUrl,
}

pub async fn connect(url: &DatabaseUrl) -> Result<Client, tokio_postgres::Error> {
    let (mut config, connector) = url.settings();
    if config.get_application_name().is_none() {
        config.application_name("mantle");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(10));
    }
    let (client, connection) = config.connect(connector).await?;
    // It ends with the client. If it fails, the caller's next query reports the cause.
    CONNECTIONS.spawn(connection);
    Ok(client)
}

/// Waits until the sessions have ended whose clients are dropped. If the process ended first, the server could not send its last
/// answer, and would log that the client is lost.
pub async fn end_sessions() {
    CONNECTIONS.close();
    // If they have not ended by then, the process ends them.
    let _ = timeout(END_MAX, CONNECTIONS.wait()).await;
}

/// Connects once, at the start of a command, so that a wrong URL fails at once.
pub async fn connect_first(url: &DatabaseUrl) -> Result<Client> {
    let refused = |error: tokio_postgres::Error| {
        let is_of_url = error.code().is_none() && !is_passing(&error);
        let error = anyhow::Error::new(error)
            .context("cannot connect to PostgreSQL (--database, DATABASE_URL; for an import MANTLE_IMPORT_URL)");
        // Malformed, or without the password that the server asks for.
        if is_of_url { failure(Exit::Usage, exit::message(&error)) } else { error }
    };
    connect(url).await.map_err(refused)
}

/// The pause before attempt `attempt` (2 is the first that has one).
pub fn pause(attempt: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempt.saturating_sub(2).min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit() {
        assert_eq!(pause(2), PAUSE_MIN);
        assert_eq!(pause(3), PAUSE_MIN * 2);
        assert!((2..100).all(|n| pause(n) <= pause(n + 1)));
        assert_eq!(pause(100), PAUSE_MAX);
    }
}
