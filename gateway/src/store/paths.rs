//! Resolves paths in PostgreSQL: those that the index does not find, and those that cross a rename's lock. A storm of
//! such lookups, for example of missing directories, takes a few connections and not the whole pool (P28).

use std::{sync::Arc, time::Duration};

use mantle_types::{DirectoryId, Error, ErrorCode, NamespaceId, PartitionId, Permission, Result};
use tokio_postgres::{Row, types::Type};

use super::{
    Store,
    coalesced_reads::{BatchRead, Bounds, CoalescedReads, Failure},
    database::{Param, count_retries, pause},
    fault::Fault,
    nodes::Nodes,
    prepared::wait_for_prepared,
    rows, sql,
};

/// Most statements in flight for paths that the index does not know; at most half of the pool, at least one.
const IN_FLIGHT_MAX: usize = 4;
/// The same for paths that a rename may be changing; at most a quarter of the pool, at least one.
const SETTLED_IN_FLIGHT_MAX: usize = 2;
/// Most different paths of one statement. On Citus each costs two walks, and a row of another node per level.
const TOGETHER_MAX: usize = 32;
/// Most lookups that wait for a statement.
const WAITING_MAX: usize = 8192;
/// How often a statement of several paths is sent again before each path goes singly.
const RETRIES_MAX: u32 = 2;
/// How often a path is walked again because two walks disagree.
const ROUNDS_MAX: u32 = 3;
/// How long a lookup waits for PostgreSQL's answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// How far a path exists in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInDatabase {
    pub ns: NamespaceId,
    pub depth: usize,
    pub id: DirectoryId,
    /// Parent and record version: two walks have to agree about these, too.
    seen: (i64, i64),
    /// Permissions of all directories on the path, root first, the deepest last.
    pub chain: Vec<Permission>,
    /// An object has the name of the first missing component.
    pub is_object: bool,
}

impl PathInDatabase {
    /// The partition that has the entry of the deepest directory.
    pub fn parent(&self) -> PartitionId {
        DirectoryId::from(self.seen.0).sole_partition()
    }
}

/// `None` if the namespace does not exist.
type Found = Option<PathInDatabase>;

/// A path of directories in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathKey {
    namespace: String,
    /// Components with `/` between two; empty for the root.
    path: String,
}

/// Resolves paths with one statement. On a single node that is one snapshot.
pub struct Resolve(Arc<Nodes>);

impl BatchRead for Resolve {
    type Key = PathKey;
    type Answer = Found;
    const NAME: &'static str = sql::RESOLVE_PATHS.name;

    async fn read(&self, keys: &[PathKey]) -> Result<Vec<Result<Found>>, Failure> {
        if let [key] = keys {
            return Ok(vec![resolve_alone(&self.0, key).await]);
        }
        let mut attempt = 0;
        let fault = loop {
            match resolve_once(&self.0, keys).await {
                Ok(found) => return Ok(found.into_iter().map(Ok).collect()),
                Err(Fault::Conflict(_) | Fault::Lost(_)) if attempt < RETRIES_MAX => {}
                Err(fault) => break fault,
            }
            count_retries(&sql::RESOLVE_PATHS, keys.len());
            pause(attempt).await;
            attempt += 1;
        };
        // One path may be the cause, for example a path that is renamed all the time. It must not fail the others.
        let is_of_one = matches!(fault, Fault::Conflict(_) | Fault::Unexpected(_));
        let error = client_error(fault);
        Err(if is_of_one { Failure::Singly(error) } else { Failure::ForAll(error) })
    }
}

fn client_error(fault: Fault) -> Error {
    fault.into_error(sql::RESOLVE_PATHS.name, sql::RESOLVE_PATHS.mutates)
}

fn columns(keys: &[PathKey]) -> (Vec<&str>, Vec<&str>) {
    keys.iter().map(|key| (key.namespace.as_str(), key.path.as_str())).unzip()
}

fn params<'a>((namespaces, paths): &'a (Vec<&str>, Vec<&str>)) -> [Param<'a>; 2] {
    [(namespaces as _, Type::TEXT_ARRAY), (paths as _, Type::TEXT_ARRAY)]
}

/// One path, with the retries of every read.
async fn resolve_alone(nodes: &Nodes, key: &PathKey) -> Result<Found> {
    let columns = columns(std::slice::from_ref(key));
    read(&nodes.main().query_one(&sql::RESOLVE_PATHS, &params(&columns)).await?)
}

async fn resolve_once(nodes: &Nodes, keys: &[PathKey]) -> Result<Vec<Found>, Fault> {
    let rows = nodes.main().query_once(&sql::RESOLVE_PATHS, &params(&columns(keys))).await?;
    rows.iter().map(read).collect::<Result<_>>().map_err(|error| Fault::Mantle(error.code()))
}

fn read(row: &Row) -> Result<Found> {
    let Some(ns) = rows::get_opt::<i64>(row, "ns")? else { return Ok(None) };
    let numbers = |column| rows::get::<Vec<i32>>(row, column);
    let (owners, groups, modes) = (numbers("chain_owner")?, numbers("chain_grp")?, numbers("chain_mode")?);
    let permission =
        |((owner, group), mode)| Permission { owner: owner as u32, group: group as u32, mode: mode as u16 };
    Ok(Some(PathInDatabase {
        ns: ns.into(),
        depth: rows::get::<i32>(row, "depth")? as usize,
        id: rows::get::<i64>(row, "id")?.into(),
        seen: (rows::get(row, "parent_id")?, rows::get(row, "version")?),
        chain: owners.into_iter().zip(groups).zip(modes).map(permission).collect(),
        is_object: rows::get(row, "is_object")?,
    }))
}

/// Resolves paths that a rename may be changing on a Citus cluster (P26). If one part of it is only prepared, a walk
/// may find the directory at neither place, or at both. So a walk before and a walk after waiting for all prepared
/// parts have to agree: their common answer held at a moment when each change was either done or not begun.
pub struct ResolveSettled(Arc<Nodes>);

impl BatchRead for ResolveSettled {
    type Key = PathKey;
    type Answer = Found;
    const NAME: &'static str = "resolve_paths_settled";

    async fn read(&self, keys: &[PathKey]) -> Result<Vec<Result<Found>>, Failure> {
        let resolve = Resolve(self.0.clone());
        let mut before = resolve.read(keys).await?;
        let mut agreed: Vec<Option<Result<Found>>> = vec![None; keys.len()];
        for _ in 0..ROUNDS_MAX {
            let unfinished = || Error::new(ErrorCode::Locked, "a rename on the path has not come to its end");
            let waited = wait_for_prepared(&self.0).await;
            waited.map_err(|e| if e.code() == ErrorCode::AwaitTimeout { unfinished() } else { e })?;
            let after = resolve.read(keys).await?;
            for ((agreed, before), after) in agreed.iter_mut().zip(before).zip(&after) {
                if agreed.is_none() && before == *after {
                    *agreed = Some(before);
                }
            }
            if agreed.iter().all(Option::is_some) {
                break;
            }
            before = after;
        }
        Ok(agreed.into_iter().map(|agreed| agreed.unwrap_or_else(|| Err(ErrorCode::Locked.into()))).collect())
    }
}

/// Bounds with this many statements in flight, but at least one.
pub fn bounds(in_flight_max: usize) -> Bounds {
    Bounds {
        in_flight_max: in_flight_max.max(1),
        stalled: Duration::ZERO,
        together_max: TOGETHER_MAX,
        waiting_max: WAITING_MAX,
        wait: ANSWERED_WITHIN,
    }
}

pub struct Paths {
    misses: CoalescedReads<Resolve>,
    settled: CoalescedReads<ResolveSettled>,
}

impl Paths {
    /// Must be called within a tokio runtime.
    pub fn new(nodes: &Arc<Nodes>, pool_size: usize) -> Self {
        let (misses, settled) = (IN_FLIGHT_MAX.min(pool_size / 2), SETTLED_IN_FLIGHT_MAX.min(pool_size / 4));
        Self {
            misses: CoalescedReads::new(Resolve(nodes.clone()), bounds(misses)),
            settled: CoalescedReads::new(ResolveSettled(nodes.clone()), bounds(settled)),
        }
    }
}

impl Store {
    /// Resolves a directory's path; `None` when the namespace does not exist. `crosses_lock`: a rename may be changing
    /// the path, and several PostgreSQL nodes have no common snapshot.
    pub async fn resolve_path(
        &self,
        namespace: &str,
        components: &[&str],
        crosses_lock: bool,
    ) -> Result<Option<PathInDatabase>> {
        let key = PathKey { namespace: namespace.to_owned(), path: components.join("/") };
        match crosses_lock && !self.nodes.others().await?.is_empty() {
            true => self.paths.settled.read(key).await,
            false => self.paths.misses.read(key).await,
        }
    }
}
