//! Resolves a path to a directory, with one RPC to the index. A path that the index does not find is looked up there
//! again, once it has everything that PostgreSQL shows: then a miss is final (P58). Where that takes too long, and where
//! a path crosses a rename's lock, PostgreSQL resolves it (P26, P28). PostgreSQL answers listings, so a listing never
//! shows an entry that a lookup denies.

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
    /// The partition that has its own entry.
    pub parent: PartitionId,
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
        /// The next component is an object. `None`: the index answered, which does not know.
        is_object: Option<bool>,
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
        let mut answers = self.ask_index(caller, namespace, &[components], purpose).await?;
        let answer = answers.pop().ok_or(ErrorCode::Internal)?;
        self.reached(caller, namespace, components, answer).await
    }

    /// Resolves several paths with one RPC.
    pub async fn search_many(
        &self,
        caller: &Caller,
        namespace: &str,
        paths: &[&[&str]],
        purpose: Purpose,
    ) -> Result<Vec<Result<Reached>>> {
        let answers = self.ask_index(caller, namespace, paths, purpose).await?;
        let reached = paths.iter().zip(answers).map(|(path, answer)| self.reached(caller, namespace, path, answer));
        Ok(join_all(reached).await)
    }

    /// The index's answers, one for each path; `None` if there is no index. A miss is looked up again until it is final.
    async fn ask_index(
        &self,
        caller: &Caller,
        namespace: &str,
        paths: &[&[&str]],
        purpose: Purpose,
    ) -> Result<Vec<Option<Found>>> {
        let (name, asker): (Arc<str>, _) = (namespace.into(), Arc::new(caller.clone()));
        let query = |path: &&[&str]| Query::new(name.clone(), path.iter().copied(), asker.clone());
        let mut answers: Vec<Option<Found>> =
            match self.index.resolve(namespace, paths.iter().map(query).collect()).await {
                Ok((start, answers)) => answers.into_iter().map(|found| Some((start.clone(), found))).collect(),
                Err(e) if is_without_index(&e) && purpose == Purpose::Lookup => vec![None; paths.len()],
                Err(e) => return Err(e),
            };
        self.settle_misses(namespace, &mut answers, |at| query(&paths[at])).await;
        Ok(answers)
    }

    /// How far a path exists, by the index's answer or by PostgreSQL. PostgreSQL is asked rarely, and in a future of its own:
    /// each request would make room for it otherwise.
    async fn reached(&self, caller: &Caller, namespace: &str, path: &[&str], answer: Option<Found>) -> Result<Reached> {
        let crosses_lock = match answer {
            Some((start, found)) if !found.crossed_lock && is_final(&found) => return self.found(&start, found),
            Some((_, found)) => found.crossed_lock,
            // Without the index no one knows which directories are being renamed.
            None => true,
        };
        Box::pin(self.search_database(caller, namespace, path, crosses_lock)).await
    }

    /// Looks up again what the index did not find, and waits for an answer that is final.
    async fn settle_misses(&self, namespace: &str, answers: &mut [Option<Found>], query: impl Fn(usize) -> Query) {
        let is_missing = |answer: &Option<Found>| answer.as_ref().is_some_and(|(_, found)| is_miss(found));
        let missing: Vec<usize> = (0..answers.len()).filter(|at| is_missing(&answers[*at])).collect();
        if missing.is_empty() {
            return;
        }
        match self.index.settle(namespace, missing.iter().map(|at| query(*at)).collect()).await {
            Ok((start, settled)) => {
                for (at, found) in missing.into_iter().zip(settled) {
                    answers[at] = Some((start.clone(), found));
                }
            }
            // PostgreSQL resolves them.
            Err(error) => tracing::debug!(%error, "misses are not final"),
        }
    }

    /// What a final answer of the index says.
    fn found(&self, start: &ResolutionStart, found: Resolution) -> Result<Reached> {
        let parent = found.parent_id.sole_partition();
        let directory = self.located(start, found.ns, found.id, parent, found.permission);
        if is_miss(&found) {
            metrics::counter!("mantle_gateway_final_misses_total").increment(1);
            return Ok(Reached::Part { deepest: directory, depth: found.depth, is_object: None });
        }
        found.outcome.map(|()| Reached::All(directory))
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
        let located = self.located(&start, found.ns, found.id, found.parent(), permission);
        Ok(match found.depth == components.len() {
            true => Reached::All(located),
            false => Reached::Part { deepest: located, depth: found.depth, is_object: Some(found.is_object) },
        })
    }

    /// A directory that was resolved, with the lease that its resolution gives.
    pub fn located(
        &self,
        at: &ResolutionStart,
        ns: NamespaceId,
        id: DirectoryId,
        parent: PartitionId,
        permission: Permission,
    ) -> Located {
        Located { ns, id, parent, permission, lease: self.store.lease(at, id.sole_partition()).lease }
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
        let reached = self.search(caller, namespace, components, purpose).await?;
        self.whole(reached, components, false).await
    }

    /// The directory at a path, as the parent of the entry that is wanted.
    pub async fn locate_parent(
        &self,
        caller: &Caller,
        namespace: &str,
        components: &[&str],
        purpose: Purpose,
    ) -> Result<Located> {
        let reached = self.search(caller, namespace, components, purpose).await?;
        self.whole(reached, components, true).await
    }

    /// The directory, if its whole path exists. Otherwise `not_found`, or `parent_is_object` if the path crosses an
    /// object.
    pub async fn whole(&self, reached: Reached, components: &[&str], is_parent: bool) -> Result<Located> {
        let depth = match reached {
            Reached::All(located) => return Ok(located),
            Reached::Part { depth, .. } => depth,
        };
        if is_parent || depth + 1 < components.len() {
            self.refuse_object(&reached, components).await?;
        }
        let key = components[..=depth].join("/");
        Err(Error::new(ErrorCode::NotFound, format!("there is no directory `{key}/`")))
    }

    /// `parent_is_object` if a path of directories crosses an object.
    pub async fn refuse_object(&self, reached: &Reached, components: &[&str]) -> Result<()> {
        let Reached::Part { deepest, depth, is_object } = *reached else { return Ok(()) };
        let is_object = match is_object {
            Some(is_object) => is_object,
            None => self.store.entry(deepest.ns, deepest.pid(), vec![components[depth].to_owned()]).await?.is_some(),
        };
        let key = || components[..=depth].join("/");
        match is_object {
            true => Err(Error::new(ErrorCode::ParentIsObject, format!("`{}` is an object", key()))),
            false => Ok(()),
        }
    }
}

/// An answer of the index, and the context of the question.
type Found = (ResolutionStart, Resolution);

/// Whether the index did not find a directory, in a namespace that it has.
fn is_miss(found: &Resolution) -> bool {
    !found.crossed_lock && matches!(&found.outcome, Err(e) if e.code() == ErrorCode::NotFound)
}

/// Whether no replica can answer.
fn is_without_index(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::IndexUnavailable | ErrorCode::UnknownGroup)
}

/// Whether the index's answer needs no check in PostgreSQL.
fn is_final(resolution: &Resolution) -> bool {
    match &resolution.outcome {
        Err(e) if e.code() == ErrorCode::NotFound => resolution.is_settled,
        Err(e) => e.code() != ErrorCode::NamespaceNotFound,
        Ok(()) => true,
    }
}
