//! `mantle fsck`: compares TafDB with every replica of the index, in both directions, while both are in use.
//!
//! A directory in PostgreSQL must be in the replica with the same parent, name, version and permissions, and a
//! directory in the replica must be in PostgreSQL. Both change meanwhile. So rows are compared after the replica has
//! applied everything that was committed when they were read: it may be newer, but not older. A difference counts only
//! if repeated comparisons find it again, because on several PostgreSQL nodes a rename in progress shows no row, or
//! two. (The leader compares itself continuously by the same rules.)

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use indicatif::HumanCount;
use mantle_index_client::IndexClient;
use mantle_types::{DirectoryId, GroupId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use tokio_postgres::Client;

use crate::{GroupOption, IndexOptions, connect, connect::DatabaseOptions, replicas, replicas::Nodes, sql};

/// Directories compared at a time, approximately.
const SLICE_DIRECTORIES: usize = 2000;
/// A difference counts after this many further comparisons, with this pause between them.
const CONFIRMATIONS: usize = 5;
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(1);
const SHOWN_MAX: usize = 20;

/// The database role needs mantle_index's rights, and mantle_analyst's or the owner's for the check of PostgreSQL's own
/// tables.
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

pub async fn run(options: Options) -> Result<ExitCode> {
    let index = options.index.client()?;
    let url = &options.database.url;
    let (database, nodes) = (connect::connect_first(url).await?, Nodes::connect(url).await?);
    let mut is_sound = options.index_only || check(&database).await?;
    let groups = options.groups.of(&index).await;
    if groups.is_empty() {
        crate::print(&"no replica answers\n");
        is_sound = false;
    }
    for group in groups {
        let index = index.of_group(group);
        for replica in index.replicas() {
            let comparison = Comparison { database: &database, nodes: &nodes, index: &index, replica, group };
            let found = comparison.run().await;
            is_sound &= matches!(&found, Ok(found) if found.differences.is_empty());
            crate::print(&format_result(group, replica, found));
        }
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks PostgreSQL's own tables; false if it reports a problem.
async fn check(database: &Client) -> Result<bool> {
    let problems = database.query(sql::CHECK, &[]).await.context("mantle.check()")?;
    for row in &problems {
        let [ns, pid] =
            [1, 2].map(|column| row.get::<_, Option<i64>>(column).map_or_else(String::new, |n| n.to_string()));
        let [name, detail] = [3, 4].map(|column| row.get::<_, Option<String>>(column).unwrap_or_default());
        crate::print(&format!("TafDB: {} namespace {ns} directory {pid} {name:?} {detail}\n", row.get::<_, String>(0)));
    }
    if problems.is_empty() {
        crate::print(&"TafDB: sound\n");
    }
    Ok(problems.is_empty())
}

fn format_result(group: GroupId, replica: &str, found: Result<Found>) -> String {
    let found = match found {
        Ok(found) => found,
        Err(error) => return format!("group {group} {replica}: {error:#}\n"),
    };
    let compared = HumanCount(found.compared as u64);
    if found.differences.is_empty() {
        return format!("group {group} {replica}: {compared} comparisons, no difference\n");
    }
    let count = found.differences.len();
    let shown: String = found.differences.values().take(SHOWN_MAX).map(|line| format!("  {line}\n")).collect();
    format!("group {group} {replica}: {compared} comparisons, {count} directories differ\n{shown}")
}

#[derive(Default)]
struct Found {
    compared: usize,
    /// By directory, because most are found in both directions.
    differences: BTreeMap<DirectoryId, String>,
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
    async fn run(&self) -> Result<Found> {
        let mut found = Found::default();
        let namespaces = self.database.query(sql::NAMESPACES_OF_GROUP, &[&self.group.as_i32()]).await?;
        let namespaces: Vec<i64> = namespaces.iter().map(|row| row.get(0)).collect();
        let mut after = 0;
        loop {
            let limit = SLICE_DIRECTORIES as i64;
            let rows = self.database.query(sql::DIRECTORIES_AFTER, &[&after, &namespaces, &limit]).await?;
            let ids: Vec<DirectoryId> = rows.iter().map(|row| DirectoryId::from(row.get::<_, i64>(0))).collect();
            let Some(last) = ids.last() else { break };
            after = last.as_i64();
            self.compare(&ids, &mut found).await?;
        }
        let (mut part, mut parts, mut ids) = (0, 1, Vec::new());
        while part < parts {
            let (records, count) = self.index.directories_in_part(self.replica, part).await?;
            ids.extend(records.into_iter().map(|record| record.id));
            (part, parts) = (part + 1, count);
            if ids.len() >= SLICE_DIRECTORIES || part == parts {
                self.compare(&std::mem::take(&mut ids), &mut found).await?;
            }
        }
        Ok(found)
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
            ids = differences.iter().map(|(id, _)| *id).collect();
            if ids.is_empty() {
                break;
            }
        }
        found.differences.extend(differences);
        Ok(())
    }

    async fn differences(&self, ids: &[DirectoryId]) -> Result<Vec<(DirectoryId, String)>> {
        // A directory without a row counts only if the index had it before the rows were read.
        let before = self.known(ids).await?;
        let rows = self.rows(ids).await?;
        replicas::wait_leader(self.index, &self.nodes.flushed().await?, &|_| ()).await?;
        let now = self.known(ids).await?;
        let ids: BTreeSet<DirectoryId> = ids.iter().copied().collect();
        Ok(ids
            .into_iter()
            .filter(|id| differ(rows.get(id), before.get(id), now.get(id)))
            .map(|id| {
                (
                    id,
                    format!("{id}: PostgreSQL {}, index {}", format_record(rows.get(&id)), format_record(now.get(&id))),
                )
            })
            .collect())
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
                permission: Permission { owner: owner as u32, group: group as u32, mode: (mode & 0o777) as u16 },
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

fn format_record(record: Option<&DirectoryRecord>) -> String {
    let Some(DirectoryRecord { name, pid, version, permission, .. }) = record else { return "has none".to_owned() };
    let Permission { owner, group, mode } = permission;
    format!("{name:?} in {pid}, version {version}, {owner}:{group} {mode:o}")
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
