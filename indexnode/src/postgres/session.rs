//! A session for statements: each method of [`Statements`] is one call of SQL, with its time limit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use mantle_types::{
    DirectoryId, Epoch, GroupId, Lineage, Lsn, NamespaceId, PartitionId, RequestKey, message::DirectoryRecord,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{
    Client, Row,
    error::SqlState,
    types::{PgLsn, ToSql},
};
use tonic::async_trait;

use super::{
    copy, sql,
    upstream::{
        Assigned, Assignment, Incarnation, IndexGroup, MovePhase, ReplicaProblem, Slot, StandbyFlush, Statements,
    },
};
use crate::{
    index::{Entry, command::SourceId},
    progress::RebuildProgress,
};

/// A statement that takes longer counts as lost; only an abort record and a step of a move may wait for others.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
const ABORT_TIMEOUT: Duration = Duration::from_secs(30);
/// A copy of several nodes begins when every transaction has ended that ran before.
const CUT_TIMEOUT: Duration = Duration::from_secs(60);
const CUT_RETRY: Duration = Duration::from_millis(5);

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

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl PostgresSession {
    /// The rows of a statement; `what` names it in errors.
    async fn rows(&self, what: &'static str, statement: &str, parameters: Parameters<'_>) -> Result<Vec<Row>> {
        bounded(self.client.query(statement, parameters)).await.context(what)
    }

    /// The only row of a statement.
    async fn row(&self, what: &'static str, statement: &str, parameters: Parameters<'_>) -> Result<Row> {
        bounded(self.client.query_one(statement, parameters)).await.context(what)
    }
}

fn ns(row: &Row, column: usize) -> NamespaceId {
    NamespaceId::from(row.get::<_, i64>(column))
}

#[async_trait]
impl Statements for PostgresSession {
    async fn incarnation(&self) -> Result<Incarnation> {
        let row = self.row("identity of PostgreSQL", sql::SYSTEM, &[]).await?;
        let lineage = Lineage { system_identifier: row.get::<_, i64>(0) as u64, timeline: row.get::<_, i32>(1) as u32 };
        Ok(Incarnation { lineage, started_us: row.get(2) })
    }

    async fn sources(&self) -> Result<Vec<(SourceId, Option<(String, u16)>)>> {
        let rows = self.rows("mantle.index_sources", sql::INDEX_SOURCES, &[]).await?;
        let source = |row: &Row| {
            let address = row.get::<_, Option<String>>(1).zip(row.get::<_, Option<i32>>(2));
            let address = address.map(|(host, port)| anyhow::Ok((host, u16::try_from(port)?))).transpose();
            anyhow::Ok((SourceId(u32::try_from(row.get::<_, i32>(0))?), address?))
        };
        rows.iter().map(|row| source(row).context("mantle.index_sources")).collect()
    }

    async fn directories_after(&self, id: DirectoryId, count: usize) -> Result<Vec<(DirectoryId, NamespaceId)>> {
        let parameters: Parameters<'_> = &[&id.as_i64(), &(count as i64)];
        let rows = self.rows("ids of directories", sql::DIRECTORIES_AFTER, parameters).await?;
        Ok(rows.iter().map(|row| (DirectoryId::from(row.get::<_, i64>(0)), ns(row, 1))).collect())
    }

    async fn directories(&self, ids: &[DirectoryId]) -> Result<Vec<(Entry, NamespaceId)>> {
        let ids: Vec<i64> = ids.iter().map(|id| id.as_i64()).collect();
        let rows = self.rows("directories", sql::DIRECTORIES, &[&ids]).await?;
        let entry = |row: &Row| Entry {
            id: DirectoryId::from(row.get::<_, i64>(0)),
            pid: PartitionId::from(row.get::<_, i64>(1)),
            version: row.get::<_, i64>(2) as u64,
            name: row.get(3),
        };
        Ok(rows.iter().map(|row| (entry(row), ns(row, 4))).collect())
    }

    async fn namespaces(&self) -> Result<Vec<Assigned>> {
        let rows = self.rows("mantle.index_namespaces", sql::INDEX_NAMESPACES, &[&self.group.as_i32()]).await?;
        let phase = |text: &str| {
            MovePhase::of_name(text).with_context(|| format!("mantle.index_namespaces answered the phase `{text}`"))
        };
        let assigned = |row: &Row| {
            let phase = row.get::<_, Option<&str>>(2).map(phase).transpose()?;
            Ok(Assigned { ns: ns(row, 0), is_served: row.get(1), phase, moves: row.get::<_, i32>(3) as u32 })
        };
        rows.iter().map(assigned).collect()
    }

    async fn trash_namespaces(&self) -> Result<Vec<NamespaceId>> {
        let rows = self.rows("mantle.trash_namespaces", sql::TRASH_NAMESPACES, &[]).await?;
        Ok(rows.iter().map(|row| ns(row, 0)).collect())
    }

    async fn assignments(&self, namespaces: &[NamespaceId]) -> Result<Vec<Assignment>> {
        let ids: Vec<i64> = namespaces.iter().map(|ns| ns.as_i64()).collect();
        let rows = self.rows("mantle.assignments", sql::ASSIGNMENTS, &[&ids]).await?;
        let group = |row: &Row| GroupId::from(row.get::<_, i32>(1));
        Ok(rows.iter().map(|row| Assignment { ns: ns(row, 0), group: group(row), has_moved: row.get(2) }).collect())
    }

    async fn assignment_changes(&self) -> Result<i64> {
        Ok(self.row("mantle.all_assignment_changes", sql::ASSIGNMENT_CHANGES, &[]).await?.get(0))
    }

    async fn advance_move(&self, ns: NamespaceId, phase: MovePhase) -> Result<bool> {
        let (ns, group, name) = (ns.as_i64(), self.group.as_i32(), phase.name());
        // The statement waits for renames under way.
        let row = timeout(ABORT_TIMEOUT, self.client.query_one(sql::ADVANCE_MOVE, &[&ns, &group, &name])).await;
        let row = row.context("mantle.advance_move waits too long")?;
        Ok(row.map_err(describe).context("mantle.advance_move")?.get(0))
    }

    async fn flushed(&self) -> Result<Lsn> {
        let row = self.row("flush position", sql::FLUSHED, &[]).await?;
        Ok(Lsn(row.get::<_, PgLsn>(0).into()))
    }

    async fn standby_flush(&self) -> Result<StandbyFlush> {
        let row = self.row("mantle.standby_flush", sql::STANDBY_FLUSH, &[]).await?;
        let flushed = row.get::<_, Option<PgLsn>>(1).map(|lsn| Lsn(lsn.into()));
        Ok(StandbyFlush { is_required: row.get(0), flushed })
    }

    async fn cut(&self) -> Result<Lsn> {
        let row = self.row("position of the copy", sql::CUT, &[]).await?;
        let (position, above): (PgLsn, i64) = (row.get(0), row.get(1));
        let deadline = Instant::now() + CUT_TIMEOUT;
        while !self.row("position of the copy", sql::HAVE_ENDED, &[&above]).await?.get::<_, bool>(0) {
            if Instant::now() >= deadline {
                let who = self.held_up_by(CUT_TIMEOUT).await.unwrap_or_default().join("; ");
                bail!("a transaction is open too long for a copy to begin: {who}");
            }
            sleep(CUT_RETRY).await;
        }
        Ok(Lsn(position.into()))
    }

    async fn index_group(&self) -> Result<IndexGroup> {
        let rows = self.rows("mantle.index_group", sql::INDEX_GROUP, &[&self.group.as_i32()]).await?;
        let row = rows.first().with_context(|| format!("group {} is not in mantle.index_groups", self.group))?;
        Ok(IndexGroup {
            epoch: Epoch(row.get::<_, i64>(0) as u64),
            cluster_id: row.get::<_, Option<String>>(1).filter(|id| !id.is_empty()),
            slot_name: row.get(2),
        })
    }

    async fn epoch_lease(&self) -> Result<Duration> {
        let row = self.row("mantle.epoch_lease_ms", sql::EPOCH_LEASE, &[]).await?;
        let lease = Duration::from_millis(row.get::<_, i64>(0) as u64);
        // A margin for a gateway whose clock is slower.
        Ok(lease + lease / 10)
    }

    async fn raise_epoch(&self, expected: Epoch, cluster_id: &str) -> Result<Option<Epoch>> {
        let parameters: Parameters<'_> = &[&self.group.as_i32(), &(expected.0 as i64), &cluster_id];
        let raised: Option<i64> = self.row("mantle.raise_epoch", sql::RAISE_EPOCH, parameters).await?.get(0);
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

    async fn report_replicas(&self, problems: &[ReplicaProblem]) -> Result<()> {
        let (group, json) = (self.group.as_i32(), serde_json::to_value(problems).context("replicas as JSON")?);
        let what = "mantle.report_index_replicas";
        match timeout(STATEMENT_TIMEOUT, self.client.query_one(sql::REPORT_INDEX_REPLICAS, &[&group, &json])).await {
            // An older extension has no place for it.
            Ok(Err(e)) if e.code() == Some(&SqlState::UNDEFINED_FUNCTION) => Ok(()),
            answered => answered.context(what)?.map(drop).map_err(describe).context(what),
        }
    }

    async fn abort_rename(&self, request: &RequestKey, attempt: u64) -> Result<bool> {
        let (principal, ns, attempt) = (request.principal as i32, request.ns.as_i64(), attempt as i64);
        let parameters: Parameters<'_> = &[&principal, &ns, &request.id, &attempt];
        let row = timeout(ABORT_TIMEOUT, self.client.query_one(sql::ABORT_RENAME, parameters)).await;
        let state: String = row.context("mantle.abort_rename waits too long")?.context("mantle.abort_rename")?.get(0);
        match state.as_str() {
            "aborted" => Ok(true),
            "committed" => Ok(false),
            other => Err(anyhow!("mantle.abort_rename answered `{other}`")),
        }
    }

    async fn slot(&self, name: &str) -> Result<Option<Slot>> {
        let rows = self.rows("state of the slot", sql::SLOT, &[&name]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        if let Some(owner) = row.get::<_, Option<String>>(3) {
            bail!("slot {name} belongs to {owner}: mantle.rename_index_slot gives the group another");
        }
        Ok(Some(Slot {
            active_pid: row.get(0),
            is_lost: row.get::<_, Option<String>>(1).as_deref() == Some("lost"),
            confirmed: Lsn(row.get::<_, Option<PgLsn>>(2).map_or(0, u64::from)),
        }))
    }

    async fn slots_are_bounded(&self) -> Result<bool> {
        Ok(self.row("max_slot_wal_keep_size", sql::SLOTS_ARE_BOUNDED, &[]).await?.get(0))
    }

    async fn terminate(&self, pid: i32) -> Result<()> {
        self.rows("ending the slot's reader", sql::TERMINATE, &[&pid]).await.map(drop)
    }

    async fn drop_slot(&self, name: &str) -> Result<()> {
        self.rows("dropping the slot", sql::DROP_SLOT, &[&name]).await.map(drop)
    }

    async fn held_up_by(&self, age: Duration) -> Result<Vec<String>> {
        let seconds = age.as_secs_f64();
        let asked = timeout(STATEMENT_TIMEOUT, self.client.query(sql::OPEN_TRANSACTIONS, &[&seconds])).await;
        match asked.context("mantle.open_transactions is not answered")? {
            Ok(rows) => Ok(rows.iter().map(|row| row.get(0)).collect()),
            Err(e) if e.code() == Some(&SqlState::UNDEFINED_FUNCTION) => Ok(Vec::new()),
            Err(e) => Err(describe(e)).context("mantle.open_transactions"),
        }
    }

    async fn copy_directories(
        &self,
        snapshot: Option<&str>,
        chunks: mpsc::Sender<Vec<DirectoryRecord>>,
        progress: &RebuildProgress,
    ) -> Result<(Vec<Assigned>, u64)> {
        copy::begin(&self.client, snapshot).await?;
        let namespaces = self.namespaces().await?;
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
