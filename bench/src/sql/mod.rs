//! Every SQL string of the bench, and the one session that uses them: through the pooler, in the unnamed extended
//! protocol, as the gateway does it.

mod analysts;
mod citus;
mod contention;
mod proof;
mod soak;

use std::{pin::pin, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use tokio_postgres::{Client, NoTls, Statement, error::SqlState, types::Type};
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
const MKDIR: &str = "SELECT code, id FROM mantle.mkdir($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const PUT_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.put_object($1, $2, $3, $4, $5, $6, \
     $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
const TEXTBOOK_PUT_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM bench_textbook.put_object($1, $2, \
     $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
const RESOLVE_PATH: &str = "SELECT depth FROM mantle.resolve_path($1, $2)";
const SET_DELTA_RECORDS: &str = "SELECT set_config('mantle.delta_records', $1, false)";
/// As the index begins it.
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
/// Vacuum after a load of some millions takes seconds.
const VACUUM_POLL: Duration = Duration::from_millis(500);
const VACUUM_POLLS_MAX: u32 = 240;
const VERSION: &str = "SELECT version()";
const SETTINGS: &str = "SELECT name || ' = ' || current_setting(name) FROM unnest(ARRAY['shared_buffers', 'fsync', \
     'synchronous_commit', 'wal_level', 'max_wal_size', 'wal_sync_method']) AS name";

/// A session through the pooler.
pub struct Session {
    client: Client,
}

impl Session {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(10));
        let (client, connection) = config.connect(NoTls).await.context("cannot connect to the pooler")?;
        tokio::spawn(async move {
            // The next query has the cause.
            let _ = connection.await;
        });
        Ok(Self { client })
    }

    /// Version and the settings that matter, one a line.
    pub async fn facts(&self) -> Result<Vec<String>> {
        let mut facts: Vec<String> = Vec::new();
        for sql in [VERSION, SETTINGS] {
            facts.extend(self.client.query_typed(sql, &[]).await?.iter().map(|row| row.get::<_, String>(0)));
        }
        Ok(facts)
    }

    /// Waits until no table is being vacuumed, as all are after a load; an error if that does not come.
    pub async fn wait_for_vacuum(&self) -> Result<()> {
        for _ in 0..VACUUM_POLLS_MAX {
            let rows = self.client.query_typed(VACUUMS, &[]).await?;
            if rows.first().is_some_and(|row| row.get::<_, i64>(0) == 0) {
                return Ok(());
            }
            tokio::time::sleep(VACUUM_POLL).await;
        }
        bail!("a table is still being vacuumed after {:?}", VACUUM_POLL * VACUUM_POLLS_MAX)
    }

    /// Reads what an index is rebuilt from, and keeps nothing; how many directories.
    pub async fn copy_directories(&self) -> Result<u64> {
        self.client.batch_execute(BEGIN_COPY).await?;
        let mut rows = pin!(self.client.copy_out(COPY_DIRECTORIES).await?);
        let mut messages = 0;
        while rows.try_next().await?.is_some() {
            messages += 1;
        }
        self.client.batch_execute("COMMIT").await?;
        // Besides the rows there is a trailer; the header comes with the first.
        Ok(messages - 1)
    }

    /// Takes an index group's slot away; as superuser.
    pub async fn drop_slot(&self, group: i32) -> Result<()> {
        let rows = self.client.query_typed(SLOT_OF_GROUP, &[(&group, Type::INT4)]).await?;
        let slot: String = rows.first().with_context(|| format!("no index group {group}"))?.get(0);
        // Whoever reads it may be back before it is dropped.
        for _ in 0..DROP_TRIES {
            self.client.query_typed(TERMINATE, &[(&slot, Type::TEXT)]).await?;
            match self.client.query_typed(DROP_SLOT, &[(&slot, Type::TEXT)]).await {
                Err(e) if e.code() == Some(&SqlState::OBJECT_IN_USE) => {}
                dropped => return dropped.map(drop).context("the slot"),
            }
        }
        bail!("slot {slot} is in use again each time that its reader is ended")
    }

    /// How this session's changes reach their directories' counts; only for a direct session.
    pub async fn set_delta_records(&self, mode: &str) -> Result<()> {
        self.client.query_typed(SET_DELTA_RECORDS, &[(&mode, Type::TEXT)]).await?;
        Ok(())
    }

    /// A namespace's id.
    pub async fn namespace(&self, name: &str) -> Result<i64> {
        let rows = self.client.query_typed(NAMESPACE, &[(&name, Type::TEXT)]).await?;
        rows.first().map(|row| row.get(0)).with_context(|| format!("no namespace {name}"))
    }

    /// The first id of a new block.
    pub async fn allocate_ids(&self, count: i64) -> Result<i64> {
        let rows = self.client.query_typed(ALLOCATE_IDS, &[(&"bench", Type::TEXT), (&count, Type::INT8)]).await?;
        Ok(rows.first().context("allocate_ids gave no row")?.get(0))
    }

    /// The id of a directory by its parent's.
    pub async fn child(&self, ns: i64, pid: i64, name: &str) -> Result<i64> {
        let name = vec![format!("{name}/")];
        let rows = self
            .client
            .query_typed(STAT, &[(&ns, Type::INT8), (&vec![pid], Type::INT8_ARRAY), (&name, Type::TEXT_ARRAY)])
            .await?;
        match rows.first() {
            Some(row) if row.get::<_, Option<String>>(0).is_none() => Ok(row.get(1)),
            _ => bail!("no directory {name:?}"),
        }
    }

    /// mkdir in PostgreSQL alone: one call of one function, as the gateway sends it, without lookup and index.
    pub async fn mkdir(&self, ns: i64, pid: i64, name: &str, id: i64) -> Result<()> {
        let (pids, names, ids) = (vec![pid], vec![format!("{name}/")], vec![id]);
        let (namespaces, owner, mode, explicit) = (vec![ns], vec![1000i32], vec![0o755i32], vec![true]);
        let metadata: Vec<Option<serde_json::Value>> = vec![None];
        let (request, hash) = (vec![Uuid::now_v7()], vec![id]);
        let rows = self
            .client
            .query_typed(
                MKDIR,
                &[
                    (&owner, Type::INT4_ARRAY),
                    (&namespaces, Type::INT8_ARRAY),
                    (&pids, Type::INT8_ARRAY),
                    (&names, Type::TEXT_ARRAY),
                    (&ids, Type::INT8_ARRAY),
                    (&owner, Type::INT4_ARRAY),
                    (&owner, Type::INT4_ARRAY),
                    (&mode, Type::INT4_ARRAY),
                    (&explicit, Type::BOOL_ARRAY),
                    (&metadata, Type::JSONB_ARRAY),
                    (&request, Type::UUID_ARRAY),
                    (&hash, Type::INT8_ARRAY),
                ],
            )
            .await?;
        match rows.first().map(|row| row.get::<_, Option<String>>(0)) {
            Some(None) => Ok(()),
            Some(Some(code)) => bail!("mantle.mkdir of {name} answered {code}"),
            None => bail!("mantle.mkdir of {name} gave no row"),
        }
    }

    /// The statement of [`put_objects`](Self::put_objects); only for a direct session.
    pub async fn prepare_puts(&self, store: Store) -> Result<Statement> {
        let sql = match store {
            Store::Mantle => PUT_OBJECT,
            Store::Textbook => TEXTBOOK_PUT_OBJECT,
        };
        Ok(self.client.prepare(sql).await?)
    }

    /// Creates one object a partition, named by their ids, which begin with `first_id`.
    pub async fn put_objects(&self, statement: &Statement, ns: i64, pids: Vec<i64>, first_id: i64) -> Result<()> {
        let n = pids.len();
        let ids: Vec<i64> = (first_id..).take(n).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("o{id}")).collect();
        let (caller, namespaces, mode, size) = (vec![1000i32; n], vec![ns; n], vec![0o644i32; n], vec![4096i64; n]);
        let (etag, kind) = (vec!["d41d8cd98f00b204e9800998ecf8427e"; n], vec!["text/plain"; n]);
        let (metadata, none) = (vec![None::<serde_json::Value>; n], vec![None::<&str>; n]);
        let locators: Vec<String> = ids.iter().map(|id| format!("bench/{id}")).collect();
        let requests: Vec<Uuid> = ids.iter().map(|_| Uuid::now_v7()).collect();
        let row = self
            .client
            .query_one(
                statement,
                &[
                    &caller,
                    &namespaces,
                    &pids,
                    &names,
                    &ids,
                    &caller,
                    &caller,
                    &mode,
                    &size,
                    &etag,
                    &kind,
                    &metadata,
                    &locators,
                    &none,
                    &requests,
                    &ids,
                ],
            )
            .await?;
        ensure!(row.get::<_, i64>(0) == 0, "mantle.put_object refused new objects");
        Ok(())
    }

    /// Level-by-level lookup in SQL; how many components exist.
    pub async fn resolve_path(&self, ns: &str, components: &[String]) -> Result<i32> {
        let rows = self.client.query_typed(RESOLVE_PATH, &[(&ns, Type::TEXT), (&components, Type::TEXT_ARRAY)]).await?;
        Ok(rows.first().context("resolve_path gave no row")?.get(0))
    }
}
