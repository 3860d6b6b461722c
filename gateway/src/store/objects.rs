//! Mutations of objects' metadata.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use mantle_types::{
    Caller, EntryId, NamespaceId, Permission, Result,
    verbs::{Verb, delete_object, put_object},
};
use serde_json::Value;
use tokio_postgres::types::Type;

use super::{
    RequestClaim, Store,
    columns::{Column, column, column_if_any},
    mutation::Mutation,
    precondition::Precondition,
    prepared::wait_for_prepared,
    resolution::LeasedPartition,
    rows::{Coded, Entry, Written},
    sql::{self, Statement},
};

/// An object whose bytes are stored already, or come along.
pub struct NewObject {
    pub name: String,
    pub id: EntryId,
    pub permission: Permission,
    pub size: u64,
    /// MD5 in hexadecimal.
    pub etag: String,
    pub content_type: Option<String>,
    pub user_metadata: Option<Value>,
    /// Where its bytes are; `None` if they are in `inline`.
    pub locator: Option<String>,
    /// Bytes that PostgreSQL keeps.
    pub inline: Option<Bytes>,
    /// A condition on the object that the name has now.
    pub precondition: Precondition,
    pub doubt: Doubt,
}

/// Whether a change may still be carried out although a later attempt was refused: the connection of an earlier one broke, and
/// PostgreSQL may come to it late. A clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Doubt(Arc<AtomicBool>);

impl Doubt {
    /// What was refused last is the last word.
    pub fn is_none(&self) -> bool {
        !self.0.load(Ordering::Acquire)
    }
}

/// Names an object by its parent's partition and its name, before and after.
pub struct RenameObject<'a> {
    pub source: LeasedPartition,
    pub source_name: &'a str,
    pub destination: LeasedPartition,
    pub destination_name: &'a str,
    pub overwrite: bool,
    pub caller: &'a Caller,
}

impl Mutation for NewObject {
    const VERB: &'static Verb = &put_object::VERB;
    const STATEMENT: &'static Statement = &sql::PUT_OBJECT;
    /// The directory's, the name's.
    const LATCHES_MAX: usize = 2;

    fn note_lost(&self) {
        self.doubt.0.store(true, Ordering::Release);
    }

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, put_object::NAME, |new| new.name.as_str()),
            column(batch, put_object::ID, |new| new.id.as_i64()),
            column(batch, put_object::OWNER, |new| new.permission.owner as i32),
            column(batch, put_object::GRP, |new| new.permission.group as i32),
            column(batch, put_object::MODE, |new| i32::from(new.permission.mode)),
            column(batch, put_object::SIZE, |new| new.size as i64),
            column(batch, put_object::ETAG, |new| new.etag.as_str()),
            column(batch, put_object::CONTENT_TYPE, |new| new.content_type.as_deref()),
            column(batch, put_object::USER_METADATA, |new| new.user_metadata.as_ref()),
            column(batch, put_object::LOCATOR, |new| new.locator.as_deref()),
            column(batch, put_object::CONDITION, |new| new.precondition.as_sql()),
            column_if_any(batch, put_object::INLINE, |new| new.inline.as_deref()),
        ]
    }
}

pub struct DeleteObject {
    pub name: String,
    /// The only object and version to delete; `None`: whatever the name has.
    pub only: Option<(EntryId, i64)>,
}

impl Mutation for DeleteObject {
    const VERB: &'static Verb = &delete_object::VERB;
    const STATEMENT: &'static Statement = &sql::DELETE_OBJECT;
    /// The directory's, the name's.
    const LATCHES_MAX: usize = 2;

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, delete_object::NAME, |old| old.name.as_str()),
            column(batch, delete_object::ID, |old| old.only.map(|(id, _)| id.as_i64())),
            column(batch, delete_object::VERSION, |old| old.only.map(|(_, version)| version)),
        ]
    }
}

/// A new object, of the bytes of another one.
pub struct CopyObject<'a> {
    pub source_ns: NamespaceId,
    pub source_directory: LeasedPartition,
    /// As it was read; the copy fails if it has changed.
    pub source: &'a Entry,
    pub destination: LeasedPartition,
    pub name: &'a str,
    pub id: EntryId,
    pub permission: Permission,
    pub content_type: Option<&'a str>,
    pub user_metadata: Option<&'a Value>,
    pub precondition: &'a Precondition,
    pub caller: &'a Caller,
}

/// As the SQL verbs take it.
fn of_directory(partition: LeasedPartition) -> Option<String> {
    partition.permission.map(|permission| permission.to_string())
}

impl Store {
    pub async fn rename_object(&self, claim: RequestClaim, rename: RenameObject<'_>) -> Result<Written> {
        let destination = rename.destination;
        let row = self
            .query_one_at(
                destination.pid,
                &sql::RENAME_OBJECT,
                &[
                    (&(claim.principal as i32), Type::INT4),
                    (&claim.ns.as_i64(), Type::INT8),
                    (&rename.source.pid.as_i64(), Type::INT8),
                    (&rename.source_name, Type::TEXT),
                    (&destination.pid.as_i64(), Type::INT8),
                    (&rename.destination_name, Type::TEXT),
                    (&rename.overwrite, Type::BOOL),
                    (&claim.request, Type::UUID),
                    (&claim.hash, Type::INT8),
                    (&destination.lease.to_string(), Type::TEXT),
                    (&rename.caller.to_string(), Type::TEXT),
                    (&of_directory(rename.source), Type::TEXT),
                    (&of_directory(destination), Type::TEXT),
                ],
            )
            .await?;
        let written = Written::expect(&row)?;
        if self.nodes.are_apart(rename.source.pid, destination.pid) {
            // For a directory the index waits for the other part; for an object nothing else does.
            wait_for_prepared(&self.nodes).await?;
        }
        Ok(written)
    }

    /// Makes an object of the source's bytes.
    pub async fn copy_object(&self, claim: RequestClaim, copy: &CopyObject<'_>) -> Result<Coded> {
        let (source, destination) = (copy.source, copy.destination);
        let permission = copy.permission;
        let row = self
            .query_one_at(
                destination.pid,
                &sql::COPY_OBJECT,
                &[
                    (&(claim.principal as i32), Type::INT4),
                    (&copy.source_ns.as_i64(), Type::INT8),
                    (&copy.source_directory.pid.as_i64(), Type::INT8),
                    (&source.name, Type::TEXT),
                    (&source.id.as_i64(), Type::INT8),
                    (&source.version, Type::INT8),
                    (&claim.ns.as_i64(), Type::INT8),
                    (&destination.pid.as_i64(), Type::INT8),
                    (&copy.name, Type::TEXT),
                    (&copy.id.as_i64(), Type::INT8),
                    (&(permission.owner as i32), Type::INT4),
                    (&(permission.group as i32), Type::INT4),
                    (&i32::from(permission.mode), Type::INT4),
                    (&copy.content_type, Type::TEXT),
                    (&copy.user_metadata, Type::JSONB),
                    (&copy.precondition.as_sql(), Type::TEXT),
                    (&claim.request, Type::UUID),
                    (&claim.hash, Type::INT8),
                    (&destination.lease.to_string(), Type::TEXT),
                    (&copy.caller.to_string(), Type::TEXT),
                    (&of_directory(destination), Type::TEXT),
                    (&of_directory(copy.source_directory), Type::TEXT),
                ],
            )
            .await?;
        let written = Written::read(&row)?;
        if self.nodes.are_apart(copy.source_directory.pid, destination.pid) {
            wait_for_prepared(&self.nodes).await?;
        }
        Ok(written)
    }
}
