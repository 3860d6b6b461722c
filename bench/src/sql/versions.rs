//! Statements of the measurement of PostgreSQL's versions.

use anyhow::Result;

use super::Session;

const VERSION: &str = "SELECT split_part(current_setting('server_version'), ' ', 1)";
// `io_method` exists from 18 on.
const SETTINGS: &str = "SELECT string_agg(name || ' = ' || current_setting(name, true), ', ' ORDER BY n) \
     FROM unnest(ARRAY['wal_compression', 'data_checksums', 'autovacuum', 'io_method']) WITH ORDINALITY AS s(name, n)";

impl Session {
    /// Major and minor version.
    pub async fn version(&self) -> Result<String> {
        self.value(VERSION, &[]).await
    }

    /// Settings that differ between versions and builds, on one line.
    pub async fn settings_of_version(&self) -> Result<String> {
        self.value(SETTINGS, &[]).await
    }

    /// Bytes of WAL that the server has written since it was made.
    pub async fn wal_bytes(&self) -> Result<i64> {
        self.value("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", &[]).await
    }

    /// Writes all changed pages; only for a superuser's session.
    pub async fn checkpoint(&self) -> Result<()> {
        Ok(self.client.batch_execute("CHECKPOINT").await?)
    }
}
