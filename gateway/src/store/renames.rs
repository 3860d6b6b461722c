//! Renames of directories that the index has prepared, batched per index group: what a statement costs beside its
//! rows, and the flush of the commit, is shared by all that arrive while the last one is in flight. The index's locks
//! keep the places of two renames apart, so those of a batch do not meet.
//!
//! With several PostgreSQL nodes each rename is a statement of its own, on the node of its source: a batch would be as
//! slow as its slowest change on two nodes.

use std::{collections::HashMap, sync::Arc};

use mantle_types::{Caller, DirectoryId, Epoch, GroupId, PartitionId, Permission, Result, limits::BATCH_LATCHES_MAX};
use parking_lot::Mutex;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::{
    RequestClaim,
    batch::{Batcher, Bounds, Calls, Failure},
    database::{Database, Param, one},
    mutation::{answers, failure},
    resolution::LeasedPartition,
    rows::{Coded, Written},
    sql,
};
use crate::config::Postgres;

/// A directory to move. The index's leader has locked it for this request. Names have their trailing slash.
pub struct RenameDirectory<'a> {
    /// Partition of the source's parent.
    pub source: LeasedPartition,
    pub source_name: &'a str,
    pub source_id: DirectoryId,
    /// Partition of the destination's parent.
    pub destination_pid: PartitionId,
    pub destination_name: &'a str,
    /// The empty directory that the rename replaces.
    pub replaced: Option<DirectoryId>,
    /// The permissions of both parents, as the index had them.
    pub parents: [Option<Permission>; 2],
    pub prepare: Prepare<'a>,
    pub caller: &'a Caller,
}

/// Names a prepare of the index, so that PostgreSQL can check it.
#[derive(Clone, Copy)]
pub struct Prepare<'a> {
    pub group: GroupId,
    pub epoch: Epoch,
    /// The attempt: log index of the prepare (P20).
    pub attempt: u64,
    /// The leader's signature of the prepare.
    pub proof: Option<&'a [u8]>,
}

/// Most latches that one rename adds to its batch: two directories, two names, the directory that it replaces. The
/// epoch's is the batch's.
const LATCHES_MAX: usize = 5;

/// A rename of a batch. Owned, because it travels to the batcher's task.
#[derive(Clone)]
pub(super) struct Element {
    claim: RequestClaim,
    /// Partition of the source's parent.
    pub(super) source: PartitionId,
    source_name: String,
    source_id: DirectoryId,
    destination: PartitionId,
    destination_name: String,
    replaced: DirectoryId,
    group: GroupId,
    epoch: Epoch,
    attempt: u64,
    lease: String,
    caller: String,
    proof: Option<Vec<u8>>,
    parents: [Option<String>; 2],
}

impl Element {
    pub(super) fn new(claim: RequestClaim, rename: &RenameDirectory<'_>) -> Self {
        Self {
            claim,
            source: rename.source.pid,
            source_name: rename.source_name.to_owned(),
            source_id: rename.source_id,
            destination: rename.destination_pid,
            destination_name: rename.destination_name.to_owned(),
            // 0: it replaces none.
            replaced: rename.replaced.unwrap_or_default(),
            group: rename.prepare.group,
            epoch: rename.prepare.epoch,
            attempt: rename.prepare.attempt,
            lease: rename.source.lease.to_string(),
            caller: rename.caller.to_string(),
            proof: rename.prepare.proof.map(<[u8]>::to_vec),
            parents: rename.parents.map(|parent| parent.map(|permission| permission.to_string())),
        }
    }
}

/// The batchers of one node, one for each index group: the epoch that a batch latches is one group's.
pub(super) struct Renames {
    database: Database,
    bounds: Bounds,
    batchers: Mutex<HashMap<GroupId, Arc<Batcher<RenameCalls>>>>,
}

impl Renames {
    pub(super) fn new(database: &Database, config: &Postgres) -> Self {
        let bounds = Bounds {
            batches_in_flight_max: config.batches_in_flight_max,
            elements_max: config.batch_elements_max.min((BATCH_LATCHES_MAX - 1) / LATCHES_MAX),
        };
        Self { database: database.clone(), bounds, batchers: Mutex::default() }
    }

    /// The answer to one rename, with its error code if it was refused.
    pub(super) async fn submit(&self, element: Element) -> Result<Coded> {
        let batcher = {
            let mut batchers = self.batchers.lock();
            let new = || Arc::new(Batcher::new(RenameCalls { database: self.database.clone() }, self.bounds));
            batchers.entry(element.group).or_insert_with(new).clone()
        };
        batcher.submit(element).await
    }
}

/// Sends renames of one index group to the database.
pub(super) struct RenameCalls {
    database: Database,
}

impl Calls for RenameCalls {
    type Element = Element;
    type Answer = Coded;
    const NAME: &'static str = sql::RENAME_DIRECTORIES.name;

    fn request(element: &Element) -> Uuid {
        element.claim.request
    }

    async fn together(&self, elements: &[&Element]) -> Result<Vec<Result<Coded>>, Failure> {
        let columns = columns(elements, true);
        match self.database.query_once(&sql::RENAME_DIRECTORIES, &params(&columns)).await {
            Ok(rows) => Ok(answers(&sql::RENAME_DIRECTORIES, &rows, elements.len())),
            Err(fault) => Err(failure(fault, &sql::RENAME_DIRECTORIES, elements.len())),
        }
    }

    async fn alone(&self, element: &Element, lost: bool) -> Result<Coded> {
        let columns = element.columns();
        let rows = self.database.query(&sql::RENAME_DIRECTORY, &params(&columns), lost).await?;
        Written::read(&one(&sql::RENAME_DIRECTORY, rows)?)
    }
}

impl Element {
    /// The parameters of the statement for one rename.
    pub(super) fn columns(&self) -> Vec<Column<'_>> {
        columns(&[self], false)
    }
}

/// The values of an argument, and their type.
pub(super) type Column<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

/// The columns as a statement's parameters.
pub(super) fn params<'a>(columns: &'a [Column<'_>]) -> Vec<Param<'a>> {
    columns.iter().map(|(values, of)| (&**values as &(dyn ToSql + Sync), of.clone())).collect()
}

/// The arguments of `mantle.rename_directory` in order: of its form for one rename, or for a batch of one index group.
fn columns<'a>(elements: &[&'a Element], is_batch: bool) -> Vec<Column<'a>> {
    let ints = |value: fn(&Element) -> i32| column(elements, is_batch, (Type::INT4, Type::INT4_ARRAY), value);
    let numbers = |value: fn(&Element) -> i64| column(elements, is_batch, (Type::INT8, Type::INT8_ARRAY), value);
    let texts = |value: fn(&'a Element) -> &'a str| column(elements, is_batch, (Type::TEXT, Type::TEXT_ARRAY), value);
    vec![
        ints(|e| e.claim.principal as i32),
        numbers(|e| e.claim.ns.as_i64()),
        numbers(|e| e.source.as_i64()),
        texts(|e| &e.source_name),
        numbers(|e| e.source_id.as_i64()),
        numbers(|e| e.destination.as_i64()),
        texts(|e| &e.destination_name),
        numbers(|e| e.replaced.as_i64()),
        // The same of all.
        column(&elements[..1], false, (Type::INT4, Type::INT4_ARRAY), |e| e.group.as_i32()),
        numbers(|e| e.epoch.as_i64()),
        numbers(|e| e.attempt as i64),
        column(elements, is_batch, (Type::UUID, Type::UUID_ARRAY), |e| e.claim.request),
        numbers(|e| e.claim.hash),
        texts(|e| &e.lease),
        texts(|e| &e.caller),
        column(elements, is_batch, (Type::BYTEA, Type::BYTEA_ARRAY), |e| e.proof.as_deref()),
        column(elements, is_batch, (Type::TEXT, Type::TEXT_ARRAY), |e| e.parents[0].as_deref()),
        column(elements, is_batch, (Type::TEXT, Type::TEXT_ARRAY), |e| e.parents[1].as_deref()),
    ]
}

/// An argument: the value of the only element, or the values of all.
fn column<'a, V: ToSql + Sync + Send + 'a>(
    elements: &[&'a Element],
    is_batch: bool,
    (of, array): (Type, Type),
    value: impl Fn(&'a Element) -> V,
) -> Column<'a> {
    match elements {
        [only] if !is_batch => (Box::new(value(only)), of),
        _ => (Box::new(elements.iter().map(|element| value(element)).collect::<Vec<V>>()), array),
    }
}

#[cfg(test)]
mod tests {
    use mantle_types::{Caller, Lease, Lineage, NamespaceId};

    use super::{
        super::{LeasedPartition, Prepare},
        *,
    };

    #[test]
    fn a_batch_has_as_many_columns_as_a_call() {
        let claim = RequestClaim { principal: 1, ns: NamespaceId(2), request: Uuid::from_u128(3), hash: 4 };
        let caller = Caller { uid: 1, gids: Vec::new() };
        let prepare = Prepare { group: GroupId(1), epoch: Epoch(2), attempt: 3, proof: Some(&[7]) };
        let lease = Lease { deadline_us: 1, lineage: Lineage { system_identifier: 2, timeline: 3 }, epoch: Epoch(4) };
        let rename = RenameDirectory {
            source: LeasedPartition { pid: PartitionId(9), lease, permission: None },
            source_name: "a/",
            source_id: DirectoryId(5),
            destination_pid: PartitionId(6),
            destination_name: "b/",
            replaced: None,
            parents: [None; 2],
            prepare,
            caller: &caller,
        };
        let element = Element::new(claim, &rename);
        let types = |columns: &[Column<'_>]| columns.iter().map(|(_, of)| of.name().to_owned()).collect::<Vec<_>>();
        let single = types(&element.columns());
        for count in [1, 3] {
            let batch = types(&columns(&vec![&element; count], true));
            // The index group is one for all.
            let expected =
                single.iter().enumerate().map(|(at, of)| if at == 8 { of.clone() } else { format!("_{of}") });
            assert_eq!(batch, expected.collect::<Vec<_>>());
        }
        for statement in [&sql::RENAME_DIRECTORY, &sql::RENAME_DIRECTORIES] {
            assert!(statement.text.contains(&format!("${})", single.len())) && statement.mutates);
        }
        assert!(sql::RENAME_DIRECTORIES.text.starts_with("SELECT ord, "));
    }
}
