//! Reads.

use mantle_types::{ErrorCode, Permission, Result};
use tokio_postgres::types::Type;

use super::{
    Store,
    rows::{self, Entry},
    sql,
};

/// What a directory holds itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectoryTotals {
    /// Entries, subdirectories included.
    pub entries: i64,
    /// Subdirectories.
    pub subdirectories: i64,
    /// Bytes of the objects.
    pub bytes: i64,
}

/// What is below a directory.
#[derive(Clone, Debug)]
pub struct SubtreeTotals {
    /// Its path, relative to where the search began.
    pub path: String,
    /// Objects.
    pub objects: i64,
    /// Directories, without this one.
    pub directories: i64,
    /// Bytes of the objects.
    pub bytes: i64,
    /// Its permission.
    pub permission: Permission,
}

impl Store {
    /// Entries by place, in the order asked for; `None` for what does not exist.
    pub async fn stat(&self, ns: i64, places: &[(i64, &str)]) -> Result<Vec<Option<Entry>>> {
        let pids: Vec<i64> = places.iter().map(|(pid, _)| *pid).collect();
        let names: Vec<&str> = places.iter().map(|(_, name)| *name).collect();
        let Some(first) = pids.first() else { return Ok(Vec::new()) };
        let params = [(&ns as _, Type::INT8), (&pids as _, Type::INT8_ARRAY), (&names as _, Type::TEXT_ARRAY)];
        let rows = self.query_at(*first, &sql::STAT, &params).await?;
        let read = |row| match rows::code(row)? {
            None => Entry::read(row).map(Some),
            Some(ErrorCode::NotFound) => Ok(None),
            Some(code) => Err(code.into()),
        };
        rows.iter().map(read).collect()
    }

    /// What directories hold themselves, in the order asked for.
    pub async fn dirstat(&self, ns: i64, ids: &[i64]) -> Result<Vec<DirectoryTotals>> {
        let Some(first) = ids.first() else { return Ok(Vec::new()) };
        let rows = self.query_at(*first, &sql::DIRSTAT, &[(&ns, Type::INT8), (&ids, Type::INT8_ARRAY)]).await?;
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

    /// Children of a directory in key order, after a name, with a prefix.
    pub async fn list(
        &self,
        ns: i64,
        pid: i64,
        start_after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Entry>> {
        self.page(&sql::LIST, ns, pid, start_after, prefix, limit).await
    }

    /// Objects and explicit directories below a directory in key order; names are keys relative to it.
    pub async fn list_tree(
        &self,
        ns: i64,
        pid: i64,
        start_after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Entry>> {
        self.page(&sql::LIST_TREE, ns, pid, start_after, prefix, limit).await
    }

    async fn page(
        &self,
        statement: &'static sql::Statement,
        ns: i64,
        pid: i64,
        start_after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Entry>> {
        let limit = limit as i32;
        let after = (&start_after as _, Type::TEXT);
        let prefix = (&prefix as _, Type::TEXT);
        let at = pid;
        let directory = [(&ns as _, Type::INT8), (&pid as _, Type::INT8)];
        let [ns, pid] = directory;
        // The two functions differ in the order of these parameters.
        let (third, fourth) = if statement.name == sql::LIST.name { (after, prefix) } else { (prefix, after) };
        let rows = self.query_at(at, statement, &[ns, pid, third, fourth, (&limit, Type::INT4)]).await?;
        rows.iter().map(Entry::read).collect()
    }

    /// Of these locators, those that no object names.
    pub async fn unused_locators(&self, locators: &[String]) -> Result<Vec<String>> {
        let rows = self.query(&sql::UNUSED_LOCATORS, &[(&locators, Type::TEXT_ARRAY)]).await?;
        rows.iter().map(|row| rows::get(row, "locator")).collect()
    }

    /// What is below a directory, and below each directory in it down to a depth: at most `limit` rows, the directory
    /// itself (with the empty path) first. None when there is no such directory.
    pub async fn du(&self, namespace: &str, path: &str, depth: u32, limit: usize) -> Result<Vec<SubtreeTotals>> {
        let (depth, limit) = (depth as i32, limit as i64);
        let params = [
            (&namespace as _, Type::TEXT),
            (&path as _, Type::TEXT),
            (&depth as _, Type::INT4),
            (&limit as _, Type::INT8),
        ];
        let read = |row| {
            Ok(SubtreeTotals {
                path: rows::get(row, "directory")?,
                objects: rows::get(row, "objects")?,
                directories: rows::get(row, "directories")?,
                bytes: rows::get(row, "bytes")?,
                permission: Permission {
                    owner: rows::get::<i32>(row, "owner")? as u32,
                    group: rows::get::<i32>(row, "grp")? as u32,
                    mode: rows::get::<i32>(row, "mode")? as u16,
                },
            })
        };
        self.query(&sql::DU, &params).await?.iter().map(read).collect()
    }
}
