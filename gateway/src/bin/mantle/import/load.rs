//! Loads an ordered tree: directories level by level, then objects in batches over several connections.
//!
//! Invariant: a call is sent again until it is acknowledged or fails for good, and sending it again is harmless; so after
//! an interruption at any point a second run loads what is missing and reports the rest as already there.

use std::{collections::VecDeque, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};
use chrono::{DateTime, Utc};
use mantle_types::{ErrorCode, NamespaceId};
use parking_lot::Mutex;
use tokio_postgres::{Client, Row, Statement, types::ToSql};
use tokio_util::sync::CancellationToken;

use super::{
    order::{Batch, Order, interleave},
    progress::Progress,
    report::{Finding, Report},
    size::PathHash,
    tree::{Node, Object, Tree},
};
use crate::{connect, sql};

/// Directories of one call. Each call is one transaction and one change-stream message.
const DIRECTORIES_PER_CALL: usize = 8_192;

/// What is loaded, and where.
pub struct Load {
    /// Direct URL of the PostgreSQL node.
    pub url: String,
    /// The principal in whose name entries are made.
    pub principal: i32,
    /// The namespace.
    pub ns: NamespaceId,
    /// The entries.
    pub tree: Arc<Tree>,
    /// Their order.
    pub order: Order,
    /// Modification time of all entries.
    pub modified: DateTime<Utc>,
    /// Seed of synthetic sizes.
    pub seed: u64,
    /// Connections, and so calls under way at once.
    pub connections: usize,
    /// Stops between two calls.
    pub cancel: CancellationToken,
}

/// What became of the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Rows made by this run.
    pub inserted: u64,
    /// Entries that were there already.
    pub existing: u64,
    /// Those of `existing` in calls that were sent twice: perhaps made by the first sending.
    pub repeated: u64,
}

/// Ids of the tree's directories once they are known; refused ones have the code instead.
pub type DirectoryIds = Vec<Result<i64, ErrorCode>>;

/// A connection that renews itself, with one prepared statement.
struct Session {
    url: String,
    sql: &'static str,
    ready: Option<(Client, Statement)>,
}

impl Session {
    fn new(url: &str, sql: &'static str) -> Self {
        Self { url: url.to_owned(), sql, ready: None }
    }

    /// Calls, if need be again. Also says whether it was sent more than once.
    async fn call(&mut self, params: &[&(dyn ToSql + Sync)]) -> Result<(Vec<Row>, bool)> {
        for attempt in 1.. {
            if attempt > 1 {
                tokio::time::sleep(connect::pause(attempt)).await;
            }
            match self.call_once(params).await {
                Ok(rows) => return Ok((rows, attempt > 1)),
                Err(error) if connect::is_passing(&error) && attempt < connect::ATTEMPTS_MAX => {
                    if error.is_closed() || error.code().is_none_or(|state| !state.code().starts_with("40")) {
                        self.ready = None;
                    }
                }
                Err(error) => return Err(failure(error, attempt)),
            }
        }
        bail!("no attempt was made")
    }

    async fn call_once(&mut self, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let (client, statement) = match &mut self.ready {
            Some(ready) => ready,
            none => {
                let client = connect::connect(&self.url).await?;
                let statement = client.prepare(self.sql).await?;
                none.insert((client, statement))
            }
        };
        client.query(&*statement, params).await
    }
}

/// The error with what the database says about it.
fn failure(error: tokio_postgres::Error, attempts: u32) -> anyhow::Error {
    let text = match error.as_db_error() {
        Some(db) => format!("PostgreSQL answered {}: {}", db.code().code(), db.message()),
        None => format!("the connection to PostgreSQL failed: {}", anyhow!(error)),
    };
    if attempts == 1 { anyhow!(text) } else { anyhow!("{text} (after {attempts} attempts)") }
}

/// The interruption by the user.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; what is acknowledged stays, and the same command loads the rest")]
pub struct Interrupted;

/// Runs `work` over all jobs, one session a lane. The first failure ends all lanes after the call they are in.
async fn in_lanes<J>(
    sessions: &mut [Session],
    jobs: impl IntoIterator<Item = J>,
    cancel: &CancellationToken,
    work: impl AsyncFn(&mut Session, J) -> Result<()>,
) -> Result<()> {
    let jobs = Mutex::new(jobs.into_iter().collect::<VecDeque<J>>());
    let (jobs, work) = (&jobs, &work);
    let lanes = sessions.iter_mut().map(|session| async move {
        loop {
            let Some(job) = jobs.lock().pop_front() else { return Ok(()) };
            if cancel.is_cancelled() {
                return Err(anyhow!(Interrupted));
            }
            if let Err(error) = work(session, job).await {
                jobs.lock().clear();
                return Err(error);
            }
        }
    });
    futures::future::join_all(lanes).await.into_iter().collect()
}

/// Allocates `count` ids; the first of them.
pub async fn allocate_ids(client: &Client, count: usize) -> Result<i64> {
    let count = i64::try_from(count.max(1)).context("too many entries")?;
    let row = client.query_one(sql::ALLOCATE_IDS, &[&"import", &count]).await.map_err(|e| failure(e, 1))?;
    let (first, last): (i64, i64) = (row.get(0), row.get(1));
    if last - first + 1 < count {
        bail!("the database allocated ids {first} to {last}, {count} were asked for");
    }
    Ok(first)
}

impl Load {
    fn sessions(&self, sql: &'static str) -> Vec<Session> {
        (0..self.connections).map(|_| Session::new(&self.url, sql)).collect()
    }

    /// Makes all directories, parents first; `first_id` begins a block for all of them.
    pub async fn directories(
        &self,
        first_id: i64,
        report: &Mutex<Report>,
        progress: &Progress,
    ) -> Result<(DirectoryIds, Loaded)> {
        let mut wished = vec![0i64; self.tree.directories.len()];
        for (rank, node) in self.order.walk.iter().enumerate() {
            wished[node.index()] = first_id + rank as i64;
        }
        let mut ids: DirectoryIds = vec![Err(ErrorCode::NotFound); self.tree.directories.len()];
        ids[Node::ROOT.index()] = Ok(self.ns.as_i64());
        let mut sessions = self.sessions(sql::IMPORT_DIRECTORIES);
        let loaded = Mutex::new(Loaded::default());
        for level in &self.order.levels {
            let found = Mutex::new(Vec::with_capacity(level.len()));
            in_lanes(&mut sessions, level.chunks(DIRECTORIES_PER_CALL), &self.cancel, async |session, nodes| {
                let (some, counts) = self.call_directories(session, nodes, &ids, &wished).await?;
                found.lock().extend(some);
                let mut loaded = loaded.lock();
                loaded.inserted += counts.inserted;
                loaded.existing += counts.existing;
                progress.add(nodes.len() as u64);
                Ok(())
            })
            .await?;
            for (node, id) in found.into_inner() {
                ids[node.index()] = id;
                if let Err(code) = id {
                    self.report_directory(node, code, &mut report.lock())?;
                }
            }
        }
        Ok((ids, loaded.into_inner()))
    }

    async fn call_directories(
        &self,
        session: &mut Session,
        nodes: &[Node],
        ids: &DirectoryIds,
        wished: &[i64],
    ) -> Result<(Vec<(Node, Result<i64, ErrorCode>)>, Loaded)> {
        let mut found = Vec::with_capacity(nodes.len());
        let (mut sent, mut pids, mut names, mut new_ids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for node in nodes {
            let directory = &self.tree.directories[node.index()];
            match ids[directory.parent.index()] {
                Ok(pid) => {
                    sent.push(*node);
                    pids.push(pid);
                    names.push(format!("{}/", self.tree.name(directory.name)));
                    new_ids.push(wished[node.index()]);
                }
                // Below an object there is nothing; other refusals of the parent hold as they are.
                Err(ErrorCode::IsObject) => found.push((*node, Err(ErrorCode::ParentIsObject))),
                Err(code) => found.push((*node, Err(code))),
            }
        }
        let mut loaded = Loaded::default();
        if sent.is_empty() {
            return Ok((found, loaded));
        }
        let (rows, _) = session
            .call(&[&self.principal, &self.ns.as_i64(), &pids, &names, &new_ids])
            .await
            .context("directories")?;
        let mut answers: Vec<Result<i64, ErrorCode>> = new_ids.iter().map(|id| Ok(*id)).collect();
        for row in rows {
            let (at, code) = (position(row.get(0), sent.len())?, error_code(row.get(1))?);
            answers[at] = match (code, row.get::<_, Option<i64>>(2)) {
                (ErrorCode::AlreadyExists, Some(id)) => Ok(id),
                (code, _) => Err(code),
            };
        }
        for (answer, new_id) in answers.iter().zip(&new_ids) {
            match answer {
                Ok(id) if id == new_id => loaded.inserted += 1,
                Ok(_) => loaded.existing += 1,
                Err(_) => {}
            }
        }
        found.extend(sent.into_iter().zip(answers));
        Ok((found, loaded))
    }

    /// Only a directory that a line names is reported for itself; an implied one by the lines below it.
    fn report_directory(&self, node: Node, code: ErrorCode, report: &mut Report) -> Result<()> {
        let directory = &self.tree.directories[node.index()];
        if directory.listed != 0 {
            let path = self.tree.directory_path(node);
            report.add(directory.listed.into(), path.as_bytes(), Finding::refused(code), code.row().meaning)?;
        }
        Ok(())
    }

    /// Makes all objects; `first_id` begins a block for all of them.
    pub async fn objects(
        &self,
        batches: Vec<Batch>,
        ids: &DirectoryIds,
        first_id: i64,
        report: &Mutex<Report>,
        progress: &Progress,
    ) -> Result<Loaded> {
        let mut sessions = self.sessions(sql::IMPORT_OBJECTS);
        let loaded = Mutex::new(Loaded::default());
        let batches = interleave(batches, self.connections);
        in_lanes(&mut sessions, batches, &self.cancel, async |session, batch| {
            let counts = self.call_objects(session, &batch, ids, first_id, report).await?;
            let mut loaded = loaded.lock();
            loaded.inserted += counts.inserted;
            loaded.existing += counts.existing;
            loaded.repeated += counts.repeated;
            progress.add(batch.range.len() as u64);
            Ok(())
        })
        .await?;
        Ok(loaded.into_inner())
    }

    async fn call_objects(
        &self,
        session: &mut Session,
        batch: &Batch,
        ids: &DirectoryIds,
        first_id: i64,
        report: &Mutex<Report>,
    ) -> Result<Loaded> {
        let mut sent: Vec<&Object> = Vec::with_capacity(batch.range.len());
        let mut pids: Vec<i64> = Vec::with_capacity(batch.range.len());
        let mut names: Vec<&str> = Vec::with_capacity(batch.range.len());
        let mut sizes: Vec<i64> = Vec::with_capacity(batch.range.len());
        let mut hash: Option<(Node, PathHash)> = None;
        for at in &self.order.objects[batch.range.clone()] {
            let object = &self.tree.objects[*at as usize];
            let pid = match ids[object.parent.index()] {
                Ok(pid) => pid,
                Err(ErrorCode::IsObject) => {
                    self.report_object(object, ErrorCode::ParentIsObject, report)?;
                    continue;
                }
                Err(code) => {
                    self.report_object(object, code, report)?;
                    continue;
                }
            };
            let name = self.tree.name(object.name);
            let size = if batch.is_synthetic {
                let directory = match hash {
                    Some((node, hash)) if node == object.parent => hash,
                    _ => PathHash::new(self.seed).extend(&self.tree.directory_path(object.parent)),
                };
                hash = Some((object.parent, directory));
                directory.extend(name).size()
            } else {
                object.size
            };
            sent.push(object);
            pids.push(pid);
            names.push(name);
            sizes.push(size);
        }
        if sent.is_empty() {
            return Ok(Loaded::default());
        }
        let first_id = first_id + batch.range.start as i64;
        let (principal, ns, modified) = (&self.principal, &self.ns.as_i64(), &self.modified);
        let (rows, is_repeated) = session
            .call(&[principal, ns, &pids, &names, &sizes, &first_id, &batch.is_synthetic, modified])
            .await
            .context("objects")?;
        let row = rows.first().context("mantle.import_objects returned no row")?;
        let (inserted, existing): (i64, i64) = (row.get(0), row.get(1));
        let refused: Option<Vec<i32>> = row.get(2);
        let codes: Option<Vec<String>> = row.get(3);
        for (ord, code) in refused.unwrap_or_default().into_iter().zip(codes.unwrap_or_default()) {
            self.report_object(sent[position(ord, sent.len())?], error_code(&code)?, report)?;
        }
        let existing = existing as u64;
        Ok(Loaded { inserted: inserted as u64, existing, repeated: if is_repeated { existing } else { 0 } })
    }

    fn report_object(&self, object: &Object, code: ErrorCode, report: &Mutex<Report>) -> Result<()> {
        let path = self.tree.object_path(object);
        report.lock().add(object.line.into(), path.as_bytes(), Finding::refused(code), code.row().meaning)?;
        Ok(())
    }
}

/// An `ord` of an answer as a position in what was sent.
fn position(ord: i32, sent: usize) -> Result<usize> {
    usize::try_from(ord)
        .ok()
        .filter(|ord| (1..=sent).contains(ord))
        .map(|ord| ord - 1)
        .with_context(|| format!("the database answered for element {ord} of {sent}"))
}

fn error_code(sqlstate: &str) -> Result<ErrorCode> {
    ErrorCode::from_sqlstate(sqlstate).with_context(|| format!("the database answered an unknown code {sqlstate:?}"))
}
