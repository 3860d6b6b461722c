//! Statements of a role, counted by pg_stat_statements. It counts while it is asked to, since that takes time.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio_postgres::types::Type;

use super::Session;

const IS_LOADED: &str = "SELECT current_setting('shared_preload_libraries') LIKE '%pg_stat_statements%'";
const STATEMENTS: &str = "SELECT s.query, s.calls FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
      WHERE r.rolname = $1 AND s.toplevel ORDER BY s.calls DESC";
const POLL: Duration = Duration::from_millis(20);
const POLLS_MAX: u32 = 100;

impl Session {
    /// Makes the extension; false if the server has not loaded its library. Only as superuser.
    pub async fn make_statement_counter(&self) -> Result<bool> {
        if !self.value::<bool>(IS_LOADED, &[]).await? {
            return Ok(false);
        }
        self.client.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await?;
        Ok(true)
    }

    /// Counts the statements of all sessions from now on, from zero, or no more of them.
    pub async fn count_statements(&self, is_counting: bool) -> Result<()> {
        let track = if is_counting { "top" } else { "none" };
        self.client.batch_execute(&format!("ALTER SYSTEM SET pg_stat_statements.track = '{track}'")).await?;
        self.client.query_typed("SELECT pg_reload_conf()", &[]).await?;
        // A session reads the settings before its next statement, after the postmaster's signal.
        for _ in 0..POLLS_MAX {
            let now: String = self.value("SELECT current_setting('pg_stat_statements.track')", &[]).await?;
            if now == track {
                if is_counting {
                    self.client.query_typed("SELECT pg_stat_statements_reset()", &[]).await?;
                }
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("pg_stat_statements.track does not become {track}")
    }

    /// The statements of a role since counting began, and how often each was called; the most frequent first.
    pub async fn statements(&self, role: &str) -> Result<Vec<(String, i64)>> {
        let rows = self.client.query_typed(STATEMENTS, &[(&role, Type::TEXT)]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}
