//! list_keys: S3's listings. The index resolves directories; PostgreSQL has the entries.

use std::collections::BTreeSet;

use mantle_types::{Caller, ErrorCode, PartitionId, Result, name::Path};

use super::{
    directory_name,
    locate::{Located, Purpose, Reached},
};
use crate::{
    app::{Call, Gateway},
    listing::{LAST, Page, Query, Run, Source, list, split_prefix},
    store::{Entry, Listed},
};

struct Subtree<'a> {
    gateway: &'a Gateway,
    caller: &'a Caller,
    namespace: &'a str,
    directory_key: &'a str,
    /// Key of the listed directory's parent: the listed directory's own key is in the parent's tree.
    base_key: &'a str,
    /// Partition of that parent; of the root, the root's own.
    base: PartitionId,
    /// Name of the listed directory in its parent; empty for the root.
    name: String,
    directory: Located,
}

impl Source for Subtree<'_> {
    async fn children(&self, _directory: &str, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        let Located { ns, .. } = self.directory;
        let found = self.gateway.store.list(Listed::Filled, ns, self.directory.pid(), after, prefix, limit).await?;
        Ok(found.into_iter().map(|entry| entry.shown_to(self.caller)).collect())
    }

    async fn marker(&self, _directory: &str) -> Result<Option<Entry>> {
        let found = self.gateway.store.entry(self.directory.ns, self.base, vec![self.name.clone()]).await?;
        Ok(found.filter(|entry| entry.explicit).map(|entry| entry.shown_to(self.caller)))
    }

    async fn tree(&self, after: Option<&str>, prefix: &str, limit: usize) -> Result<Run> {
        let Some(prefix) = prefix.strip_prefix(self.base_key) else { return Ok(Run::default()) };
        let after = match after.map(|after| (after, after.strip_prefix(self.base_key))) {
            Some((_, Some(after))) => Some(after).filter(|after| !after.is_empty()),
            Some((after, None)) if after >= self.base_key => return Ok(Run::default()),
            _ => None,
        };
        let store = &self.gateway.store;
        let mut entries = store.list(Listed::Tree, self.directory.ns, self.base, after, prefix, limit).await?;
        for entry in &mut entries {
            entry.name.insert_str(0, self.base_key);
        }
        let entries: Vec<Entry> = entries.into_iter().map(|entry| entry.shown_to(self.caller)).collect();
        let resume = entries.last().filter(|_| entries.len() == limit).map(|entry| entry.name.clone());
        self.hide(Run { entries, resume }).await
    }
}

/// The keys of the directories between `top` and a key, both excluded.
fn directories_between<'k>(top: &'k str, key: &'k str) -> impl Iterator<Item = &'k str> {
    let below = key.strip_prefix(top).unwrap_or_default();
    let inner = below.strip_suffix('/').unwrap_or(below);
    inner.match_indices('/').map(move |(at, _)| &key[..top.len() + at + 1])
}

impl Subtree<'_> {
    /// Removes the keys that the caller could not find directory by directory: those below a directory that it may not
    /// read and search. One RPC. The next run begins after a hidden directory.
    async fn hide(&self, run: Run) -> Result<Run> {
        if self.caller.uid == 0 {
            return Ok(run);
        }
        let top = self.directory_key;
        let keys: BTreeSet<&str> = run.entries.iter().flat_map(|entry| directories_between(top, &entry.name)).collect();
        if keys.is_empty() {
            return Ok(run);
        }
        let paths: Vec<Vec<&str>> = keys.iter().map(|key| key.trim_end_matches('/').split('/').collect()).collect();
        let borrowed: Vec<&[&str]> = paths.iter().map(Vec::as_slice).collect();
        let found = self.gateway.search_many(self.caller, self.namespace, &borrowed, Purpose::Lookup).await?;
        let mut hidden: BTreeSet<String> = BTreeSet::new();
        for (key, reached) in keys.into_iter().zip(found) {
            let allowed = match reached {
                Ok(Reached::All(directory)) => directory.permission.may_list(self.caller),
                // Moved or removed after the entries were read.
                Ok(Reached::Part { .. }) => false,
                Err(e) if e.code() == ErrorCode::AccessDenied => false,
                Err(e) => return Err(e),
            };
            if !allowed {
                hidden.insert(key.to_owned());
            }
        }
        let hider = |key: &str| directories_between(top, key).find(|key| hidden.contains(*key)).map(str::to_owned);
        let resume = run.resume.map(|key| hider(&key).map_or(key, |directory| format!("{directory}{LAST}")));
        let entries = run.entries.into_iter().filter(|entry| hider(&entry.name).is_none()).collect();
        Ok(Run { entries, resume })
    }
}

impl Gateway {
    /// A page of keys. A prefix without keys gives an empty page; a missing namespace is an error.
    pub async fn list_keys(&self, call: &Call, namespace: &str, query: &Query<'_>) -> Result<Page> {
        let (directory_key, _) = split_prefix(query.prefix);
        let path = Path::parse(directory_key).ok().filter(|_| !query.prefix.contains('\0'));
        let Some(path) = path else {
            // No such path can exist. S3 has no invalid prefixes, only prefixes without keys.
            self.head_namespace(call, namespace).await?;
            return Ok(Page::default());
        };
        let (name, _) = path.split_last().unwrap_or_default();
        let base_key = &directory_key[..directory_key.len() - name.len() - usize::from(!name.is_empty())];
        let reached = self.search(&call.caller, namespace, path.components(), Purpose::Lookup).await?;
        let Reached::All(directory) = reached else { return Ok(Page::default()) };
        directory.check_list(&call.caller)?;
        let base = if path.is_root() { directory.pid() } else { directory.parent };
        let name = if name.is_empty() { String::new() } else { directory_name(name) };
        let caller = &call.caller;
        list(&Subtree { gateway: self, caller, namespace, directory_key, base_key, base, name, directory }, query).await
    }
}

#[cfg(test)]
mod tests {
    use super::directories_between;

    #[test]
    fn directories_on_the_way_are_those_that_hold_a_key() {
        let between = |top, key| directories_between(top, key).collect::<Vec<_>>();
        assert_eq!(between("", "a/b/c"), ["a/", "a/b/"]);
        assert_eq!(between("a/", "a/b/c"), ["a/b/"]);
        assert_eq!(between("a/", "a/b/"), [""; 0]);
        assert_eq!(between("a/", "a/b/c/"), ["a/b/"]);
        assert_eq!(between("a/", "a/"), [""; 0]);
        assert_eq!(between("", "a"), [""; 0]);
    }
}
