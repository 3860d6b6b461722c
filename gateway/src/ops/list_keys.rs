//! list_keys: S3's listings. Directories are resolved by the index; the entries come from PostgreSQL.

use mantle_types::{ErrorCode, Result, name::Path, permission::Access};

use super::{
    directory_name,
    locate::{Located, Purpose, Reached},
};
use crate::{
    app::{Call, Gateway},
    listing::{Page, Query, Source, list, split_prefix},
    store::Entry,
};

/// The part of a namespace that a prefix selects, resolved.
struct Subtree<'a> {
    gateway: &'a Gateway,
    /// Key of the directory that holds the listed ones: its tree has the listed directory's own key in it.
    base_key: &'a str,
    base: Located,
    /// Name of the listed directory in its parent; empty for the root.
    name: String,
    /// The listed directory.
    directory: Located,
}

impl Source for Subtree<'_> {
    async fn children(&self, _directory: &str, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        self.gateway.store.list(self.directory.ns, self.directory.pid(), after, prefix, limit).await
    }

    async fn marker(&self, _directory: &str) -> Result<Option<Entry>> {
        let found = self.gateway.store.stat(self.base.ns, &[(self.base.pid(), &self.name)]).await?;
        Ok(found.into_iter().flatten().find(|entry| entry.explicit))
    }

    async fn tree(&self, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        let Some(prefix) = prefix.strip_prefix(self.base_key) else { return Ok(vec![]) };
        let after = match after {
            Some(after) => match after.strip_prefix(self.base_key) {
                Some(after) => Some(after).filter(|after| !after.is_empty()),
                None if after < self.base_key => None,
                None => return Ok(vec![]),
            },
            None => None,
        };
        let mut entries = self.gateway.store.list_tree(self.base.ns, self.base.pid(), after, prefix, limit).await?;
        for entry in &mut entries {
            entry.name.insert_str(0, self.base_key);
        }
        Ok(entries)
    }
}

impl Gateway {
    /// A page of keys. A prefix that leads nowhere selects nothing; a namespace that does not exist is an error.
    pub async fn list_keys(&self, call: &Call, namespace: &str, query: &Query<'_>) -> Result<Page> {
        let (directory_key, _) = split_prefix(query.prefix);
        let Ok(path) = Path::parse(directory_key) else {
            // Not a path that could exist: S3 has no bad prefixes, only ones without keys.
            self.head_namespace(call, namespace).await?;
            return Ok(Page::default());
        };
        let (name, parents) = path.split_last().unwrap_or_default();
        let base_key = &directory_key[..directory_key.len() - name.len() - usize::from(!name.is_empty())];
        let paths: &[&[&str]] = if path.is_root() { &[&[]] } else { &[parents, path.components()] };
        let mut found = Vec::with_capacity(2);
        for reached in self.search_many(&call.caller, namespace, paths, Purpose::Lookup).await? {
            match reached? {
                Reached::All(located) => found.push(located),
                Reached::Part { .. } => return Ok(Page::default()),
            }
        }
        let (Some(base), Some(directory)) = (found.first().copied(), found.last().copied()) else {
            return Err(ErrorCode::Internal.into());
        };
        directory.check(&call.caller, Access::Read)?;
        let name = if name.is_empty() { String::new() } else { directory_name(name) };
        list(&Subtree { gateway: self, base_key, base, name, directory }, query).await
    }
}
