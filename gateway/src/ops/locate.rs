//! From a path to a directory: one RPC to the index. What the index does not find, or finds on the way of a rename, is
//! looked up once in PostgreSQL before anybody is told that it does not exist (P26 and P28): a listing,
//! which PostgreSQL answers, never shows what a lookup denies.

use std::sync::Arc;

use futures::future::join_all;
use mantle_index_client::{Query, Resolution};
use mantle_types::{
    Caller, DirectoryId, Error, ErrorCode, Lease, NamespaceId, PartitionId, Permission, Result, permission::Access,
};

use crate::{
    app::Gateway,
    store::{LeasedPartition, ResolutionStart},
};

/// A directory, by its permanent id.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    /// The namespace.
    pub ns: NamespaceId,
    /// The directory.
    pub id: DirectoryId,
    /// Its permission.
    pub permission: Permission,
    /// How long this may be relied on in changes.
    pub lease: Lease,
}

impl Located {
    /// The partition that holds its entries; directories are not split yet.
    pub fn pid(&self) -> PartitionId {
        self.id.sole_partition()
    }

    /// The same, for changes.
    pub fn leased_partition(&self) -> LeasedPartition {
        LeasedPartition { pid: self.pid(), lease: self.lease }
    }

    /// May the caller do this to the directory?
    pub fn check(&self, caller: &Caller, access: Access) -> Result<()> {
        if self.permission.allows(caller, access) {
            return Ok(());
        }
        let what = match access {
            Access::Read => "read",
            Access::Write => "write to",
            Access::Search => "search",
        };
        Err(Error::new(ErrorCode::AccessDenied, format!("the caller may not {what} the directory")))
    }

    /// May the caller create, remove or replace entries here?
    pub fn check_change(&self, caller: &Caller) -> Result<()> {
        self.check(caller, Access::Search)?;
        self.check(caller, Access::Write)
    }
}

/// How far a path leads.
#[derive(Clone, Copy, Debug)]
pub enum Reached {
    /// All of it exists.
    All(Located),
    /// The first `depth` components exist; the deepest is given.
    Part {
        /// The deepest directory.
        deepest: Located,
        /// How many components exist.
        depth: usize,
        /// The next one is an object.
        is_object: bool,
    },
}

/// What the answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Without an index PostgreSQL alone may answer.
    Lookup,
    /// The change is acknowledged by the index: without one there is no point in beginning.
    DirectoryChange,
}

impl Gateway {
    /// How far a path of directories leads.
    pub async fn search(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Reached> {
        let mut found = self.search_many(caller, namespace, &[components], purpose).await?;
        found.pop().unwrap_or_else(|| Err(ErrorCode::Internal.into()))
    }

    /// How far several paths lead, with one RPC.
    pub async fn search_many(
        &self,
        caller: &Caller,
        namespace: &str,
        paths: &[&[&str]],
        purpose: Purpose,
    ) -> Result<Vec<Result<Reached>>> {
        let (name, asker): (Arc<str>, _) = (namespace.into(), Arc::new(caller.clone()));
        let query = |path: &&[&str]| Query::new(name.clone(), path.iter().copied(), asker.clone());
        let (start, answers) = match self.index.resolve(namespace, paths.iter().map(query).collect()).await {
            Ok((start, answers)) => (start, answers.into_iter().map(Some).collect()),
            Err(e) if is_without_index(&e) && purpose == Purpose::Lookup => {
                (self.index.resolution_start(namespace).await?, vec![None; paths.len()])
            }
            Err(e) => return Err(e),
        };
        let reached = paths.iter().zip(answers).map(async |(path, answer)| match answer {
            Some(resolution) if !resolution.crossed_lock && is_final(&resolution) => {
                self.found_in_index(&start, resolution)
            }
            Some(resolution) => self.search_database(caller, namespace, path, resolution.crossed_lock).await,
            // Nobody says which directories are being renamed.
            None => self.search_database(caller, namespace, path, true).await,
        });
        Ok(join_all(reached).await)
    }

    /// `unsure`: a directory on the path may be in the middle of a rename.
    async fn search_database(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        unsure: bool,
    ) -> Result<Reached> {
        metrics::counter!("mantle_gateway_lookups_in_database_total").increment(1);
        let start = self.index.resolution_start(namespace).await?;
        let Some(found) = self.store.resolve_path(namespace, components, unsure).await? else {
            return Err(Error::new(ErrorCode::NamespaceNotFound, format!("there is no namespace `{namespace}`")));
        };
        // Every directory in which a further name was looked up, found or not.
        let searched = components.len().min(found.chain.len());
        if !found.chain[..searched].iter().all(|p| p.allows(caller, Access::Search)) {
            return Err(Error::new(ErrorCode::AccessDenied, "the caller may not search a directory on the way"));
        }
        let Some(permission) = found.chain.last().copied() else {
            tracing::error!(namespace, "resolve_path answered no permissions");
            return Err(ErrorCode::Internal.into());
        };
        let located = self.located(&start, found.ns, found.id, permission);
        Ok(match found.depth == components.len() {
            true => Reached::All(located),
            false => Reached::Part { deepest: located, depth: found.depth, is_object: found.is_object },
        })
    }

    fn found_in_index(&self, start: &ResolutionStart, found: Resolution) -> Result<Reached> {
        found.outcome?;
        Ok(Reached::All(self.located(start, found.ns, found.id, found.permission)))
    }

    /// A directory that was resolved at a moment.
    pub fn located(
        &self,
        start: &ResolutionStart,
        ns: NamespaceId,
        id: DirectoryId,
        permission: Permission,
    ) -> Located {
        Located { ns, id, permission, lease: self.store.lease(start, id.sole_partition()).lease }
    }

    /// Is this the refusal of something resolved too long ago, or under other terms, so that resolving it again may help?
    pub async fn is_outdated(&self, refusal: ErrorCode) -> bool {
        match refusal {
            ErrorCode::DirectoryRemoved | ErrorCode::LeaseExpired => true,
            ErrorCode::LineageChanged => self.index.renew().await.is_ok(),
            _ => false,
        }
    }

    /// The directory at a path.
    pub async fn locate(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Located> {
        let reached = self.search(caller, namespace, components, purpose).await?;
        whole(reached, components, false)
    }

    /// The directory at a path, in which something is to be looked up or changed.
    pub async fn locate_parent(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Located> {
        let reached = self.search(caller, namespace, components, purpose).await?;
        whole(reached, components, true)
    }
}

/// All of a path or the error that says why not: `not_found`, or `parent_is_object` when an object is in the way.
pub fn whole(reached: Reached, components: &[&str], is_parent: bool) -> Result<Located> {
    let (depth, is_object) = match reached {
        Reached::All(located) => return Ok(located),
        Reached::Part { depth, is_object, .. } => (depth, is_object),
    };
    let last = depth + 1 == components.len();
    if (is_parent || !last) && is_object {
        return Err(Error::new(
            ErrorCode::ParentIsObject,
            format!("`{}` is an object", components[..=depth].join("/")),
        ));
    }
    Err(Error::new(ErrorCode::NotFound, format!("there is no directory `{}/`", components[..=depth].join("/"))))
}

/// Is there no replica that could answer?
fn is_without_index(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::IndexUnavailable | ErrorCode::UnknownGroup)
}

/// May the index's answer stand without asking PostgreSQL?
fn is_final(resolution: &Resolution) -> bool {
    match &resolution.outcome {
        Ok(()) => true,
        Err(e) => !matches!(e.code(), ErrorCode::NotFound | ErrorCode::NamespaceNotFound),
    }
}
