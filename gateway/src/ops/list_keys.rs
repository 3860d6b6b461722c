//! list_keys: S3's listings. The index resolves the directory; PostgreSQL has the entries, which are read by the directory's id.
//! So if another directory takes over the path meanwhile, it is not read without its own permission check.

use mantle_types::{Caller, Result, name::Path};

use super::{
    directory_name,
    locate::{Located, Purpose, Reached},
};
use crate::{
    app::{Call, Gateway},
    listing::{Page, Query, Source, list, split_prefix},
    store::{Entry, Listed, Store},
};

struct Subtree<'a> {
    store: &'a Store,
    caller: &'a Caller,
    /// The listed directory's.
    key: &'a str,
    /// In its parent; empty for the root, which is no key.
    name: String,
    directory: Located,
}

impl Source for Subtree<'_> {
    async fn children(&self, _directory: &str, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        let Located { ns, .. } = self.directory;
        let found = self.store.list(Listed::Filled, ns, self.directory.pid(), after, prefix, limit).await?;
        Ok(found.into_iter().map(|entry| entry.shown_to(self.caller)).collect())
    }

    async fn marker(&self, _directory: &str) -> Result<Option<Entry>> {
        if self.name.is_empty() {
            return Ok(None);
        }
        let Located { ns, parent, id, .. } = self.directory;
        let found = self.store.entry(ns, parent, vec![self.name.clone()]).await?;
        // Another directory may have the name by now.
        let own = found.filter(|entry| entry.explicit && entry.id.as_directory() == id);
        Ok(own.map(|entry| entry.shown_to(self.caller)))
    }

    async fn tree(&self, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        let Some(below) = prefix.strip_prefix(self.key) else { return Ok(Vec::new()) };
        let after = after.filter(|after| *after >= self.key);
        let after_below = match after.map(|after| after.strip_prefix(self.key)) {
            // Behind all keys that begin with the directory's.
            Some(None) => return Ok(Vec::new()),
            Some(Some(below)) => Some(below).filter(|below| !below.is_empty()),
            None => None,
        };
        let mut entries = Vec::new();
        if after.is_none() && below.is_empty() {
            let marker = self.marker(self.key).await?;
            entries.extend(marker.map(|entry| Entry { name: self.key.to_owned(), ..entry }));
        }
        let room = limit - entries.len();
        if room > 0 {
            let Located { ns, .. } = self.directory;
            let pid = self.directory.pid();
            let found = self.store.list_tree(self.caller, ns, pid, after_below, below, room).await?;
            entries.extend(found.into_iter().map(|mut entry| {
                entry.name.insert_str(0, self.key);
                entry.shown_to(self.caller)
            }));
        }
        Ok(entries)
    }
}

impl Gateway {
    /// A page of keys. A prefix without keys gives an empty page; a missing namespace is an error.
    pub async fn list_keys(&self, call: &Call, namespace: &str, query: &Query<'_>) -> Result<Page> {
        let (key, _) = split_prefix(query.prefix);
        let path = Path::parse(key).ok().filter(|_| !query.prefix.contains('\0'));
        let Some(path) = path else {
            // No such path can exist. S3 has no invalid prefixes, only prefixes without keys.
            self.head_namespace(call, namespace).await?;
            return Ok(Page::default());
        };
        let caller = &call.caller;
        let reached = self.search(caller, namespace, path.components(), Purpose::Lookup).await?;
        let Reached::All(directory) = reached else { return Ok(Page::default()) };
        directory.check_list(caller)?;
        let name = path.split_last().map(|(name, _)| directory_name(name)).unwrap_or_default();
        list(&Subtree { store: &self.store, caller, key, name, directory }, query).await
    }
}
