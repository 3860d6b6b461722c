//! stat: reads an entry. The index resolves the parent. The entry comes from PostgreSQL, because the index has no objects.

use std::collections::HashMap;

use futures::future::join_all;
use mantle_types::{
    Caller, DirectoryId, Error, ErrorCode, NamespaceId, PartitionId, Result, name::Path, permission::Access,
};

use super::{
    directory_name,
    locate::{Located, Purpose, Reached},
};
use crate::{
    app::{Call, Gateway},
    store::{Entry, LeasedPartition},
};

#[derive(Clone, Debug)]
pub struct Found {
    pub ns: NamespaceId,
    pub partition: LeasedPartition,
    pub entry: Entry,
}

/// The entries that a key without a trailing slash may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Objects only, as in S3.
    Exact,
    /// An object, or the directory of that name.
    Either,
}

/// The parent's components, and the names to read in it.
fn names_at<'a>(path: &Path<'a>, naming: Naming) -> Option<(Vec<&'a str>, Vec<String>)> {
    let (name, parents) = path.split_last()?;
    let names = match (path.is_directory(), naming) {
        (true, _) => vec![directory_name(name)],
        (false, Naming::Exact) => vec![name.to_owned()],
        (false, Naming::Either) => vec![name.to_owned(), directory_name(name)],
    };
    Some((parents.to_vec(), names))
}

impl Gateway {
    /// The entry at a key, as it is shown to the caller.
    pub async fn stat(&self, call: &Call, namespace: &str, key: &str, naming: Naming) -> Result<Entry> {
        let path = Path::parse(key)?;
        let entry = match path.split_last() {
            Some((name, _)) if path.is_directory() => self.stat_directory(call, namespace, key, &path, name).await?,
            _ => self.find(call, namespace, key, naming).await?.entry,
        };
        Ok(entry.shown_to(&call.caller))
    }

    /// The entry of a directory. The index knows whether there is one, so a miss takes no statement (P58).
    async fn stat_directory(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        path: &Path<'_>,
        name: &str,
    ) -> Result<Entry> {
        let (components, missing) = (path.components(), || not_found(key));
        let directory = match self.search(&call.caller, namespace, components, Purpose::Lookup).await? {
            Reached::Part { depth, .. } if depth + 1 == components.len() => return Err(missing()),
            reached => self.whole(reached, components, false).await?,
        };
        let found = self.store.entry(directory.ns, directory.parent, vec![directory_name(name)]).await?;
        found.ok_or_else(missing)
    }

    /// The entry at a key, with everything that the database has of it but its bytes.
    pub(super) async fn find(&self, call: &Call, namespace: &str, key: &str, naming: Naming) -> Result<Found> {
        self.find_entry(call, namespace, key, naming, false).await
    }

    /// The same, perhaps with its bytes ([`Store::entry_with_bytes`](crate::store::Store::entry_with_bytes)).
    pub(super) async fn find_entry(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        naming: Naming,
        with_bytes: bool,
    ) -> Result<Found> {
        let path = Path::parse(key)?;
        let (ns, partition, names) = match names_at(&path, naming) {
            Some((parents, names)) => {
                let parent = self.locate_parent(&call.caller, namespace, &parents, Purpose::Lookup).await?;
                parent.check(&call.caller, Access::Search)?;
                (parent.ns, parent.leased_partition(), names)
            }
            None => {
                let start = self.index.resolution_start(namespace).await?;
                let root = self.locate(&call.caller, namespace, &[], Purpose::Lookup).await?;
                check_root(&root, &call.caller)?;
                let super_root = self.store.lease(&start, DirectoryId::SUPER_ROOT.sole_partition());
                (root.ns, super_root, vec![directory_name(namespace)])
            }
        };
        let found = match with_bytes {
            true => self.store.entry_with_bytes(ns, partition.pid, names).await?,
            false => self.store.entry(ns, partition.pid, names).await?,
        };
        let entry = found.ok_or_else(|| not_found(key))?;
        Ok(Found { ns, partition, entry })
    }

    /// The entries at many keys, with one RPC and one SQL call.
    pub async fn stat_many(&self, call: &Call, namespace: &str, keys: &[String]) -> Result<Vec<Result<Entry>>> {
        let mut parents: Vec<Vec<&str>> = Vec::new();
        let mut numbers: HashMap<Vec<&str>, usize> = HashMap::new();
        let mut wanted = Vec::with_capacity(keys.len());
        for key in keys {
            wanted.push(Path::parse(key).map(|path| {
                let (components, names) =
                    names_at(&path, Naming::Either).unwrap_or_else(|| (vec![], vec![directory_name(namespace)]));
                let number = *numbers.entry(components.clone()).or_insert_with(|| {
                    parents.push(components);
                    parents.len() - 1
                });
                (number, names, path.is_root())
            }));
        }
        let paths: Vec<&[&str]> = parents.iter().map(Vec::as_slice).collect();
        let reached = self.search_many(&call.caller, namespace, &paths, Purpose::Lookup).await?;
        let located =
            reached.into_iter().zip(&paths).map(async |(reached, path)| self.whole(reached?, path, true).await);
        let directories: Vec<Result<Located>> = join_all(located).await;
        self.stat_located(call, keys, wanted, &directories).await
    }

    async fn stat_located(
        &self,
        call: &Call,
        keys: &[String],
        wanted: Vec<Result<(usize, Vec<String>, bool)>>,
        directories: &[Result<Located>],
    ) -> Result<Vec<Result<Entry>>> {
        let mut places: Vec<(PartitionId, String)> = Vec::new();
        let mut ns = NamespaceId::default();
        let mut spans = Vec::with_capacity(wanted.len());
        for want in wanted {
            let span = want.and_then(|(number, names, is_root)| {
                let directory = directories[number].clone()?;
                match is_root {
                    true => check_root(&directory, &call.caller)?,
                    false => directory.check(&call.caller, Access::Search)?,
                }
                ns = directory.ns;
                let pid = if is_root { DirectoryId::SUPER_ROOT.sole_partition() } else { directory.pid() };
                let first = places.len();
                places.extend(names.into_iter().map(|name| (pid, name)));
                Ok(first..places.len())
            });
            spans.push(span);
        }
        let borrowed: Vec<(PartitionId, &str)> = places.iter().map(|(pid, name)| (*pid, name.as_str())).collect();
        let mut entries = self.store.stat(ns, &borrowed).await?;
        if entries.len() != borrowed.len() {
            tracing::error!(asked = borrowed.len(), answered = entries.len(), "stat answered another number of rows");
            return Err(ErrorCode::Internal.into());
        }
        let pick = |(span, key): (Result<std::ops::Range<usize>>, &String)| {
            span.and_then(|span| entries[span].iter_mut().find_map(Option::take).ok_or_else(|| not_found(key)))
        };
        let shown = |found: Result<Entry>| found.map(|entry| entry.shown_to(&call.caller));
        Ok(spans.into_iter().zip(keys).map(pick).map(shown).collect())
    }
}

/// An error unless the caller may see a namespace's root: it may search it, or owns it.
pub(super) fn check_root(root: &Located, caller: &Caller) -> Result<()> {
    if root.permission.is_owned_by(caller) { Ok(()) } else { root.check(caller, Access::Search) }
}

fn not_found(key: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no entry `{key}`"))
}
