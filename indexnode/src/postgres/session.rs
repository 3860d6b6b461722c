//! A session for statements: each method of [`Statements`] is one call of SQL, with its time limit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use mantle_types::{
    DirectoryId, Epoch, GroupId, Lineage, Lsn, NamespaceId, PartitionId, RequestKey, message::DirectoryRecord,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{
    Client,
    error::SqlState,
    types::{PgLsn, ToSql},
};
use tonic::async_trait;

use super::{
    copy, sql,
    upstream::{Assigned, Assignment, IndexGroup, MovePhase, Slot, StandbyFlush, Statements},
};
use crate::{
    index::{Entry, command::SourceId},
    progress::RebuildProgress,
};

/// A statement that takes longer counts as lost; only an abort record and the creation of a slot may wait for others.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
const ABORT_TIMEOUT: Duration = Duration::from_secs(30);
/// A copy of several nodes begins when every transaction has ended that ran before.
const CUT_TIMEOUT: Duration = Duration::from_secs(60);
const CUT_RETRY: Duration = Duration::from_millis(5);
/// Their names in PostgreSQL.
const PHASES: [(MovePhase, &str); 3] =
    [(MovePhase::Copy, "copy"), (MovePhase::Both, "both"), (MovePhase::Switched, "switched")];

pub(super) struct PostgresSession {
    pub(super) client: Client,
    pub(super) driver: JoinHandle<()>,
    pub(super) group: GroupId,
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[async_trait]
impl Statements for PostgresSession {
    async fn lineage(&self) -> Result<Lineage> {
        let row = bounded(self.client.query_one(sql::SYSTEM, &[])).await.context("identity of PostgreSQL")?;
        Ok(Lineage { system_identifier: row.get::<_, i64>(0) as u64, timeline: row.get::<_, i32>(1) as u32 })
    }

    async fn sources(&self) -> Result<Vec<(SourceId, Option<(String, u16)>)>> {
        let rows = bounded(self.client.query(sql::INDEX_SOURCES, &[])).await.context("mantle.index_sources")?;
        let source = |row: &tokio_postgres::Row| {
            let address = row.get::<_, Option<String>>(1).zip(row.get::<_, Option<i32>>(2));
            let address = address.map(|(host, port)| anyhow::Ok((host, u16::try_from(port)?))).transpose();
            anyhow::Ok((SourceId(u32::try_from(row.get::<_, i32>(0))?), address?))
        };
        rows.iter().map(|row| source(row).context("mantle.index_sources")).collect()
    }

    async fn directories_after(&self, id: DirectoryId, count: usize) -> Result<Vec<(DirectoryId, NamespaceId)>> {
        let rows = bounded(self.client.query(sql::DIRECTORIES_AFTER, &[&id.as_i64(), &(count as i64)])).await;
        let pair = |row: &tokio_postgres::Row| {
            (DirectoryId::from(row.get::<_, i64>(0)), NamespaceId::from(row.get::<_, i64>(1)))
        };
        Ok(rows.context("ids of directories")?.iter().map(pair).collect())
    }

    async fn directories(&self, ids: &[DirectoryId]) -> Result<Vec<(Entry, NamespaceId)>> {
        let ids: Vec<i64> = ids.iter().map(|id| id.as_i64()).collect();
        let rows = bounded(self.client.query(sql::DIRECTORIES, &[&ids])).await.context("directories")?;
        let entry = |row: &tokio_postgres::Row| Entry {
            id: DirectoryId::from(row.get::<_, i64>(0)),
            pid: PartitionId::from(row.get::<_, i64>(1)),
            version: row.get::<_, i64>(2) as u64,
            name: row.get(3),
        };
        Ok(rows.iter().map(|row| (entry(row), NamespaceId::from(row.get::<_, i64>(4)))).collect())
    }

    async fn namespaces(&self) -> Result<Vec<Assigned>> {
        namespaces(&self.client, self.group).await
    }

    async fn trash_namespaces(&self) -> Result<Vec<NamespaceId>> {
        let rows = bounded(self.client.query(sql::TRASH_NAMESPACES, &[])).await.context("mantle.trash_namespaces")?;
        Ok(rows.iter().map(|row| NamespaceId::from(row.get::<_, i64>(0))).collect())
    }

    async fn assignments(&self, namespaces: &[NamespaceId]) -> Result<Vec<Assignment>> {
        let ids: Vec<i64> = namespaces.iter().map(|ns| ns.as_i64()).collect();
        let rows = bounded(self.client.query(sql::ASSIGNMENTS, &[&ids])).await.context("mantle.assignments")?;
        let assignment = |row: &tokio_postgres::Row| Assignment {
            ns: NamespaceId::from(row.get::<_, i64>(0)),
            group: GroupId::from(row.get::<_, i32>(1)),
            has_moved: row.get(2),
        };
        Ok(rows.iter().map(assignment).collect())
    }

    async fn assignment_changes(&self) -> Result<i64> {
        let row = bounded(self.client.query_one(sql::ASSIGNMENT_CHANGES, &[])).await;
        Ok(row.context("mantle.all_assignment_changes")?.get(0))
    }

    async fn advance_move(&self, ns: NamespaceId, phase: MovePhase) -> Result<bool> {
        let name = PHASES.into_iter().find(|(known, _)| *known == phase).map(|(_, name)| name);
        let (ns, group) = (ns.as_i64(), self.group.as_i32());
        // The statement waits for renames under way.
        let row = timeout(ABORT_TIMEOUT, self.client.query_one(sql::ADVANCE_MOVE, &[&ns, &group, &name])).await;
        let row = row.context("mantle.advance_move waits too long")?;
        Ok(row.map_err(describe).context("mantle.advance_move")?.get(0))
    }

    async fn flushed(&self) -> Result<Lsn> {
        let row = bounded(self.client.query_one(sql::FLUSHED, &[])).await.context("flush position")?;
        Ok(Lsn(row.get::<_, PgLsn>(0).into()))
    }

    async fn standby_flush(&self) -> Result<StandbyFlush> {
        let row = bounded(self.client.query_one(sql::STANDBY_FLUSH, &[])).await.context("mantle.standby_flush")?;
        let flushed = row.get::<_, Option<PgLsn>>(1).map(|lsn| Lsn(lsn.into()));
        Ok(StandbyFlush { is_required: row.get(0), flushed })
    }

    async fn cut(&self) -> Result<Lsn> {
        let row = bounded(self.client.query_one(sql::CUT, &[])).await.context("position of the copy")?;
        let (position, above): (PgLsn, i64) = (row.get(0), row.get(1));
        let deadline = Instant::now() + CUT_TIMEOUT;
        while !bounded(self.client.query_one(sql::HAVE_ENDED, &[&above])).await?.get::<_, bool>(0) {
            ensure!(Instant::now() < deadline, "a transaction is open too long for a copy to begin");
            sleep(CUT_RETRY).await;
        }
        Ok(Lsn(position.into()))
    }

    async fn index_group(&self) -> Result<IndexGroup> {
        let row = bounded(self.client.query_opt(sql::INDEX_GROUP, &[&self.group.as_i32()]))
            .await
            .context("mantle.index_group")?;
        let row = row.with_context(|| format!("group {} is not in mantle.index_groups", self.group))?;
        Ok(IndexGroup {
            epoch: Epoch(row.get::<_, i64>(0) as u64),
            cluster_id: row.get::<_, Option<String>>(1).filter(|id| !id.is_empty()),
            slot_name: row.get(2),
        })
    }

    async fn epoch_lease(&self) -> Result<Duration> {
        let row = bounded(self.client.query_one(sql::EPOCH_LEASE, &[])).await.context("mantle.epoch_lease_ms")?;
        let lease = Duration::from_millis(row.get::<_, i64>(0) as u64);
        // A margin for a gateway whose clock is slower.
        Ok(lease + lease / 10)
    }

    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>> {
        let expected = expected.0 as i64;
        let row =
            bounded(self.client.query_one(sql::RAISE_EPOCH, &[&self.group.as_i32(), &expected, &cluster_id])).await;
        let raised: Option<i64> = row.context("mantle.raise_epoch")?.get(0);
        Ok(raised.map(|epoch| Epoch(epoch as u64)))
    }

    async fn prepare_key(&self) -> Result<Option<Vec<u8>>> {
        let asked = timeout(STATEMENT_TIMEOUT, self.client.query_one(sql::PREPARE_KEY, &[&self.group.as_i32()])).await;
        match asked.context("mantle.prepare_key is not answered")? {
            Ok(row) => Ok(row.get(0)),
            Err(e) if e.code() == Some(&SqlState::UNDEFINED_FUNCTION) => Ok(None),
            Err(e) => Err(describe(e)).context("mantle.prepare_key"),
        }
    }

    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool> {
        let (principal, ns, attempt) = (request.principal as i32, request.ns.as_i64(), attempt as i64);
        let parameters: [&(dyn ToSql + Sync); 4] = [&principal, &ns, &request.id, &attempt];
        let row = timeout(ABORT_TIMEOUT, self.client.query_one(sql::ABORT_RENAME, &parameters)).await;
        let state: String = row.context("mantle.abort_rename waits too long")?.context("mantle.abort_rename")?.get(0);
        match state.as_str() {
            "aborted" => Ok(true),
            "committed" => Ok(false),
            other => Err(anyhow!("mantle.abort_rename answered `{other}`")),
        }
    }

    async fn slot(&self, name: &str) -> Result<Option<Slot>> {
        let row = bounded(self.client.query_opt(sql::SLOT, &[&name])).await.context("state of the slot")?;
        Ok(row.map(|row| Slot {
            active_pid: row.get(0),
            is_lost: row.get::<_, Option<String>>(1).as_deref() == Some("lost"),
            confirmed: Lsn(row.get::<_, Option<PgLsn>>(2).map_or(0, u64::from)),
        }))
    }

    async fn slots_are_bounded(&self) -> Result<bool> {
        let row = bounded(self.client.query_one(sql::SLOTS_ARE_BOUNDED, &[])).await;
        Ok(row.context("max_slot_wal_keep_size")?.get(0))
    }

    async fn terminate(&self, pid: i32) -> Result<()> {
        bounded(self.client.query(sql::TERMINATE, &[&pid])).await.context("ending the slot's reader")?;
        Ok(())
    }

    async fn drop_slot(&self, name: &str) -> Result<()> {
        bounded(self.client.query(sql::DROP_SLOT, &[&name])).await.context("dropping the slot")?;
        Ok(())
    }

    async fn copy_directories(
        &self,
        snapshot: Option<&str>,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<(Vec<Assigned>, u64)> {
        copy::begin(&self.client, snapshot).await?;
        let namespaces = namespaces(&self.client, self.group).await?;
        let ids: Vec<NamespaceId> = namespaces.iter().map(|assigned| assigned.ns).collect();
        Ok((namespaces, copy::copy_directories(&self.client, &ids, chunks, progress).await?))
    }

    async fn copy_namespace(
        &self,
        ns: NamespaceId,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<u64> {
        copy::begin(&self.client, None).await?;
        copy::copy_directories(&self.client, &[ns], chunks, progress).await
    }
}

async fn namespaces(client: &Client, group: GroupId) -> Result<Vec<Assigned>> {
    let rows =
        bounded(client.query(sql::INDEX_NAMESPACES, &[&group.as_i32()])).await.context("mantle.index_namespaces")?;
    let phase = |text: &str| {
        let known = PHASES.into_iter().find(|(_, name)| *name == text).map(|(phase, _)| phase);
        known.with_context(|| format!("mantle.index_namespaces answered the phase `{text}`"))
    };
    let assigned = |row: &tokio_postgres::Row| {
        Ok(Assigned {
            ns: NamespaceId::from(row.get::<_, i64>(0)),
            is_served: row.get(1),
            phase: row.get::<_, Option<&str>>(2).map(phase).transpose()?,
            moves: row.get::<_, i32>(3) as u32,
        })
    };
    rows.iter().map(assigned).collect()
}

async fn bounded<T>(statement: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T> {
    let result = timeout(STATEMENT_TIMEOUT, statement).await;
    result.map_err(|_| anyhow!("PostgreSQL does not answer"))?.map_err(describe)
}

/// `tokio_postgres::Error` alone says "db error".
fn describe(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(db) => anyhow!("{} ({})", db.message(), db.code().code()),
        None => anyhow!(error),
    }
}
