//! Statements that put objects with and without their bytes, and count what that writes.

use anyhow::{Result, ensure};
use tokio_postgres::{Statement, types::ToSql};
use uuid::Uuid;

use super::Session;

const PUT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.put_object($1, $2, $3, $4, $5, $6, $7, $8, $9, \
     $10, $11, $12, $13, $14, $15, $16, p_caller => array_fill('0'::text, ARRAY[cardinality($4::text[])]), p_inline => $17)";
const ON_DISK: &str = "SELECT mantle.inline_usage()";

/// New objects of one directory, as one batch.
pub struct BatchOfPuts<'a> {
    pub ns: i64,
    pub pid: i64,
    pub first_id: i64,
    pub count: usize,
    pub size: usize,
    /// Their bytes, all alike; `None`: they are elsewhere.
    pub bytes: Option<&'a [u8]>,
}

impl Session {
    /// The statement of [`put_batch`](Self::put_batch); only for a direct session.
    pub async fn prepare_batch(&self) -> Result<Statement> {
        Ok(self.client.prepare(PUT).await?)
    }

    pub async fn put_batch(&self, statement: &Statement, batch: &BatchOfPuts<'_>) -> Result<()> {
        let n = batch.count;
        let ids: Vec<i64> = (batch.first_id..).take(n).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("o{id}")).collect();
        let (uid, nss, pids) = (vec![1000i32; n], vec![batch.ns; n], vec![batch.pid; n]);
        let (mode, size) = (vec![0o644i32; n], vec![batch.size as i64; n]);
        let (etag, kind) = (vec!["d41d8cd98f00b204e9800998ecf8427e"; n], vec!["text/plain"; n]);
        let (extra, none) = (vec![None::<serde_json::Value>; n], vec![None::<&str>; n]);
        // As long as the locator of a volume.
        let locator = |id: &i64| batch.bytes.is_none().then(|| format!("bench/12.1048577/1.{id}/65535+4096"));
        let locators: Vec<Option<String>> = ids.iter().map(locator).collect();
        let request: Vec<Uuid> = ids.iter().map(|_| Uuid::now_v7()).collect();
        let inline: Option<Vec<&[u8]>> = batch.bytes.map(|bytes| vec![bytes; n]);
        let params: [&(dyn ToSql + Sync); 17] = [
            &uid, &nss, &pids, &names, &ids, &uid, &uid, &mode, &size, &etag, &kind, &extra, &locators, &none,
            &request, &ids, &inline,
        ];
        let refused: i64 = self.client.query_one(statement, &params).await?.get(0);
        ensure!(refused == 0, "mantle.put_object refused new objects");
        Ok(())
    }

    /// Vacuums the tables that puts write to. So no autovacuum writes to the WAL at an unknown time, and new bytes do not
    /// fill the space of removed ones.
    pub async fn vacuum_written(&self) -> Result<()> {
        self.wait_for_vacuum().await?;
        self.client.batch_execute("VACUUM (ANALYZE) mantle.meta, mantle.requests, mantle.freed").await?;
        Ok(self.client.batch_execute("VACUUM (FULL, ANALYZE) mantle.inline").await?)
    }

    /// Bytes on disk of the objects that are inside PostgreSQL.
    pub async fn inline_on_disk(&self) -> Result<i64> {
        self.value(ON_DISK, &[]).await
    }
}
