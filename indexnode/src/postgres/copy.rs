//! The initial copy: reads `mantle.directories` by binary COPY, in chunks for the log.
//!
//! Each row is one message and is parsed in place, because the processor limits a copy of millions of rows, on both sides.
//! Source: PostgreSQL's documentation of COPY, "Binary Format".

use std::{
    pin::pin,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::{Buf, Bytes};
use futures::TryStreamExt;
use mantle_types::{DirectoryId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use tokio::{sync::mpsc, time::timeout};
use tokio_postgres::Client;

use super::sql;
use crate::progress::RebuildProgress;

/// A chunk ends when it has this many records: applying one delays lookups …
const CHUNK_RECORDS: usize = 4096;
/// … or about this many bytes: a Raft entry is capped (P28).
const CHUNK_BYTES: usize = 1 << 20;
const RECORD_OVERHEAD_BYTES: usize = 40;
const LOG_INTERVAL: Duration = Duration::from_secs(2);
/// How long a short statement may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a copy may bring no row. On Citus the first comes when the coordinator has all of them.
const ROW_TIMEOUT: Duration = Duration::from_secs(600);

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
const COLUMNS: u16 = 7;

/// Begins the transaction of a copy, under an exported snapshot if one is given.
pub async fn begin(client: &Client, snapshot: Option<&str>) -> Result<()> {
    let begin = snapshot.map_or_else(|| sql::BEGIN_COPY.to_owned(), sql::begin_with_snapshot);
    in_time(STATEMENT_TIMEOUT, client.batch_execute(&begin)).await.context("the slot's snapshot")
}

/// Sends the directories of some namespaces to `chunks`, and ends the transaction. Returns their number.
pub async fn copy_directories(
    client: &Client,
    namespaces: &[NamespaceId],
    chunks: mpsc::Sender<Vec<DirectoryRecord>>,
    progress: &RebuildProgress,
) -> Result<u64> {
    let expected = in_time(STATEMENT_TIMEOUT, client.query_one(sql::DIRECTORIES_EXPECTED, &[])).await;
    let expected: i64 = expected.context("statistics")?.get(0);
    progress.rows.store(0, Ordering::Relaxed);
    progress.rows_expected.store(expected.unsigned_abs(), Ordering::Relaxed);
    in_time(STATEMENT_TIMEOUT, client.batch_execute(sql::BY_INDEX)).await.context("the copy's settings")?;
    let started = Instant::now();
    let mut logged = started;
    let copy = sql::copy_directories(namespaces);
    let mut rows = pin!(in_time(ROW_TIMEOUT, client.copy_out(&copy)).await.context("COPY of mantle.directories")?);
    let (mut chunk, mut bytes, mut copied) = (Vec::with_capacity(CHUNK_RECORDS), 0, 0);
    let mut header = true;
    while let Some(mut row) = in_time(ROW_TIMEOUT, rows.try_next()).await.context("COPY of mantle.directories")? {
        if std::mem::take(&mut header) {
            skip_header(&mut row)?;
        }
        let Some(record) = record(row).context("a row of mantle.directories")? else { continue };
        bytes += RECORD_OVERHEAD_BYTES + record.name.len();
        chunk.push(record);
        if chunk.len() == CHUNK_RECORDS || bytes >= CHUNK_BYTES {
            (bytes, copied) = (0, copied + chunk.len() as u64);
            let full = std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK_RECORDS));
            ensure!(chunks.send(full).await.is_ok(), "the copy was given up");
            progress.rows.store(copied, Ordering::Relaxed);
            progress.elapsed_us.store(started.elapsed().as_micros() as u64, Ordering::Relaxed);
            if logged.elapsed() >= LOG_INTERVAL {
                logged = Instant::now();
                let rows_per_second = (copied as f64 / started.elapsed().as_secs_f64()) as u64;
                tracing::info!(rows = copied, of_about = expected, rows_per_second, "copying directories");
            }
        }
    }
    copied += chunk.len() as u64;
    if !chunk.is_empty() {
        ensure!(chunks.send(chunk).await.is_ok(), "the copy was given up");
    }
    progress.rows.store(copied, Ordering::Relaxed);
    in_time(STATEMENT_TIMEOUT, client.batch_execute(sql::COMMIT)).await.context("the end of the copy")?;
    Ok(copied)
}

async fn in_time<T>(limit: Duration, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T> {
    let answer = timeout(limit, answer).await;
    Ok(answer.map_err(|_| anyhow!("PostgreSQL does not answer"))??)
}

/// Skips the signature, flags and header extension, which precede the first row.
fn skip_header(row: &mut Bytes) -> Result<()> {
    ensure!(row.starts_with(SIGNATURE) && row.len() >= SIGNATURE.len() + 8, "COPY does not begin as it should");
    row.advance(SIGNATURE.len() + 4);
    let extension = row.get_u32() as usize;
    ensure!(row.len() >= extension, "COPY does not begin as it should");
    row.advance(extension);
    Ok(())
}

/// Parses a row; `None` at the end of the copy.
fn record(mut row: Bytes) -> Result<Option<DirectoryRecord>> {
    if row.is_empty() {
        return Ok(None);
    }
    match row.try_get_u16()? {
        u16::MAX => return Ok(None),
        COLUMNS => {}
        other => bail!("a row has {other} columns"),
    }
    let (pid, id, version) = (int8(&mut row)?, int8(&mut row)?, int8(&mut row)?);
    let (owner, group, mode) = (int4(&mut row)?, int4(&mut row)?, int4(&mut row)?);
    let length = row.try_get_u32()? as usize;
    ensure!(length == row.len(), "a name is NULL or of another length than it says");
    let entry = std::str::from_utf8(&row)?;
    Ok(Some(DirectoryRecord {
        // Not needed: the index derives a directory's namespace from its ancestors.
        ns: NamespaceId(0),
        pid: PartitionId::from(pid),
        id: DirectoryId::from(id),
        version: version as u64,
        permission: Permission { owner: owner as u32, group: group as u32, mode: mode as u16 },
        name: entry.strip_suffix('/').unwrap_or(entry).to_owned(),
    }))
}

fn int8(row: &mut Bytes) -> Result<i64> {
    ensure!(row.try_get_u32()? == 8, "a bigint is NULL or of another type");
    Ok(row.try_get_i64()?)
}

fn int4(row: &mut Bytes) -> Result<i32> {
    ensure!(row.try_get_u32()? == 4, "an integer is NULL or of another type");
    Ok(row.try_get_i32()?)
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use proptest::prelude::*;

    use super::*;

    fn row(name: &[u8]) -> BytesMut {
        let mut row = BytesMut::new();
        row.put_u16(COLUMNS);
        for value in [7, 8, 9] {
            row.put_u32(8);
            row.put_i64(value);
        }
        for value in [-1, 2, 0o10755] {
            row.put_u32(4);
            row.put_i32(value);
        }
        row.put_u32(name.len() as u32);
        row.put_slice(name);
        row
    }

    #[test]
    fn a_row_is_read() {
        let read = record(row(b"usr/").freeze()).unwrap().unwrap();
        assert_eq!((read.pid, read.id, read.version, &*read.name), (PartitionId(7), DirectoryId(8), 9, "usr"));
        assert_eq!(read.permission, Permission { owner: u32::MAX, group: 2, mode: 0o10755 });
        assert!(record(Bytes::from_static(&[0xff, 0xff])).unwrap().is_none(), "the trailer");
        let mut first = BytesMut::from(SIGNATURE);
        first.put_u64(0);
        first.extend_from_slice(&row(b"usr/"));
        let mut first = first.freeze();
        skip_header(&mut first).unwrap();
        assert_eq!(record(first).unwrap().unwrap(), read);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0usize..60) {
            let _ = record(Bytes::from(bytes.clone()));
            let _ = skip_header(&mut Bytes::from([SIGNATURE, &bytes].concat()));
            let whole = row(b"usr/").freeze();
            prop_assume!(cut > 0 && cut < whole.len());
            prop_assert!(record(whole.slice(..cut)).is_err());
        }
    }
}
