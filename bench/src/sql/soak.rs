//! Statements of the soak.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio_postgres::Statement;

use super::Session;

// One call for each object, because a call adds at most one delta record to a directory; several calls a transaction.
const PUT_EACH: &str = "SELECT count(*) FILTER (WHERE p.code IS NOT NULL) \
      FROM unnest($3::bigint[]) AS u(id), LATERAL mantle.put_object(ARRAY[1000], ARRAY[$1::bigint], ARRAY[$2::bigint], \
           ARRAY['o' || u.id], ARRAY[u.id], ARRAY[1000], ARRAY[1000], ARRAY[420], ARRAY[4096::bigint], \
           ARRAY['d41d8cd98f00b204e9800998ecf8427e'], ARRAY['text/plain'], ARRAY[NULL::jsonb], ARRAY['soak/' || u.id], \
           ARRAY[NULL::text], ARRAY[gen_random_uuid()], ARRAY[u.id], p_caller => '{0}') AS p";
const TABLE: &str = "SELECT n_dead_tup, vacuum_count + autovacuum_count, pg_table_size(relid), pg_indexes_size(relid) \
      FROM pg_stat_user_tables WHERE relid = 'mantle.meta'::regclass";
// Without vacuum: its transaction is long, but holds no dead row back.
const OLDEST_TRANSACTION: &str = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 \
      FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'";

/// Prepared statements of the soak's direct session.
pub struct SoakStatements {
    put_each: Statement,
    dirstat: Statement,
    nothing: Statement,
}

/// PostgreSQL's statistics of the MetaTable.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableState {
    pub dead: i64,
    pub vacuums: i64,
    pub table_bytes: i64,
    pub index_bytes: i64,
}

impl Session {
    /// Makes a namespace in PostgreSQL alone; `id` is also its root directory's.
    pub async fn create_namespace(&self, name: &str, id: i64) -> Result<()> {
        let sql = "SELECT code FROM mantle.create_namespace(1000, $1, $2, 1000, 1000, 493, gen_random_uuid(), 0)";
        let code: Option<String> = self.client.query_one(sql, &[&name, &id]).await?.get(0);
        ensure!(code.is_none(), "mantle.create_namespace answered {code:?}");
        Ok(())
    }

    pub async fn prepare_soak(&self) -> Result<SoakStatements> {
        Ok(SoakStatements {
            put_each: self.client.prepare(PUT_EACH).await?,
            dirstat: self.client.prepare("SELECT entries FROM mantle.dirstat($1, ARRAY[$2::bigint])").await?,
            nothing: self.client.prepare("SELECT 0::bigint").await?,
        })
    }

    /// Creates objects in `pid` in one transaction, each by a call of `mantle.put_object`.
    pub async fn put_each(&self, soak: &SoakStatements, ns: i64, pid: i64, ids: &[i64]) -> Result<()> {
        let refused: i64 = self.client.query_one(&soak.put_each, &[&ns, &pid, &ids]).await?.get(0);
        ensure!(refused == 0, "mantle.put_object refused {refused} new objects");
        Ok(())
    }

    pub async fn dirstat(&self, soak: &SoakStatements, ns: i64, pid: i64) -> Result<i64> {
        Ok(self.client.query_one(&soak.dirstat, &[&ns, &pid]).await?.get(0))
    }

    pub async fn nothing(&self, soak: &SoakStatements) -> Result<i64> {
        Ok(self.client.query_one(&soak.nothing, &[]).await?.get(0))
    }

    pub async fn table_state(&self) -> Result<TableState> {
        let row = self.client.query_one(TABLE, &[]).await?;
        Ok(TableState { dead: row.get(0), vacuums: row.get(1), table_bytes: row.get(2), index_bytes: row.get(3) })
    }

    /// Age of the oldest transaction of other sessions.
    pub async fn oldest_transaction(&self) -> Result<Duration> {
        Ok(Duration::from_secs_f64(self.value::<f64>(OLDEST_TRANSACTION, &[]).await?.max(0.0)))
    }
}
