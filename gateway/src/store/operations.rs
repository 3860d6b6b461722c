//! Removal of a directory with everything below it, and the background operation that it begins.

use chrono::{DateTime, Utc};
use mantle_types::{Caller, DirectoryId, Permission, Result};
use serde::Serialize;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{
    RequestClaim, Store,
    renames::Prepare,
    resolution::LeasedPartition,
    rows::{self, Written},
    sql,
};

/// A directory to remove with everything below it. The index's leader has locked it for this request.
pub struct RemoveTree<'a> {
    pub source: LeasedPartition,
    /// Name with its trailing slash.
    pub source_name: &'a str,
    pub source_id: DirectoryId,
    /// The permission of its parent, as the index had it.
    pub parent: Option<Permission>,
    pub prepare: Prepare<'a>,
    /// The operation that will empty it.
    pub operation: Uuid,
    pub caller: &'a Caller,
}

/// A background operation, with counts of the entries that it has removed so far. The native API answers it as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    pub id: Uuid,
    /// The verb that began it.
    pub kind: String,
    /// `running` or `done`.
    pub state: String,
    pub directory_id: DirectoryId,
    pub objects: i64,
    pub directories: i64,
    pub bytes: i64,
    pub created: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<DateTime<Utc>>,
}

impl Store {
    /// Moves a directory that the index's leader has locked for this request into the trash.
    pub async fn remove_tree(&self, claim: RequestClaim, remove: RemoveTree<'_>) -> Result<Written> {
        let RemoveTree { source, prepare, .. } = remove;
        let row = self
            .query_one_at(
                source.pid,
                &sql::REMOVE_TREE,
                &[
                    (&(claim.principal as i32), Type::INT4),
                    (&claim.ns.as_i64(), Type::INT8),
                    (&source.pid.as_i64(), Type::INT8),
                    (&remove.source_name, Type::TEXT),
                    (&remove.source_id.as_i64(), Type::INT8),
                    (&prepare.group.as_i32(), Type::INT4),
                    (&prepare.epoch.as_i64(), Type::INT8),
                    (&(prepare.attempt as i64), Type::INT8),
                    (&claim.request, Type::UUID),
                    (&claim.hash, Type::INT8),
                    (&remove.operation, Type::UUID),
                    (&source.lease.to_string(), Type::TEXT),
                    (&remove.caller.to_string(), Type::TEXT),
                    (&prepare.proof, Type::BYTEA),
                    (&remove.parent.map(|permission| permission.to_string()), Type::TEXT),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// An operation that this principal began; any for uid 0.
    pub async fn operation(&self, principal: u32, id: Uuid) -> Result<Option<Operation>> {
        let principal = principal as i32;
        let rows = self.query(&sql::OPERATION, &[(&principal, Type::INT4), (&id, Type::UUID)]).await?;
        let read = |row| {
            Ok(Operation {
                id: rows::get(row, "id")?,
                kind: rows::get(row, "kind")?,
                state: rows::get(row, "state")?,
                directory_id: rows::get::<i64>(row, "directory_id")?.into(),
                objects: rows::get(row, "objects")?,
                directories: rows::get(row, "directories")?,
                bytes: rows::get(row, "bytes")?,
                created: rows::get(row, "created")?,
                finished: rows::get_opt(row, "finished")?,
            })
        };
        rows.first().map(read).transpose()
    }
}
