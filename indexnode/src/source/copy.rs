//! The initial copy: `mantle.directories` as of the slot's consistent point, in chunks for the log.

use std::pin::pin;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use mantle_types::{DirectoryId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use tokio::sync::mpsc;
use tokio_postgres::{
    Client,
    binary_copy::{BinaryCopyOutRow, BinaryCopyOutStream},
    types::Type,
};

use super::sql;

/// A chunk ends when it has this many records …
const CHUNK_RECORDS: usize = 8192;
/// … or about this many bytes: a Raft entry is capped (PROTOCOLS 28).
const CHUNK_BYTES: usize = 1 << 20;
const RECORD_OVERHEAD_BYTES: usize = 40;

/// Reads all directories as the exported snapshot shows them, and hands chunks on.
pub async fn copy_directories(
    client: &Client,
    snapshot: &str,
    chunks: mpsc::Sender<Vec<DirectoryRecord>>,
) -> Result<()> {
    client.batch_execute(&sql::begin_with_snapshot(snapshot)).await.context("the slot's snapshot")?;
    let types = [Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::INT4, Type::INT4, Type::INT4, Type::TEXT];
    let out = client.copy_out(sql::COPY_DIRECTORIES).await.context("COPY of mantle.directories")?;
    let mut rows = pin!(BinaryCopyOutStream::new(out, &types));
    let mut chunk = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.try_next().await.context("COPY of mantle.directories")? {
        let record = record(&row).context("a row of mantle.directories")?;
        bytes += RECORD_OVERHEAD_BYTES + record.name.len();
        chunk.push(record);
        if chunk.len() == CHUNK_RECORDS || bytes >= CHUNK_BYTES {
            bytes = 0;
            if chunks.send(std::mem::take(&mut chunk)).await.is_err() {
                return Ok(());
            }
        }
    }
    if !chunk.is_empty() {
        // A closed channel means that the rebuild was given up, with its own error.
        let _ = chunks.send(chunk).await;
    }
    Ok(())
}

fn record(row: &BinaryCopyOutRow) -> Result<DirectoryRecord> {
    let permission = Permission {
        owner: row.try_get::<i32>(4)? as u32,
        group: row.try_get::<i32>(5)? as u32,
        mode: (row.try_get::<i32>(6)? & 0o7777) as u16,
    };
    Ok(DirectoryRecord {
        ns: NamespaceId::from(row.try_get::<i64>(0)?),
        pid: PartitionId::from(row.try_get::<i64>(1)?),
        id: DirectoryId::from(row.try_get::<i64>(2)?),
        version: row.try_get::<i64>(3)? as u64,
        permission,
        name: row.try_get::<&str>(7)?.to_owned(),
    })
}
