//! Resolves a path to a directory, with one RPC to the index. A path that the index does not find, or that crosses a
//! rename's lock, is resolved in PostgreSQL before the client gets 404 (P26, P28). PostgreSQL answers listings, so a
//! listing never shows an entry that a lookup denies.

use std::sync::Arc;

use futures::future::join_all;
use mantle_index_client::{Query, Resolution};
use mantle_types::{
    Caller, DirectoryId, Error, ErrorCode, Lease, NamespaceId, PartitionId, Permission, Result, permission::Access,
};

use crate::{
    app::Gateway,
    store::{LeasedPartition, ResolutionStart, no_namespace},
};

/// A directory, by its permanent id.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    pub ns: NamespaceId,
    pub id: DirectoryId,
    pub permission: Permission,
    pub lease: Lease,
}

impl Located {
    /// The partition of its entries; directories are not split yet.
    pub fn pid(&self) -> PartitionId {
        self.id.sole_partition()
    }

    /// The partition and its lease, for a change.
    pub fn leased_partition(&self) -> LeasedPartition {
        LeasedPartition { pid: self.pid(), lease: self.lease, permission: Some(self.permission) }
    }

    /// An error unless the caller has this access.
    pub fn check(&self, caller: &Caller, access: Access) -> Result<()> {
        let verb = match access {
            _ if self.permission.allows(caller, access) => return Ok(()),
            Access::Read => "read",
            Access::Write => "write to",
            Access::Search => "search",
        };
        Err(Error::new(ErrorCode::AccessDenied, format!("the caller may not {verb} the directory")))
    }

    /// An error unless the caller may see the entries here, with their attributes.
    pub fn check_list(&self, caller: &Caller) -> Result<()> {
        self.check(caller, Access::Read)?;
        self.check(caller, Access::Search)
    }

    /// An error unless the caller may create and remove entries here.
    pub fn check_change(&self, caller: &Caller) -> Result<()> {
        self.check(caller, Access::Search)?;
        self.check(caller, Access::Write)
    }
}

/// How far a path exists.
#[derive(Clone, Copy, Debug)]
pub enum Reached {
    All(Located),
    /// The first `depth` components exist.
    Part {
        deepest: Located,
        depth: usize,
        /// The next component is an object.
        is_object: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Without an index, PostgreSQL alone answers.
    Lookup,
    /// A change that the index acknowledges. Without an index it fails before it begins.
    DirectoryChange,
}

impl Gateway {
    /// Resolves a path of directories as far as it exists.
    pub async fn search(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Reached> {
        let (start, mut answers) = self.ask_index(caller, namespace, &[components], purpose).await?;
        let answer = answers.pop().ok_or(ErrorCode::Internal)?;
        self.reached(caller, namespace, components, &start, answer).await
    }

    /// Resolves several paths with one RPC.
    pub async fn search_many(
        &self,
        caller: &Caller,
        namespace: &str,
        paths: &[&[&str]],
        purpose: Purpose,
    ) -> Result<Vec<Result<Reached>>> {
        let (start, answers) = self.ask_index(caller, namespace, paths, purpose).await?;
        let paths = paths.iter().zip(answers);
        let reached = paths.map(|(path, answer)| self.reached(caller, namespace, path, &start, answer));
        Ok(join_all(reached).await)
    }

    /// The index's answers, one for each path; `None` if there is no index.
    async fn ask_index(
        &self,
        caller: &Caller,
        namespace: &str,
        paths: &[&[&str]],
        purpose: Purpose,
    ) -> Result<(ResolutionStart, Vec<Option<Resolution>>)> {
        let (name, asker): (Arc<str>, _) = (namespace.into(), Arc::new(caller.clone()));
        let query = |path: &&[&str]| Query::new(name.clone(), path.iter().copied(), asker.clone());
        match self.index.resolve(namespace, paths.iter().map(query).collect()).await {
            Ok((start, answers)) => Ok((start, answers.into_iter().map(Some).collect())),
            Err(e) if is_without_index(&e) && purpose == Purpose::Lookup => {
                Ok((self.index.resolution_start(namespace).await?, vec![None; paths.len()]))
            }
            Err(e) => Err(e),
        }
    }

    /// How far a path exists, by the index's answer or by PostgreSQL. PostgreSQL is asked rarely, and in a future of its own:
    /// each request would make room for it otherwise.
    async fn reached(
        &self,
        caller: &Caller,
        namespace: &str,
        path: &[&str],
        start: &ResolutionStart,
        answer: Option<Resolution>,
    ) -> Result<Reached> {
        let crosses_lock = match answer {
            Some(found) if !found.crossed_lock && is_final(&found) => {
                found.outcome?;
                return Ok(Reached::All(self.located(start, found.ns, found.id, found.permission)));
            }
            Some(resolution) => resolution.crossed_lock,
            // Without the index no one knows which directories are being renamed.
            None => true,
        };
        Box::pin(self.search_database(caller, namespace, path, crosses_lock)).await
    }

    /// `crosses_lock`: a directory on the path may be in the middle of a rename.
    async fn search_database(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        crosses_lock: bool,
    ) -> Result<Reached> {
        metrics::counter!("mantle_gateway_lookups_in_database_total").increment(1);
        let start = self.index.resolution_start(namespace).await?;
        let found = self.store.resolve_path(namespace, components, crosses_lock).await?;
        let found = found.ok_or_else(|| no_namespace(namespace))?;
        // Every directory in which a name was looked up, found or not.
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

    /// A directory that was resolved, with the lease that its resolution gives.
    pub fn located(&self, at: &ResolutionStart, ns: NamespaceId, id: DirectoryId, permission: Permission) -> Located {
        Located { ns, id, permission, lease: self.store.lease(at, id.sole_partition()).lease }
    }

    /// Whether resolving again may help against a refusal: the resolution is too old, or its context has changed.
    pub async fn is_outdated(&self, refusal: ErrorCode) -> bool {
        match refusal {
            ErrorCode::DirectoryRemoved | ErrorCode::LeaseExpired => true,
            ErrorCode::LineageChanged => self.index.renew().await.is_ok(),
            _ => false,
        }
    }

    pub async fn locate(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Located> {
        whole(self.search(caller, namespace, components, purpose).await?, components, false)
    }

    /// The directory at a path, as the parent of the entry that is wanted.
    pub async fn locate_parent(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Located> {
        whole(self.search(caller, namespace, components, purpose).await?, components, true)
    }
}

/// The directory, if its whole path exists. Otherwise `not_found`, or `parent_is_object` if the path crosses an object.
pub fn whole(reached: Reached, components: &[&str], is_parent: bool) -> Result<Located> {
    let (depth, is_object) = match reached {
        Reached::All(located) => return Ok(located),
        Reached::Part { depth, is_object, .. } => (depth, is_object),
    };
    let (key, is_last) = (components[..=depth].join("/"), depth + 1 == components.len());
    Err(match (is_parent || !is_last) && is_object {
        true => Error::new(ErrorCode::ParentIsObject, format!("`{key}` is an object")),
        false => Error::new(ErrorCode::NotFound, format!("there is no directory `{key}/`")),
    })
}

/// Whether no replica can answer.
fn is_without_index(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::IndexUnavailable | ErrorCode::UnknownGroup)
}

/// Whether the index's answer needs no check in PostgreSQL.
fn is_final(resolution: &Resolution) -> bool {
    !matches!(&resolution.outcome, Err(e) if matches!(e.code(), ErrorCode::NotFound | ErrorCode::NamespaceNotFound))
}
