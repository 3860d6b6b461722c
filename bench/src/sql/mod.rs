//! Every SQL string of the bench, and the session that runs them: through the pooler, with unnamed statements of the
//! extended protocol, as the gateway does.

mod analysts;
mod citus;
mod contention;
mod inline;
mod proof;
mod soak;
mod statements;
mod versions;
mod volume_size;

use std::{pin::pin, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::{TryStreamExt, future::try_join_all};
use tokio_postgres::{
    Client, NoTls, Statement,
    error::SqlState,
    types::{FromSqlOwned, ToSql, Type},
};
use uuid::Uuid;

pub use self::{
    analysts::Analysis,
    citus::{Call, Verbs},
    contention::{Move, Store},
    inline::BatchOfPuts,
    proof::Signer,
    soak::TableState,
};

const PUT_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.put_object($1, $2, $3, $4, $5, $6, \
     $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, p_caller => array_fill('0'::text, ARRAY[cardinality($4::text[])]))";
const TEXTBOOK_PUT_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM bench_textbook.put_object($1, $2, \
     $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
const COPY_DIRECTORIES: &str = "COPY (SELECT pid::bigint, id::bigint, version::bigint, owner::integer, grp::integer, \
     mode::integer, entry::text FROM mantle.directories WHERE ns = ANY (ARRAY(SELECT ns FROM mantle.index_namespaces(1)))) \
     TO STDOUT (FORMAT binary)";
const TERMINATE: &str = "SELECT pg_terminate_backend(active_pid::integer, 5000::bigint) FROM pg_replication_slots \
     WHERE slot_name = $1 AND active_pid IS NOT NULL";
const DROP_TRIES: usize = 10;
/// A vacuum takes seconds after a load of some millions of rows.
const VACUUM_POLL: Duration = Duration::from_millis(500);
const VACUUM_POLLS_MAX: u32 = 240;
const SETTINGS: &str = "SELECT name || ' = ' || current_setting(name) FROM unnest(ARRAY['shared_buffers', 'fsync', \
     'synchronous_commit', 'wal_level', 'max_wal_size', 'wal_sync_method']) AS name";

/// A session of PostgreSQL, through the pooler or direct.
pub struct Session {
    client: Client,
}

impl Session {
    /// Connects; an error after 10 s.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(10));
        let (client, connection) = config.connect(NoTls).await.context("cannot connect to the pooler")?;
        tokio::spawn(async move {
            // The next query fails with the cause.
            let _ = connection.await;
        });
        Ok(Self { client })
    }

    pub async fn several(url: &str, count: usize) -> Result<Vec<Self>> {
        try_join_all((0..count).map(|_| Self::connect(url))).await
    }

    /// The only column of a statement's first row.
    async fn value<T: FromSqlOwned>(&self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<T> {
        let rows = self.client.query_typed(sql, params).await?;
        Ok(rows.first().with_context(|| format!("no row: {sql}"))?.get(0))
    }

    /// Version and the settings that matter to a measurement, one a line.
    pub async fn facts(&self) -> Result<Vec<String>> {
        let mut facts: Vec<String> = Vec::new();
        for sql in ["SELECT version()", SETTINGS] {
            facts.extend(self.client.query_typed(sql, &[]).await?.iter().map(|row| row.get::<_, String>(0)));
        }
        Ok(facts)
    }

    /// Waits until no table is being vacuumed, as each is after a load; an error after two minutes.
    pub async fn wait_for_vacuum(&self) -> Result<()> {
        for _ in 0..VACUUM_POLLS_MAX {
            if self.value::<i64>("SELECT count(*) FROM pg_stat_progress_vacuum", &[]).await? == 0 {
                return Ok(());
            }
            tokio::time::sleep(VACUUM_POLL).await;
        }
        bail!("a table is still being vacuumed after {:?}", VACUUM_POLL * VACUUM_POLLS_MAX)
    }

    /// Reads the rows that an index is rebuilt from and drops them; answers how many directories there are.
    pub async fn copy_directories(&self) -> Result<u64> {
        // As the index begins its initial copy.
        self.client.batch_execute("BEGIN READ ONLY; SET LOCAL enable_seqscan = off").await?;
        let mut rows = pin!(self.client.copy_out(COPY_DIRECTORIES).await?);
        let mut messages = 0;
        while rows.try_next().await?.is_some() {
            messages += 1;
        }
        self.client.batch_execute("COMMIT").await?;
        // The header comes with the first row; the trailer is a message of its own.
        Ok(messages - 1)
    }

    /// Drops the slot of an index group; only as superuser.
    pub async fn drop_slot(&self, group: i32) -> Result<()> {
        let sql = "SELECT slot_name FROM mantle.index_group($1)";
        let slot: String = self.value(sql, &[(&group, Type::INT4)]).await?;
        // Its reader may reconnect before the drop.
        for _ in 0..DROP_TRIES {
            self.client.query_typed(TERMINATE, &[(&slot, Type::TEXT)]).await?;
            match self.client.query_typed("SELECT pg_drop_replication_slot($1)", &[(&slot, Type::TEXT)]).await {
                Err(e) if e.code() == Some(&SqlState::OBJECT_IN_USE) => {}
                dropped => return dropped.map(drop).context("the slot"),
            }
        }
        bail!("slot {slot} is in use again after each of {DROP_TRIES} terminations of its reader")
    }

    /// Sets `mantle.delta_records` for this session; only for a direct session.
    pub async fn set_delta_records(&self, mode: &str) -> Result<()> {
        self.client.query_typed("SELECT set_config('mantle.delta_records', $1, false)", &[(&mode, Type::TEXT)]).await?;
        Ok(())
    }

    pub async fn namespace(&self, name: &str) -> Result<i64> {
        self.value("SELECT ns FROM mantle.namespace($1)", &[(&name, Type::TEXT)]).await
    }

    /// Allocates a block of `count` ids; answers the first.
    pub async fn allocate_ids(&self, count: i64) -> Result<i64> {
        self.value("SELECT first_id FROM mantle.allocate_ids('bench', $1)", &[(&count, Type::INT8)]).await
    }

    pub async fn child(&self, ns: i64, pid: i64, name: &str) -> Result<i64> {
        let sql = "SELECT id FROM mantle.stat($1, $2, $3) WHERE code IS NULL";
        let (pids, names) = (vec![pid], vec![format!("{name}/")]);
        self.value(sql, &[(&ns, Type::INT8), (&pids, Type::INT8_ARRAY), (&names, Type::TEXT_ARRAY)]).await
    }

    /// mkdir in PostgreSQL alone: one call of one function, as the gateway sends it, without lookup and index.
    pub async fn mkdir(&self, ns: i64, pid: i64, name: &str, id: i64) -> Result<()> {
        self.call_mkdir(Store::Mantle, ns, pid, &[format!("{name}/")], &[id], &[Uuid::now_v7()]).await
    }

    /// The statement of [`put_objects`](Self::put_objects); only for a direct session.
    pub async fn prepare_puts(&self, store: Store) -> Result<Statement> {
        let sql = match store {
            Store::Mantle => PUT_OBJECT,
            Store::Textbook => TEXTBOOK_PUT_OBJECT,
        };
        Ok(self.client.prepare(sql).await?)
    }

    /// Creates one object for each element of `pids`, named `o` and its id. The ids are `first_id` and those after it.
    pub async fn put_objects(&self, statement: &Statement, ns: i64, pids: Vec<i64>, first_id: i64) -> Result<()> {
        let n = pids.len();
        let ids: Vec<i64> = (first_id..).take(n).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("o{id}")).collect();
        let (uid, nss, mode, size) = (vec![1000i32; n], vec![ns; n], vec![0o644i32; n], vec![4096i64; n]);
        let (etag, kind) = (vec!["d41d8cd98f00b204e9800998ecf8427e"; n], vec!["text/plain"; n]);
        let (extra, none) = (vec![None::<serde_json::Value>; n], vec![None::<&str>; n]);
        let locator: Vec<String> = ids.iter().map(|id| format!("bench/{id}")).collect();
        let request: Vec<Uuid> = ids.iter().map(|_| Uuid::now_v7()).collect();
        let params: [&(dyn ToSql + Sync); 16] = [
            &uid, &nss, &pids, &names, &ids, &uid, &uid, &mode, &size, &etag, &kind, &extra, &locator, &none, &request,
            &ids,
        ];
        let refused: i64 = self.client.query_one(statement, &params).await?.get(0);
        ensure!(refused == 0, "mantle.put_object refused new objects");
        Ok(())
    }

    /// Looks a path up level by level in SQL; answers how many of its components exist.
    pub async fn resolve_path(&self, ns: &str, components: &[String]) -> Result<i32> {
        let sql = "SELECT depth FROM mantle.resolve_path($1, $2)";
        self.value(sql, &[(&ns, Type::TEXT), (&components, Type::TEXT_ARRAY)]).await
    }
}
