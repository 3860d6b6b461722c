//! Removal of a directory with all that is below it, and the background operation that this begins.

use chrono::{DateTime, Utc};
use mantle_types::Result;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{
    Signed, Store,
    rows::{self, Written},
    sql,
    terms::Leased,
};

/// A directory to be removed with all that is below it, as the index's leader has locked it.
pub struct RemoveTree<'a> {
    /// Partition it is in.
    pub source: Leased,
    /// Its name with the trailing slash.
    pub source_name: &'a str,
    /// Its id.
    pub source_id: i64,
    /// The index group.
    pub group: u32,
    /// The epoch of the prepare.
    pub epoch: u64,
    /// The attempt.
    pub attempt: u64,
    /// That the index has prepared this.
    pub proof: Option<&'a [u8]>,
    /// The id of the operation that is to empty it.
    pub operation: Uuid,
}

/// A background operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Id.
    pub id: Uuid,
    /// What it does.
    pub kind: String,
    /// `running` or `done`.
    pub state: String,
    /// The directory that was removed.
    pub directory_id: i64,
    /// Objects removed so far.
    pub objects: i64,
    /// Directories removed so far.
    pub directories: i64,
    /// Bytes of those objects.
    pub bytes: i64,
    /// When it began.
    pub created: DateTime<Utc>,
    /// When it ended.
    pub finished: Option<DateTime<Utc>>,
}

impl Store {
    /// Moves a directory that the index's leader has locked for this request into the trash.
    pub async fn remove_tree(&self, signed: Signed, remove: RemoveTree<'_>) -> Result<Written> {
        let (principal, group) = (signed.principal as i32, remove.group as i32);
        let (epoch, attempt) = (remove.epoch as i64, remove.attempt as i64);
        let row = self
            .query_one_at(
                remove.source.pid,
                &sql::REMOVE_TREE,
                &[
                    (&principal, Type::INT4),
                    (&signed.ns, Type::INT8),
                    (&remove.source.pid, Type::INT8),
                    (&remove.source_name, Type::TEXT),
                    (&remove.source_id, Type::INT8),
                    (&group, Type::INT4),
                    (&epoch, Type::INT8),
                    (&attempt, Type::INT8),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                    (&remove.operation, Type::UUID),
                    (&remove.source.lease.to_string(), Type::TEXT),
                    (&remove.proof, Type::BYTEA),
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
                directory_id: rows::get(row, "directory_id")?,
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
