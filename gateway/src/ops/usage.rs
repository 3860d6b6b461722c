//! usage: counts and bytes of a directory, of everything below it, and of the directories below it.

use mantle_types::{Caller, Error, ErrorCode, Result, limits::PATH_DEPTH_MAX, name::Path, permission::Access};
use serde::Serialize;

use super::{locate::Purpose, stat::check_root};
use crate::{
    app::{Call, Gateway},
    store::SubtreeTotals,
};

pub const USAGE_DIRECTORIES_MAX: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The directory's own entries. PostgreSQL keeps their counts, so the cost is the same for any directory.
    Own,
    Subtree,
    /// Everything below it, and the totals of each directory down to this many levels.
    Levels(u32),
}

/// The totals. The native API answers them as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    pub objects: i64,
    /// Without the directory itself.
    pub directories: i64,
    pub bytes: i64,
    /// With levels: the directories below, in the order of their paths, which are relative to the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<Vec<SubtreeTotals>>,
    /// With levels: whether there are more directories below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    /// Of a whole namespace: its multipart uploads that are not finished, and the bytes of their parts. They are not among
    /// the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished_uploads: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished_upload_bytes: Option<i64>,
}

impl Gateway {
    pub async fn usage(&self, call: &Call, namespace: &str, key: &str, depth: Depth) -> Result<Usage> {
        let path = Path::parse(key)?;
        if matches!(depth, Depth::Levels(levels) if levels as usize > PATH_DEPTH_MAX) {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("depth is at most {PATH_DEPTH_MAX}")));
        }
        let directory = self.locate(&call.caller, namespace, path.components(), Purpose::Lookup).await?;
        if path.is_root() {
            check_root(&directory, &call.caller)?;
        }
        directory.check(&call.caller, Access::Read)?;
        let levels = match depth {
            Depth::Own => {
                let totals = self.store.dirstat(directory.ns, &[directory.id]).await?.pop().unwrap_or_default();
                return Ok(Usage {
                    objects: totals.entries - totals.subdirectories,
                    directories: totals.subdirectories,
                    bytes: totals.bytes,
                    below: None,
                    truncated: None,
                    unfinished_uploads: None,
                    unfinished_upload_bytes: None,
                });
            }
            Depth::Subtree => 0,
            Depth::Levels(levels) => levels,
        };
        // One row is the directory itself; one more shows whether more follow.
        let limit = USAGE_DIRECTORIES_MAX + 2;
        let mut rows = self.store.usage(directory.ns, directory.id, levels, limit).await?.into_iter();
        // Removed since the lookup.
        let Some(total) = rows.next() else { return Err(ErrorCode::NotFound.into()) };
        let mut below: Vec<SubtreeTotals> = rows.collect();
        let truncated = below.len() > USAGE_DIRECTORIES_MAX;
        below.truncate(USAGE_DIRECTORIES_MAX);
        let uploads = match path.is_root() {
            true => Some(self.store.upload_usage(directory.ns).await?),
            false => None,
        };
        Ok(Usage {
            objects: total.objects,
            directories: total.directories,
            bytes: total.bytes,
            below: (depth != Depth::Subtree).then(|| visible(&call.caller, &total, below)),
            truncated: (depth != Depth::Subtree).then_some(truncated),
            unfinished_uploads: uploads.map(|(uploads, _)| uploads),
            unfinished_upload_bytes: uploads.map(|(_, bytes)| bytes),
        })
    }
}

/// The totals of a directory are shown to whoever may read it. As in a listing, directories below one that the caller
/// may not read and search are counted but not named. Each row comes after its ancestors.
fn visible(caller: &Caller, top: &SubtreeTotals, rows: Vec<SubtreeTotals>) -> Vec<SubtreeTotals> {
    let is_open = |row: &SubtreeTotals| row.permission.may_list(caller);
    let mut closed: Option<String> = (!is_open(top)).then(String::new);
    let mut shown = Vec::with_capacity(rows.len());
    for row in rows {
        if closed.as_deref().is_some_and(|closed| row.path.starts_with(closed)) {
            continue;
        }
        closed = (!is_open(&row)).then(|| row.path.clone());
        if row.permission.may_read(caller) {
            shown.push(row);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use mantle_types::Permission;

    use super::*;

    fn row(path: &str, mode: u16) -> SubtreeTotals {
        let permission = Permission { owner: 0, group: 0, mode };
        SubtreeTotals { path: path.to_owned(), objects: 0, directories: 0, bytes: 0, permission }
    }

    /// What another user is shown where `a/b/` has this mode.
    fn shown(top: u16, mode: u16) -> Vec<String> {
        let mode_of = |path: &str| if path == "a/b/" { mode } else { 0o755 };
        let rows = ["a/", "a/b/", "a/b/c/", "a/d/", "b/"].map(|path| row(path, mode_of(path)));
        let caller = Caller { uid: 7, gids: vec![7] };
        visible(&caller, &row("", top), rows.to_vec()).into_iter().map(|row| row.path).collect()
    }

    #[test]
    fn directories_below_a_closed_one_are_not_named() {
        assert_eq!(shown(0o755, 0o755), ["a/", "a/b/", "a/b/c/", "a/d/", "b/"]);
        assert_eq!(shown(0o755, 0o754), ["a/", "a/b/", "a/d/", "b/"]);
        assert!(shown(0o700, 0o755).is_empty());
        assert!(shown(0o754, 0o755).is_empty());
    }

    #[test]
    fn totals_of_an_unreadable_directory_are_not_shown() {
        for mode in [0o700, 0o751, 0o753] {
            assert_eq!(shown(0o755, mode), ["a/", "a/d/", "b/"], "{mode:o}");
        }
    }
}
