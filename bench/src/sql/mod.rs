//! Every SQL string of the bench, and the session that runs them: through the pooler, with unnamed statements of the
//! extended protocol, as the gateway does.

mod analysts;
mod citus;
mod contention;
mod proof;
mod soak;

use std::{pin::pin, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use tokio_postgres::{
    Client, NoTls, Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};
use uuid::Uuid;

pub use self::{
    analysts::Analysis,
    citus::{Call, Counters, Verbs},
    contention::{Move, Store},
    proof::Signer,
};

const NAMESPACE: &str = "SELECT ns FROM mantle.namespace($1)";
const ALLOCATE_IDS: &str = "SELECT first_id FROM mantle.allocate_ids($1, $2)";
const STAT: &str = "SELECT code, id FROM mantle.stat($1, $2, $3)";
const PUT_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.put_object($1, $2, $3, $4, $5, $6, \
     $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
const TEXTBOOK_PUT_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM bench_textbook.put_object($1, $2, \
     $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
const RESOLVE_PATH: &str = "SELECT depth FROM mantle.resolve_path($1, $2)";
const SET_DELTA_RECORDS: &str = "SELECT set_config('mantle.delta_records', $1, false)";
/// As the index begins its initial copy.
const BEGIN_COPY: &str = "BEGIN READ ONLY; SET LOCAL enable_seqscan = off";
const COPY_DIRECTORIES: &str = "COPY (SELECT pid::bigint, id::bigint, version::bigint, owner::integer, grp::integer, \
     mode::integer, entry::text FROM mantle.directories WHERE ns = ANY (ARRAY(SELECT ns FROM mantle.index_namespaces(1)))) \
     TO STDOUT (FORMAT binary)";
const SLOT_OF_GROUP: &str = "SELECT slot_name FROM mantle.index_group($1)";
const TERMINATE: &str = "SELECT pg_terminate_backend(active_pid::integer, 5000::bigint) FROM pg_replication_slots \
     WHERE slot_name = $1 AND active_pid IS NOT NULL";
const DROP_TRIES: usize = 10;
const DROP_SLOT: &str = "SELECT pg_drop_replication_slot($1)";
const VACUUMS: &str = "SELECT count(*) FROM pg_stat_progress_vacuum";
/// A vacuum takes seconds after a load of some millions of rows.
const VACUUM_POLL: Duration = Duration::from_millis(500);
const VACUUM_POLLS_MAX: u32 = 240;
const VERSION: &str = "SELECT version()";
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

    /// Several sessions.
    pub async fn several(url: &str, count: usize) -> Result<Vec<Self>> {
        let mut sessions = Vec::new();
        for _ in 0..count {
            sessions.push(Self::connect(url).await?);
        }
        Ok(sessions)
    }

    /// The first row of a statement that is not prepared, so that a pooler may run it.
    async fn first(&self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<Row> {
        self.client.query_typed(sql, params).await?.into_iter().next().with_context(|| format!("no row: {sql}"))
    }

    /// Version and the settings that matter to a measurement, one a line.
    pub async fn facts(&self) -> Result<Vec<String>> {
        let mut facts: Vec<String> = Vec::new();
        for sql in [VERSION, SETTINGS] {
            facts.extend(self.client.query_typed(sql, &[]).await?.iter().map(|row| row.get::<_, String>(0)));
        }
        Ok(facts)
    }

    /// Waits until no table is being vacuumed, as each is after a load; an error after two minutes.
    pub async fn wait_for_vacuum(&self) -> Result<()> {
        for _ in 0..VACUUM_POLLS_MAX {
            if self.first(VACUUMS, &[]).await?.get::<_, i64>(0) == 0 {
                return Ok(());
            }
            tokio::time::sleep(VACUUM_POLL).await;
        }
        bail!("a table is still being vacuumed after {:?}", VACUUM_POLL * VACUUM_POLLS_MAX)
    }

    /// Reads the rows that an index is rebuilt from and drops them; answers how many directories there are.
    pub async fn copy_directories(&self) -> Result<u64> {
        self.client.batch_execute(BEGIN_COPY).await?;
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
        let slot: String = self.first(SLOT_OF_GROUP, &[(&group, Type::INT4)]).await?.get(0);
        // Its reader may reconnect before the drop.
        for _ in 0..DROP_TRIES {
            self.client.query_typed(TERMINATE, &[(&slot, Type::TEXT)]).await?;
            match self.client.query_typed(DROP_SLOT, &[(&slot, Type::TEXT)]).await {
                Err(e) if e.code() == Some(&SqlState::OBJECT_IN_USE) => {}
                dropped => return dropped.map(drop).context("the slot"),
            }
        }
        bail!("slot {slot} is in use again after each of {DROP_TRIES} terminations of its reader")
    }

    /// Sets `mantle.delta_records` for this session; only for a direct session.
    pub async fn set_delta_records(&self, mode: &str) -> Result<()> {
        self.client.query_typed(SET_DELTA_RECORDS, &[(&mode, Type::TEXT)]).await?;
        Ok(())
    }

    /// A namespace's id.
    pub async fn namespace(&self, name: &str) -> Result<i64> {
        Ok(self.first(NAMESPACE, &[(&name, Type::TEXT)]).await?.get(0))
    }

    /// Allocates a block of `count` ids; answers the first.
    pub async fn allocate_ids(&self, count: i64) -> Result<i64> {
        Ok(self.first(ALLOCATE_IDS, &[(&"bench", Type::TEXT), (&count, Type::INT8)]).await?.get(0))
    }

    /// The id of a directory in the directory `pid`.
    pub async fn child(&self, ns: i64, pid: i64, name: &str) -> Result<i64> {
        let name = vec![format!("{name}/")];
        let pid = vec![pid];
        let row = self.first(STAT, &[(&ns, Type::INT8), (&pid, Type::INT8_ARRAY), (&name, Type::TEXT_ARRAY)]).await?;
        ensure!(row.get::<_, Option<String>>(0).is_none(), "no directory {name:?}");
        Ok(row.get(1))
    }

    /// mkdir in PostgreSQL alone: one call of one function, as the gateway sends it, without lookup and index.
    pub async fn mkdir(&self, ns: i64, pid: i64, name: &str, id: i64) -> Result<()> {
        self.call_mkdir(contention::MKDIR, ns, pid, &[format!("{name}/")], &[id], &[Uuid::now_v7()]).await
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
        let row = self.client.query_one(statement, &params).await?;
        ensure!(row.get::<_, i64>(0) == 0, "mantle.put_object refused new objects");
        Ok(())
    }

    /// Looks a path up level by level in SQL; answers how many of its components exist.
    pub async fn resolve_path(&self, ns: &str, components: &[String]) -> Result<i32> {
        Ok(self.first(RESOLVE_PATH, &[(&ns, Type::TEXT), (&components, Type::TEXT_ARRAY)]).await?.get(0))
    }
}
