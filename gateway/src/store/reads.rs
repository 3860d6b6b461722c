//! Reads of entries, listings and totals.

use bytes::Bytes;
use mantle_types::{Caller, DirectoryId, ErrorCode, NamespaceId, PartitionId, Permission, Result};
use serde::Serialize;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{
    Store,
    database::Param,
    entries, packed,
    pages::PageKey,
    record::{Fields, Record},
    rows::{self, Entry},
    sql::{self, Statement},
};

/// The entries of a listing.
pub enum Listed {
    /// The directory's children.
    Children,
    /// Its children without the implicit directories that hold no key.
    Filled,
}

/// The names in a directory, by their bytes; those of directories with their slash.
pub struct NamesBelow {
    pub pid: PartitionId,
    pub longest: i32,
    pub directories: Vec<(DirectoryId, i32)>,
}

/// Totals of a directory's own entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectoryTotals {
    /// Entries, subdirectories included.
    pub entries: i64,
    pub subdirectories: i64,
    pub bytes: i64,
}

/// Totals of everything below a directory. The native API answers them as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct SubtreeTotals {
    /// Relative to the directory that was asked for.
    pub path: String,
    pub objects: i64,
    pub directories: i64,
    pub bytes: i64,
    /// Of the directory itself.
    #[serde(skip)]
    pub permission: Permission,
}

impl Store {
    /// Entries by place, in the order of `places`; `None` for a missing entry. One statement; see [`Store::entry`].
    pub async fn stat(&self, ns: NamespaceId, places: &[(PartitionId, &str)]) -> Result<Vec<Option<Entry>>> {
        let (pids, names): (Vec<i64>, Vec<&str>) = places.iter().map(|(pid, name)| (pid.as_i64(), *name)).unzip();
        let Some((first, _)) = places.first() else { return Ok(Vec::new()) };
        let params: [Param<'_>; 3] =
            [(&ns.as_i64(), Type::INT8), (&pids, Type::INT8_ARRAY), (&names, Type::TEXT_ARRAY)];
        let rows = self.query_at(*first, &sql::STAT, &params).await?;
        entries::by_place(&rows, places.len()).into_iter().collect()
    }

    /// Bytes inside PostgreSQL that an object of a partition names; `None` if it no longer does.
    pub async fn inline_bytes(&self, pid: PartitionId, locator: &str) -> Result<Option<Bytes>> {
        let params: [Param<'_>; 2] = [(&pid.as_i64(), Type::INT8), (&locator, Type::TEXT)];
        let rows = self.query_at(pid, &sql::INLINE_BYTES, &params).await?;
        rows.first().map(|row| rows::get::<&[u8]>(row, "bytes").map(Bytes::copy_from_slice)).transpose()
    }

    /// Totals of the directories' own entries, in the order of `ids`.
    pub async fn dirstat(&self, ns: NamespaceId, ids: &[DirectoryId]) -> Result<Vec<DirectoryTotals>> {
        let Some(first) = ids.first() else { return Ok(Vec::new()) };
        let numbers: Vec<i64> = ids.iter().map(|id| id.as_i64()).collect();
        let params: [Param<'_>; 2] = [(&ns.as_i64(), Type::INT8), (&numbers, Type::INT8_ARRAY)];
        let rows = self.query_at(first.sole_partition(), &sql::DIRSTAT, &params).await?;
        let read = |row| match rows::code(row)? {
            None => Ok(DirectoryTotals {
                entries: rows::get_opt(row, "entries")?.unwrap_or_default(),
                subdirectories: rows::get_opt(row, "subdirectories")?.unwrap_or_default(),
                bytes: rows::get_opt(row, "bytes")?.unwrap_or_default(),
            }),
            Some(code) => Err(code.into()),
        };
        rows.iter().map(read).collect()
    }

    /// Entries in a directory in key order, after a name, with a prefix. The page goes with pages of others where it can.
    pub async fn list(
        &self,
        listed: Listed,
        ns: NamespaceId,
        pid: PartitionId,
        start_after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Entry>> {
        let is_filled = match listed {
            Listed::Children => false,
            Listed::Filled => true,
        };
        let (start_after_owned, prefix_owned) = (start_after.map(str::to_owned), prefix.to_owned());
        let key =
            PageKey { ns, pid, start_after: start_after_owned, prefix: prefix_owned, limit: limit as i32, is_filled };
        match self.pages.read(key).await? {
            Some(page) => packed::entries(&page),
            None => {
                let statement = if is_filled { &sql::LIST_FILLED } else { &sql::LIST };
                let params: [Param<'_>; 5] = [
                    (&ns.as_i64(), Type::INT8),
                    (&pid.as_i64(), Type::INT8),
                    (&start_after, Type::TEXT),
                    (&prefix, Type::TEXT),
                    (&(limit as i32), Type::INT4),
                ];
                self.entries_of(pid, statement, &params).await
            }
        }
    }

    /// Objects and explicit directories below a directory in key order, after a key, with a prefix; keys and names are
    /// relative to the directory. Without those below another directory that the caller may not read and search.
    pub async fn list_tree(
        &self,
        caller: &Caller,
        ns: NamespaceId,
        pid: PartitionId,
        start_after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Entry>> {
        let params: [Param<'_>; 6] = [
            (&ns.as_i64(), Type::INT8),
            (&pid.as_i64(), Type::INT8),
            (&start_after, Type::TEXT),
            (&prefix, Type::TEXT),
            (&(limit as i32), Type::INT4),
            (&caller.to_string(), Type::TEXT),
        ];
        self.entries_of(pid, &sql::LIST_TREE, &params).await
    }

    async fn entries_of(
        &self,
        pid: PartitionId,
        statement: &'static Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Entry>> {
        let rows = self.query_at(pid, statement, params).await?;
        rows.iter().map(|row| Entry::read(&row.field::<Record<'_>>(0)?, 0)).collect()
    }

    /// The components and bytes that the largest key below a directory has beyond the directory's own; `None` if too much is
    /// below it to be read.
    pub async fn largest_below(&self, directory: PartitionId) -> Result<Option<(i32, i32)>> {
        let row = self.query_one(&sql::LARGEST_BELOW, &[(&directory.as_i64(), Type::INT8)]).await?;
        let size = (rows::get_opt::<i32>(&row, "levels")?, rows::get_opt::<i32>(&row, "bytes")?);
        Ok(size.0.zip(size.1))
    }

    /// The names in directories; none of a directory without entries.
    pub async fn names_below(&self, directories: &[i64]) -> Result<Vec<NamesBelow>> {
        let rows = self.query(&sql::NAMES_BELOW, &[(&directories, Type::INT8_ARRAY)]).await?;
        let read = |row| {
            let (ids, lengths): (Vec<i64>, Vec<i32>) = (rows::get(row, "directories")?, rows::get(row, "lengths")?);
            Ok(NamesBelow {
                pid: PartitionId::from(rows::get::<i64>(row, "pid")?),
                longest: rows::get(row, "longest")?,
                directories: ids.into_iter().map(DirectoryId::from).zip(lengths).collect(),
            })
        };
        rows.iter().map(read).collect()
    }

    /// The directories in directories, with their permissions.
    pub async fn directories_below(&self, directories: &[DirectoryId]) -> Result<Vec<(DirectoryId, Permission)>> {
        let ids: Vec<i64> = directories.iter().map(|id| id.as_i64()).collect();
        let rows = self.query(&sql::DIRECTORIES_BELOW, &[(&ids, Type::INT8_ARRAY)]).await?;
        rows.iter().map(|row| Ok((rows::get::<i64>(row, "id")?.into(), rows::permission(row)?))).collect()
    }

    /// The identity of the metadata database.
    pub async fn cluster_id(&self) -> Result<Uuid> {
        let rows = self.query(&sql::CLUSTER_ID, &[]).await?;
        rows::get(rows.first().ok_or(ErrorCode::Internal)?, "cluster_id")
    }

    /// The locators that no object names.
    pub async fn unused_locators(&self, locators: &[String]) -> Result<Vec<String>> {
        let rows = self.query(&sql::UNUSED_LOCATORS, &[(&locators, Type::TEXT_ARRAY)]).await?;
        rows.iter().map(|row| rows::get(row, "locator")).collect()
    }

    /// Totals of a directory and of those below it down to a depth. At most `limit` rows, the directory itself (with an
    /// empty path) first. Empty when the directory does not exist.
    pub async fn usage(
        &self,
        ns: NamespaceId,
        directory: DirectoryId,
        depth: u32,
        limit: usize,
    ) -> Result<Vec<SubtreeTotals>> {
        let (depth, limit) = (depth as i32, limit as i64);
        let params: [Param<'_>; 4] =
            [(&ns.as_i64(), Type::INT8), (&directory.as_i64(), Type::INT8), (&depth, Type::INT4), (&limit, Type::INT8)];
        let read = |row| {
            Ok(SubtreeTotals {
                path: rows::get(row, "directory")?,
                objects: rows::get(row, "objects")?,
                directories: rows::get(row, "directories")?,
                bytes: rows::get(row, "bytes")?,
                permission: rows::permission(row)?,
            })
        };
        self.query(&sql::USAGE, &params).await?.iter().map(read).collect()
    }
}
