//! `mantle fsck`: compares TafDB with every replica of the index, in both directions, while both are in use.
//!
//! A directory in PostgreSQL must be in the replica with the same parent, name, version and permissions, and a
//! directory in the replica must be in PostgreSQL. Both change meanwhile. So rows are compared after the replica has
//! applied everything that was committed when they were read: it may be newer, but not older. A difference counts only
//! if repeated comparisons find it again, because on several PostgreSQL nodes a rename in progress shows no row, or
//! two. (The leader compares itself continuously by the same rules.)

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use anyhow::{Context, Result};
use indicatif::HumanCount;
use mantle_index_client::IndexClient;
use mantle_types::{DirectoryId, GroupId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use serde::Serialize;
use tokio_postgres::Client;

use crate::{
    GroupOption, IndexOptions, connect,
    connect::DatabaseOptions,
    exit::{self, Exit, failure},
    output::Output,
    replicas,
    replicas::Nodes,
    sql,
};

/// Directories compared at a time, approximately.
const SLICE_DIRECTORIES: usize = 2000;
/// A difference counts after this many further comparisons, with this pause between them.
const CONFIRMATIONS: usize = 5;
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(1);
const SHOWN_MAX: usize = 20;
const RIGHTS: &str = "the role has to be in mantle_monitor and mantle_analyst, with a grant on all namespaces ('*')";

/// The database role is in mantle_monitor, and in mantle_analyst with a grant on all namespaces; or it owns the tables.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    database: DatabaseOptions,
    #[command(flatten)]
    index: IndexOptions,
    #[command(flatten)]
    groups: GroupOption,
    /// Do not check PostgreSQL's own tables
    #[arg(long)]
    index_only: bool,
}

type Records = HashMap<DirectoryId, DirectoryRecord>;

/// The answer of `mantle fsck --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer {
    /// Whether everything was compared and nothing differs.
    sound: bool,
    /// Problems of PostgreSQL's own tables, found by `mantle.check()`; empty with `--index-only`.
    problems: Vec<Problem>,
    /// The replicas that were named, for each group.
    replicas: Vec<Compared>,
}

/// A problem of PostgreSQL's own tables.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Problem {
    /// Kind of the problem, a word of `mantle.check()`.
    problem: String,
    /// Id of the namespace.
    ns: Option<i64>,
    /// Id of the directory.
    pid: Option<i64>,
    /// Name of the entry in the directory.
    name: Option<String>,
    /// The problem in words.
    detail: Option<String>,
}

/// A replica of an index group.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Compared {
    /// The index group.
    group: u32,
    /// As it was named.
    address: String,
    /// Number of comparisons; most directories are compared in both directions.
    compared: usize,
    /// The directories that differ.
    differences: Vec<Difference>,
    /// Why the comparison ended early; null if it did not.
    error: Option<String>,
}

#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Difference {
    /// Id of the directory.
    id: u64,
    /// What PostgreSQL has of it.
    postgresql: Option<Record>,
    /// What the replica has of it.
    index: Option<Record>,
}

#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Record {
    /// Id of the parent.
    pid: u64,
    /// Without a slash.
    name: String,
    /// The record version.
    version: u64,
    /// Numeric id of the owner.
    owner: u32,
    /// Numeric id of the group of users.
    group: u32,
    /// In octal.
    mode: String,
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let explain = |error| if Exit::of(&error) == Exit::Permission { error.context(RIGHTS) } else { error };
    compare(options, output).await.map_err(explain)
}

async fn compare(options: Options, output: Output) -> Result<Exit> {
    let index = options.index.client()?;
    let url = &options.database.url;
    let (database, nodes) = (connect::connect_first(url).await?, Nodes::connect(url).await?);
    if !database.query_one(sql::SEES_ALL, &[]).await?.get::<_, bool>(0) {
        return Err(failure(Exit::Permission, "the role does not see every namespace"));
    }
    let mut answer = Answer { sound: true, problems: Vec::new(), replicas: Vec::new() };
    if !options.index_only {
        answer.problems = problems(&database, output).await?;
    }
    let groups = options.groups.of(&index).await?;
    if groups.is_empty() {
        return Err(failure(Exit::Away, "no index replica answers"));
    }
    let mut exit = if answer.problems.is_empty() { Exit::Fine } else { Exit::Fault };
    for group in groups {
        let index = index.of_group(group);
        for replica in index.replicas() {
            let comparison = Comparison { database: &database, nodes: &nodes, index: &index, replica, group };
            let mut found = Found::default();
            let end = comparison.run(&mut found).await;
            exit = exit.and(found.exit()).and(end.as_ref().err().map_or(Exit::Fine, Exit::of));
            let compared = found.of_replica(group, replica, end.err());
            output.text(&compared);
            answer.replicas.push(compared);
        }
    }
    answer.sound = exit == Exit::Fine;
    output.answer(&answer);
    Ok(exit)
}

/// Checks PostgreSQL's own tables.
async fn problems(database: &Client, output: Output) -> Result<Vec<Problem>> {
    let rows = database.query(sql::CHECK, &[]).await.context("mantle.check()")?;
    let problem = |row: &tokio_postgres::Row| Problem {
        problem: row.get(0),
        ns: row.get(1),
        pid: row.get(2),
        name: row.get(3),
        detail: row.get(4),
    };
    let problems: Vec<Problem> = rows.iter().map(problem).collect();
    problems.iter().for_each(|problem| output.text(problem));
    if problems.is_empty() {
        output.text("TafDB: sound\n");
    }
    Ok(problems)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ns, pid] = [self.ns, self.pid].map(|id| id.map_or_else(String::new, |id| id.to_string()));
        let [name, detail] = [&self.name, &self.detail].map(|text| text.as_deref().unwrap_or_default());
        writeln!(f, "TafDB: {} namespace {ns} directory {pid} {name:?} {detail}", self.problem)
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, address, differences, .. } = self;
        let compared = HumanCount(self.compared as u64);
        write!(f, "group {group} {address}: ")?;
        match &self.error {
            Some(error) => writeln!(f, "{error}")?,
            None if differences.is_empty() => writeln!(f, "{compared} comparisons, no difference")?,
            None => writeln!(f, "{compared} comparisons, {} directories differ", differences.len())?,
        }
        differences.iter().take(SHOWN_MAX).try_for_each(|difference| write!(f, "  {difference}"))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |record: &Option<Record>| record.as_ref().map_or_else(|| "has none".to_owned(), Record::to_string);
        writeln!(f, "{}: PostgreSQL {}, index {}", self.id, show(&self.postgresql), show(&self.index))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, pid, version, owner, group, mode } = self;
        write!(f, "{name:?} in {pid}, version {version}, {owner}:{group} {mode}")
    }
}

impl From<&DirectoryRecord> for Record {
    fn from(record: &DirectoryRecord) -> Self {
        let Permission { owner, group, mode } = record.permission;
        let DirectoryRecord { pid, name, version, .. } = record;
        Self { pid: pid.0, name: name.to_string(), version: *version, owner, group, mode: format!("{mode:o}") }
    }
}

#[derive(Default)]
struct Found {
    compared: usize,
    /// By directory, because most are found in both directions.
    differences: BTreeMap<DirectoryId, Difference>,
}

impl Found {
    fn exit(&self) -> Exit {
        if self.differences.is_empty() { Exit::Fine } else { Exit::Fault }
    }

    fn of_replica(self, group: GroupId, address: &str, error: Option<anyhow::Error>) -> Compared {
        Compared {
            group: group.0,
            address: address.to_owned(),
            compared: self.compared,
            differences: self.differences.into_values().collect(),
            error: error.map(|error| exit::message(&error)),
        }
    }
}

/// The comparison of one replica.
struct Comparison<'a> {
    database: &'a Client,
    nodes: &'a Nodes,
    index: &'a IndexClient,
    replica: &'a str,
    group: GroupId,
}

impl Comparison<'_> {
    /// Compares everything. What is found before a failure stays in `found`.
    async fn run(&self, found: &mut Found) -> Result<()> {
        let namespaces = self.database.query(sql::NAMESPACES_OF_GROUP, &[&self.group.as_i32()]).await?;
        let namespaces: Vec<i64> = namespaces.iter().map(|row| row.get(0)).collect();
        let mut after = 0;
        loop {
            let limit = SLICE_DIRECTORIES as i64;
            let rows = self.database.query(sql::DIRECTORIES_AFTER, &[&after, &namespaces, &limit]).await?;
            let ids: Vec<DirectoryId> = rows.iter().map(|row| DirectoryId::from(row.get::<_, i64>(0))).collect();
            let Some(last) = ids.last() else { break };
            after = last.as_i64();
            self.compare(&ids, found).await?;
        }
        let (mut part, mut parts, mut ids) = (0, 1, Vec::new());
        while part < parts {
            let (records, count) = self.index.directories_in_part(self.replica, part).await?;
            ids.extend(records.into_iter().map(|record| record.id));
            (part, parts) = (part + 1, count);
            if ids.len() >= SLICE_DIRECTORIES || part == parts {
                self.compare(&std::mem::take(&mut ids), found).await?;
            }
        }
        Ok(())
    }

    async fn compare(&self, ids: &[DirectoryId], found: &mut Found) -> Result<()> {
        found.compared += ids.len();
        let mut ids = ids.to_vec();
        let mut differences = Vec::new();
        for attempt in 0..=CONFIRMATIONS {
            if attempt > 0 {
                tokio::time::sleep(CONFIRMATION_PAUSE).await;
            }
            differences = self.differences(&ids).await?;
            ids = differences.iter().map(|difference| DirectoryId(difference.id)).collect();
            if ids.is_empty() {
                break;
            }
        }
        found.differences.extend(differences.into_iter().map(|difference| (DirectoryId(difference.id), difference)));
        Ok(())
    }

    async fn differences(&self, ids: &[DirectoryId]) -> Result<Vec<Difference>> {
        // A directory without a row counts only if the index had it before the rows were read.
        let before = self.known(ids).await?;
        let rows = self.rows(ids).await?;
        replicas::wait_leader(self.index, &self.nodes.flushed().await?, &|_| ()).await?;
        let now = self.known(ids).await?;
        let ids: BTreeSet<DirectoryId> = ids.iter().copied().collect();
        let differing = ids.into_iter().filter(|id| differ(rows.get(id), before.get(id), now.get(id)));
        let difference = |id: DirectoryId| {
            let [postgresql, index] = [rows.get(&id), now.get(&id)].map(|record| record.map(Record::from));
            Difference { id: id.0, postgresql, index }
        };
        Ok(differing.map(difference).collect())
    }

    async fn known(&self, ids: &[DirectoryId]) -> Result<Records> {
        let mut known = Records::new();
        for ids in ids.chunks(SLICE_DIRECTORIES) {
            let records = self.index.directories(self.replica, ids).await?;
            known.extend(records.into_iter().map(|record| (record.id, record)));
        }
        Ok(known)
    }

    /// Reads the newest row of each directory.
    async fn rows(&self, ids: &[DirectoryId]) -> Result<Records> {
        let ids: Vec<i64> = ids.iter().map(|id| id.as_i64()).collect();
        let mut newest = Records::new();
        for row in self.database.query(sql::DIRECTORIES, &[&ids]).await? {
            let [owner, group, mode] = [5, 6, 7].map(|column| row.get::<_, i32>(column));
            let record = DirectoryRecord {
                ns: NamespaceId::from(row.get::<_, i64>(0)),
                pid: PartitionId::from(row.get::<_, i64>(1)),
                name: row.get(2),
                id: DirectoryId::from(row.get::<_, i64>(3)),
                version: row.get::<_, i64>(4) as u64,
                permission: Permission { owner: owner as u32, group: group as u32, mode: mode as u16 },
            };
            if newest.get(&record.id).is_none_or(|known: &DirectoryRecord| record.version > known.version) {
                newest.insert(record.id, record);
            }
        }
        Ok(newest)
    }
}

/// Whether the replica's directory differs from PostgreSQL's. `row` was read between `before` and `now`. The namespace
/// is not compared: the index does not keep it.
fn differ(row: Option<&DirectoryRecord>, before: Option<&DirectoryRecord>, now: Option<&DirectoryRecord>) -> bool {
    let same =
        |a: &DirectoryRecord, b: &DirectoryRecord| (a.pid, &a.name, a.permission) == (b.pid, &b.name, b.permission);
    match (row, before, now) {
        (Some(row), _, Some(now)) => now.version < row.version || (now.version == row.version && !same(now, row)),
        // If the index had it before, it was removed since; else the index never received it.
        (Some(_), before, None) => before.is_none(),
        (None, Some(before), Some(now)) => before.version == now.version,
        (None, ..) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u64, name: &str) -> DirectoryRecord {
        let permission = Permission { owner: 1, group: 1, mode: 0o755 };
        let (ns, pid, id) = (NamespaceId(0), PartitionId(5), DirectoryId(7));
        DirectoryRecord { ns, pid, name: name.into(), id, version, permission }
    }

    #[test]
    fn a_change_during_the_comparison_is_no_difference() {
        let [old, new] = [record(1, "a"), record(2, "b")];
        let closed = DirectoryRecord { permission: Permission { mode: 0o700, ..old.permission }, ..old.clone() };
        let cases = [
            (Some(&old), Some(&old), Some(&old), false),
            (Some(&old), Some(&old), Some(&new), false), // renamed after it was read
            (Some(&new), Some(&old), Some(&old), true),  // a rename was lost
            (Some(&old), None, None, true),              // never received
            (Some(&old), Some(&old), None, false),       // removed after it was read
            (None, Some(&old), Some(&old), true),        // a removal was lost
            (None, Some(&old), None, false),
            (None, None, Some(&old), false), // made after the rows were read
            (Some(&old), Some(&closed), Some(&closed), true),
        ];
        for (at, (row, before, now, expected)) in cases.into_iter().enumerate() {
            assert_eq!(differ(row, before, now), expected, "case {at}");
        }
    }
}
