//! The metadata database, one method a verb. Invariant: a statement is sent again only when it changes nothing, was rolled
//! back, or carries a request id that makes the second time harmless; what may have happened is `unknown_outcome`, never
//! a failure (P18). Calls of one verb that arrive while others are in flight go together (`batch.rs`).

mod batch;
mod database;
mod directories;
mod fault;
mod forgers;
mod mutation;
mod namespaces;
mod nodes;
mod objects;
mod operations;
mod paths;
mod pool;
mod questions;
mod reads;
mod rows;
mod shards;
mod sql;
mod terms;

use std::{sync::Arc, time::Duration};

use mantle_types::{ErrorCode, Result};
use tokio_postgres::{Row, types::Type};

pub use self::{
    batch::BATCH_ELEMENTS,
    database::pause,
    directories::{NewDirectory, RenameDirectory, SetAttributes},
    namespaces::{Assignment, Namespace},
    objects::{NewObject, RenameObject},
    operations::{Operation, RemoveTree},
    reads::SubtreeTotals,
    rows::{Entry, Written},
    terms::{Leased, Moment, Terms},
};
use self::{
    database::Param,
    directories::{Mkdir, Rmdir, SetAttributesOf},
    forgers::Forgers,
    mutation::{MOVES_FOLLOWED_MAX, Mutations, mutations},
    namespaces::Assignments,
    nodes::Nodes,
    objects::{DeleteObject, PutObject},
    paths::{Paths, bounds},
    questions::Questions,
    sql::Statement,
};
use crate::config::Postgres;

/// Most statements in flight that ask which group a namespace is assigned to.
const ASSIGNMENTS_IN_FLIGHT_MAX: usize = 1;

/// Who changes something, under which request id, with the hash of what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Signed {
    /// The caller's uid.
    pub principal: u32,
    /// The namespace's id; 0 for the creation and removal of namespaces.
    pub ns: i64,
    /// The request id.
    pub request: uuid::Uuid,
    /// See [`crate::hash::RequestHash`].
    pub hash: i64,
}

/// Handle on the database.
pub struct Store {
    nodes: Arc<Nodes>,
    mkdir: Mutations<Mkdir>,
    rmdir: Mutations<Rmdir>,
    put_object: Mutations<PutObject>,
    delete_object: Mutations<DeleteObject>,
    set_attributes: Mutations<SetAttributesOf>,
    paths: Paths,
    assignments: Questions<Assignments>,
    forgers: Forgers,
}

impl Store {
    /// Makes the pool; connects when first used. Must be called within a tokio runtime.
    pub fn new(config: &Postgres, application_name: &str, wait: Duration) -> anyhow::Result<Self> {
        let nodes = Arc::new(Nodes::new(config, application_name, wait)?);
        Ok(Self {
            mkdir: mutations(&nodes, config),
            rmdir: mutations(&nodes, config),
            put_object: mutations(&nodes, config),
            delete_object: mutations(&nodes, config),
            set_attributes: mutations(&nodes, config),
            paths: Paths::new(&nodes, config.pool_size),
            assignments: Questions::new(Assignments(nodes.clone()), bounds(ASSIGNMENTS_IN_FLIGHT_MAX)),
            forgers: Forgers::default(),
            nodes,
        })
    }

    /// Reads anew which node has what: something was refused that was meant for another node.
    pub async fn refresh_map(&self) -> Result<()> {
        self.nodes.refresh().await
    }

    async fn query(&self, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.nodes.main().query(statement, params, false).await
    }

    /// On the node that has a partition.
    async fn query_at(&self, pid: i64, statement: &'static Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut moves = 0;
        loop {
            let node = self.nodes.of(pid).await?;
            match node.database.query(statement, params, false).await {
                // Rolled back: its shard has moved.
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
        one(statement, self.query(statement, params).await?)
    }

    async fn query_one_at(&self, pid: i64, statement: &'static Statement, params: &[Param<'_>]) -> Result<Row> {
        one(statement, self.query_at(pid, statement, params).await?)
    }

    /// Is the database there?
    pub async fn ping(&self) -> Result<()> {
        self.query_one(&sql::PING, &[]).await.map(drop)
    }

    /// A block of new ids, first and last.
    pub async fn allocate_ids(&self, owner: &str, count: u32) -> Result<(i64, i64)> {
        let count = i64::from(count);
        let row = self.query_one(&sql::ALLOCATE_IDS, &[(&owner, Type::TEXT), (&count, Type::INT8)]).await?;
        Ok((rows::get(&row, "first_id")?, rows::get(&row, "last_id")?))
    }
}

fn one(statement: &'static Statement, mut rows: Vec<Row>) -> Result<Row> {
    if rows.len() != 1 {
        tracing::error!(statement = statement.name, rows = rows.len(), "one row was expected");
        return Err(ErrorCode::Internal.into());
    }
    rows.pop().ok_or_else(|| ErrorCode::Internal.into())
}
