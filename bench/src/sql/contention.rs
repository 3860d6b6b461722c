//! Statements of the contention measurements: Mantle's verbs, the textbook's, and what sessions wait for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mantle_types::verbs;
use tokio_postgres::{
    error::SqlState,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::{
    Session,
    proof::{Rename, Signer},
};

const TEXTBOOK: &str = include_str!("textbook.sql");
const TEXTBOOK_COUNTS: &str = "INSERT INTO bench_textbook.meta (pid, name, ns, entries, subdirectories, bytes, modified) \
      SELECT u, '/_ATTR', $1, 0, 0, 0, now() FROM generate_series($2::bigint, $3) AS u";
// Mantle's verbs are called as the gateway calls them: with a parameter for each argument. Names and defaults of
// arguments would cost PostgreSQL a tenth of the call.
const MKDIR: &str = mantle_types::joined!("SELECT code FROM ", verbs::mkdir::CALL);
const TEXTBOOK_MKDIR: &str = "SELECT code FROM bench_textbook.mkdir($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const RENAME_OBJECT: &str = "SELECT code FROM mantle.rename_object(1000, $1, $2, $3, $4, $5, false, $6, $7, \
      p_caller => '0')";
// The index numbers the attempts of a rename; the bench needs only numbers that do not repeat.
const RENAME_DIRECTORY: &str = "SELECT code FROM mantle.rename_directory(1000, $1, $2, $3, $7, $4, $5, 0, 1, \
      $9, $8, $6, $7, NULL, '0', $10)";
const TEXTBOOK_RENAME: &str = "SELECT NULL::text FROM bench_textbook.rename(1000, $1, $2, $3, $4, $5, $6, $7)";
const WAITS: &str = "SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), count(*) FROM pg_stat_activity \
      WHERE state = 'active' AND backend_type = 'client backend' AND usename = $1 AND pid <> pg_backend_pid() GROUP BY 1";
/// The transaction began too long ago.
const LEASE_EXPIRED: &str = "MT044";
const COMPACTION_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Mantle,
    Textbook,
}

pub struct Move<'a> {
    pub ns: i64,
    pub source: (i64, &'a str),
    pub destination: (i64, &'a str),
    pub id: i64,
    /// Different for each rename.
    pub attempt: i64,
    pub signer: &'a Signer,
}

impl Session {
    /// Makes the textbook's tables and functions; only as superuser.
    pub async fn make_textbook(&self) -> Result<()> {
        Ok(self.client.batch_execute(TEXTBOOK).await?)
    }

    pub async fn drop_textbook(&self) -> Result<()> {
        Ok(self.client.batch_execute("DROP SCHEMA IF EXISTS bench_textbook CASCADE").await?)
    }

    /// Makes a directory's row of counts in the textbook.
    pub async fn textbook_directory(&self, id: i64) -> Result<()> {
        self.client.execute("INSERT INTO bench_textbook.directories (id) VALUES ($1)", &[&id]).await?;
        Ok(())
    }

    /// Makes rows of counts in the textbook for the directories `first..=last`, for puts.
    pub async fn textbook_counts(&self, ns: i64, first: i64, last: i64) -> Result<()> {
        let of = [(&ns as _, Type::INT8), (&first as _, Type::INT8), (&last as _, Type::INT8)];
        self.client.query_typed(TEXTBOOK_COUNTS, &of).await?;
        Ok(())
    }

    /// Makes directories in one call, each named `d` and its id; only for a direct session (the statement is prepared).
    pub async fn mkdirs(&self, store: Store, ns: i64, pid: i64, ids: &[i64]) -> Result<()> {
        let names: Vec<String> = ids.iter().map(|id| format!("d{id}/")).collect();
        let requests: Vec<Uuid> = ids.iter().map(|_| Uuid::new_v4()).collect();
        self.call_mkdir(store, ns, pid, &names, ids, &requests).await
    }

    pub(super) async fn call_mkdir(
        &self,
        store: Store,
        ns: i64,
        pid: i64,
        names: &[String],
        ids: &[i64],
        requests: &[Uuid],
    ) -> Result<()> {
        let n = ids.len();
        let (caller, namespaces, pids, mode) = (vec![1000i32; n], vec![ns; n], vec![pid; n], vec![0o755i32; n]);
        let (explicit, metadata) = (vec![true; n], vec![None::<serde_json::Value>; n]);
        let (int4s, int8s) = (Type::INT4_ARRAY, Type::INT8_ARRAY);
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&caller, int4s.clone()),
            (&namespaces, int8s.clone()),
            (&pids, int8s.clone()),
            (&names, Type::TEXT_ARRAY),
            (&ids, int8s.clone()),
            (&caller, int4s.clone()),
            (&caller, int4s.clone()),
            (&mode, int4s),
            (&explicit, Type::BOOL_ARRAY),
            (&metadata, Type::JSONB_ARRAY),
            (&requests, Type::UUID_ARRAY),
            (&ids, int8s),
        ];
        let (unknown, anybody) = (None::<Vec<String>>, vec!["0"; n]);
        let sql = match store {
            Store::Mantle => {
                params.extend([&unknown as _, &anybody as _, &unknown as _].map(|of| (of, Type::TEXT_ARRAY)));
                MKDIR
            }
            Store::Textbook => TEXTBOOK_MKDIR,
        };
        let rows = self.client.query_typed(sql, &params).await?;
        match rows.iter().find_map(|row| row.get::<_, Option<String>>(0)) {
            None if rows.len() == n => Ok(()),
            code => bail!("mkdir of {n} directories: {} rows, {code:?}", rows.len()),
        }
    }

    /// Renames; false after a deadlock, a lock timeout or a serialization failure, or after a wait longer than a lease.
    pub async fn rename(&self, store: Store, of: &Move<'_>) -> Result<bool> {
        let is_directory = of.source.1.ends_with('/');
        let request = Uuid::new_v4();
        let Move { ns, source, destination, id, attempt, signer } = of;
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> = vec![(ns, Type::INT8)];
        params.extend([(&source.0 as _, Type::INT8), (&source.1 as _, Type::TEXT)]);
        params.extend([(&destination.0 as _, Type::INT8), (&destination.1 as _, Type::TEXT)]);
        params.extend([(&request as _, Type::UUID), (id as _, Type::INT8)]);
        let sql = match store {
            Store::Mantle if is_directory => RENAME_DIRECTORY,
            Store::Mantle => RENAME_OBJECT,
            Store::Textbook => TEXTBOOK_RENAME,
        };
        let proof;
        if sql == RENAME_DIRECTORY {
            let source = (source.0, source.1, *id);
            proof = signer.sign(&Rename { ns: *ns, request, attempt: *attempt, source, destination: *destination });
            params.extend([(attempt as _, Type::INT8), (&signer.epoch as _, Type::INT8), (&proof as _, Type::BYTEA)]);
        }
        match self.client.query_typed(sql, &params).await {
            Ok(rows) => match rows.first().map(|row| row.get::<_, Option<String>>(0)) {
                Some(None) => Ok(true),
                Some(Some(code)) if code == LEASE_EXPIRED => Ok(false),
                code => bail!("rename of {:?} answered {code:?}", of.source),
            },
            Err(error) if error.code().is_some_and(gave_up) => Ok(false),
            Err(error) => Err(error).context("rename"),
        }
    }

    /// What active sessions of a role wait for now, and how many.
    pub async fn waits(&self, role: &str) -> Result<Vec<(String, i64)>> {
        let rows = self.client.query_typed(WAITS, &[(&role, Type::NAME)]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Waits until compaction has left no delta record, so that one way does not pay for another's.
    pub async fn wait_for_compaction(&self) -> Result<()> {
        let started = Instant::now();
        while self.deltas().await? > 0 {
            ensure!(
                started.elapsed() < COMPACTION_MAX,
                "delta records are left {COMPACTION_MAX:?} after the last change"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub async fn deltas(&self) -> Result<i64> {
        self.value("SELECT count(*) FROM mantle.meta WHERE ts > 0", &[]).await
    }

    /// Sets `mantle.delta_records` for all sessions, also the gateways'; the empty mode resets it. Only as superuser.
    pub async fn alter_delta_records(&self, mode: &str) -> Result<()> {
        // ALTER SYSTEM takes no parameters; the modes are the bench's own.
        let change = if mode.is_empty() { "RESET mantle.delta_records" } else { "SET mantle.delta_records =" };
        self.client.batch_execute(&format!("ALTER SYSTEM {change} {mode}")).await?;
        self.client.query_typed("SELECT pg_reload_conf()", &[]).await?;
        // A session reads the settings before its next statement, after the postmaster's signal.
        for _ in 0..100 {
            let now: String = self.value("SELECT current_setting('mantle.delta_records')", &[]).await?;
            if mode.is_empty() || now == mode {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("mantle.delta_records does not become {mode}")
    }
}

fn gave_up(code: &SqlState) -> bool {
    [SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_SERIALIZATION_FAILURE].contains(code)
}
