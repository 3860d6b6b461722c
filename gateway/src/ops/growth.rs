//! Keeps every key within the limits when a directory moves to a longer path (P55). If few entries are below the directory,
//! they are read. For a larger directory the namespace's row has a bound for all keys: if no key can become too large, nothing
//! is read. Each such rename raises the bound. When it reaches the limits, the larger directory is read too.

use std::collections::HashMap;

use mantle_types::{
    DirectoryId, Error, ErrorCode, NamespaceId, Result,
    limits::{KEY_BYTES_MAX, PATH_DEPTH_MAX},
    name::Path,
};

use crate::{app::Gateway, key_sizes::KeySize};

/// Directories that are read at a time.
const DIRECTORIES_AT_ONCE: usize = 1000;

impl Gateway {
    /// Makes sure that renames know of a key of this size, before it is made.
    pub(super) async fn admit_key(&self, ns: NamespaceId, key: &Path<'_>) -> Result<()> {
        self.key_sizes.admit(&self.store, ns, key).await
    }

    /// As [`Self::admit_growth`], if few entries are below the directory. False if there are too many to read them.
    ///
    /// # Errors
    /// `PathTooDeep` or `KeyTooLong`.
    pub(super) async fn admit_small_growth(
        &self,
        ns: NamespaceId,
        moved: DirectoryId,
        destination: &Path<'_>,
    ) -> Result<bool> {
        match self.store.largest_below(moved.sole_partition()).await? {
            Some((levels, bytes)) => self.admit_below(ns, KeySize { levels, bytes }, destination).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Makes sure that every key below a directory is within the limits after it has moved. What is made meanwhile below
    /// it, and is larger than any key before, is not looked at.
    ///
    /// # Errors
    /// `PathTooDeep` or `KeyTooLong`.
    pub(super) async fn admit_growth(&self, ns: NamespaceId, moved: DirectoryId, destination: &Path<'_>) -> Result<()> {
        let below = self.read_all_below(moved).await?;
        self.admit_below(ns, below, destination).await
    }

    /// `below`: what the largest key below a directory has beyond the directory's own.
    async fn admit_below(&self, ns: NamespaceId, below: KeySize, destination: &Path<'_>) -> Result<()> {
        let to = KeySize::of(destination);
        let largest = KeySize { levels: to.levels + below.levels, bytes: to.bytes + below.bytes };
        let refuse = |code, what: &str, max| {
            Err(Error::new(code, format!("below the directory there is a key that would have more than {max} {what}")))
        };
        if largest.levels > PATH_DEPTH_MAX as i32 {
            return refuse(ErrorCode::PathTooDeep, "components", PATH_DEPTH_MAX);
        }
        if largest.bytes > KEY_BYTES_MAX as i32 {
            return refuse(ErrorCode::KeyTooLong, "bytes", KEY_BYTES_MAX);
        }
        self.key_sizes.raise(&self.store, ns, largest).await
    }

    /// What the largest key below a directory has beyond the directory's own, however much is below it.
    async fn read_all_below(&self, top: DirectoryId) -> Result<KeySize> {
        let mut largest = KeySize { levels: 0, bytes: 0 };
        let mut level = vec![(top.sole_partition(), 0)];
        // Bounded: directories that move meanwhile might lead in a circle.
        for levels in 1..=2 * PATH_DEPTH_MAX as i32 {
            let mut next = Vec::new();
            for some in level.chunks(DIRECTORIES_AT_ONCE) {
                let bytes: HashMap<_, i32> = some.iter().copied().collect();
                let pids: Vec<i64> = some.iter().map(|(pid, _)| pid.as_i64()).collect();
                for names in self.store.names_below(&pids).await? {
                    let above = bytes.get(&names.pid).copied().unwrap_or_default();
                    largest = KeySize { levels, bytes: largest.bytes.max(above + names.longest) };
                    next.extend(
                        names.directories.into_iter().map(|(id, length)| (id.sole_partition(), above + length)),
                    );
                }
            }
            if next.is_empty() {
                break;
            }
            level = next;
        }
        Ok(largest)
    }
}
