//! The metadata database: one method, or one [`Mutations`], per verb. Calls of one verb that arrive while others are in
//! flight are batched (`batch.rs`). Invariant: a change that may have been made is reported as `unknown_outcome`, never
//! as a failure (P18); `database.rs` decides which statements are sent again.

mod answers;
mod batch;
mod coalesced_reads;
mod columns;
mod database;
mod directories;
mod emit_grants;
mod entries;
mod extents;
mod fault;
mod metadata;
mod mutation;
mod namespaces;
mod nodes;
mod objects;
mod operations;
mod packed;
mod pages;
mod paths;
mod pool;
mod precondition;
mod prepared;
mod reads;
mod reads_by_node;
mod record;
mod refusals;
mod renames;
mod resolution;
mod rows;
mod server_problems;
mod shards;
mod sql;
mod uploads;
mod volumes;
mod worker_problems;

use std::{sync::Arc, time::Duration};

use mantle_tls::PostgresConnector;
use mantle_types::{Error, ErrorCode, Lineage, NamespaceId, PartitionId, RequestKey, Result};
use tokio::time::timeout;
use tokio_postgres::{Row, types::Type};

pub use self::{
    batch::BATCH_ELEMENTS,
    database::{Waits, pause},
    directories::{NewDirectory, PartOf, Pruned, Rmdir, SetAttributes},
    extents::ExtentOfPart,
    metadata::Metadata,
    namespaces::{Assignment, Namespace, no_namespace},
    objects::{CopyObject, DeleteObject, Doubt, NewObject, RenameObject},
    operations::{Operation, RemoveTree},
    precondition::Precondition,
    reads::{Listed, SubtreeTotals},
    renames::{Prepare, RenameDirectory},
    resolution::{LeasedPartition, ResolutionContext, ResolutionStart},
    rows::{Coded, EMPTY_MD5, Entry, Written, accepted, code_of},
    uploads::{
        Attempt, Extent, NewPart, NewUpload, Part, PartOfObject, Sealed, Sealing, SourceOfPart, SweptUpload, Upload,
        UploadId, UploadState,
    },
    volumes::{Mount, NamedIn, NewManifest, Replacement, SegmentLease},
};
use self::{
    coalesced_reads::CoalescedReads,
    database::{Database, Param},
    emit_grants::EmitGrants,
    entries::Entries,
    mutation::{MOVES_FOLLOWED_MAX, Mutations},
    namespaces::ReadAssignments,
    nodes::Nodes,
    pages::Pages,
    paths::{Paths, bounds},
    refusals::Refusals,
    renames::Renames,
    server_problems::ServerProblems,
    sql::Statement,
};
use crate::config::Postgres;

/// Most statements in flight that read which group serves a namespace.
const ASSIGNMENTS_IN_FLIGHT_MAX: usize = 1;
/// How long a probe waits for PostgreSQL.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The claim of a mutation to its request id: the principal, the namespace and the hash of the request (P19).
#[derive(Clone, Copy, Debug)]
pub struct RequestClaim {
    pub principal: u32,
    /// The namespace; 0 for the creation and removal of namespaces.
    pub ns: NamespaceId,
    pub request: uuid::Uuid,
    /// See [`crate::hash::RequestHash`].
    pub hash: i64,
}

impl RequestClaim {
    /// The key under which the index knows the request.
    pub fn key(&self) -> RequestKey {
        RequestKey { principal: self.principal, ns: self.ns, id: self.request }
    }
}

/// Ids that belong to one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdBlock {
    pub first: i64,
    pub last: i64,
    /// PostgreSQL's, when it handed them out.
    pub timeline: u32,
}

pub struct Store {
    nodes: Arc<Nodes>,
    /// With `already_exists` the answer has the existing directory's id.
    pub mkdir: Mutations<NewDirectory>,
    pub rmdir: Mutations<Rmdir>,
    pub put_object: Mutations<NewObject>,
    pub delete_object: Mutations<DeleteObject>,
    pub set_attributes: Mutations<SetAttributes>,
    renames: Renames,
    entries: Entries,
    pages: Pages,
    paths: Paths,
    assignments: CoalescedReads<ReadAssignments>,
    emit_grants: EmitGrants,
    refusals: Refusals,
    server_problems: ServerProblems,
    /// For probes, which answer also while statements hold every connection of the pool.
    probe: Database,
}

impl Store {
    /// Connects at the first statement. Must be called within a tokio runtime.
    pub fn new(
        config: &Postgres,
        tls: PostgresConnector,
        application_name: &str,
        waits: Waits,
    ) -> anyhow::Result<Self> {
        database::begin_series();
        let of_probe = Postgres { pool_size: 1, ..config.clone() };
        let probe_waits = Waits { connection: PROBE_TIMEOUT, answer: PROBE_TIMEOUT };
        let probe = Database::new(&of_probe, &tls, (application_name, true), probe_waits, Arc::default())?;
        let nodes = Arc::new(Nodes::new(config, tls, application_name, waits)?);
        Ok(Self {
            mkdir: Mutations::new(&nodes, config),
            rmdir: Mutations::new(&nodes, config),
            put_object: Mutations::new(&nodes, config),
            delete_object: Mutations::new(&nodes, config),
            set_attributes: Mutations::new(&nodes, config),
            renames: Renames::new(nodes.main(), config),
            entries: Entries::new(&nodes, config),
            pages: Pages::new(&nodes, config),
            paths: Paths::new(&nodes, config.pool_size),
            assignments: CoalescedReads::new(ReadAssignments(nodes.clone()), bounds(ASSIGNMENTS_IN_FLIGHT_MAX)),
            emit_grants: EmitGrants::default(),
            refusals: Refusals::default(),
            server_problems: ServerProblems::default(),
            probe,
            nodes,
        })
    }

    /// Reads the shard map again, after a node refused a statement that belongs to another node.
    pub async fn refresh_map(&self) -> Result<()> {
        self.nodes.refresh().await
    }

    async fn query(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.nodes.main().query(statement, params, false).await
    }

    async fn query_at(
        &self,
        pid: PartitionId,
        statement: &'static Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let mut moves = 0;
        loop {
            let node = self.nodes.of(pid).await?;
            match node.database.query(statement, params, false).await {
                // Rolled back: the shard has moved.
                Err(error) if error.code() == ErrorCode::WrongNode && moves < MOVES_FOLLOWED_MAX => {
                    self.nodes.refresh().await?;
                    pause(moves).await;
                    moves += 1;
                }
                answer => return answer,
            }
        }
    }

    async fn query_one(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Row> {
        self.nodes.main().query_one(statement, params).await
    }

    async fn query_one_at(&self, pid: PartitionId, statement: &'static Statement, params: &[Param<'_>]) -> Result<Row> {
        database::one(statement, self.query_at(pid, statement, params).await?)
    }

    /// Whether the configured node answers, within [`PROBE_TIMEOUT`]. Needs no connection of the pool.
    pub async fn ping(&self) -> Result<()> {
        let answer = timeout(PROBE_TIMEOUT, self.probe.query_one(&sql::PING, &[])).await;
        answer
            .unwrap_or_else(|_| Err(Error::new(ErrorCode::DatabaseUnavailable, "PostgreSQL does not answer")))
            .map(drop)
    }

    /// A block of new ids.
    pub async fn allocate_ids(&self, owner: &str, count: u32) -> Result<IdBlock> {
        let count = i64::from(count);
        let row = self.query_one(&sql::ALLOCATE_IDS, &[(&owner, Type::TEXT), (&count, Type::INT8)]).await?;
        let lineage: Lineage = rows::get::<&str>(&row, "lineage")?.parse()?;
        let (first, last) = (rows::get(&row, "first_id")?, rows::get(&row, "last_id")?);
        Ok(IdBlock { first, last, timeline: lineage.timeline })
    }
}
