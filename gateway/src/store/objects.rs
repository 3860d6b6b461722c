//! Mutations of objects' metadata.

use mantle_types::{Permission, Result};
use serde_json::Value;
use tokio_postgres::{Row, types::Type};

use super::{
    Signed, Store,
    mutation::{Column, Mutation, column},
    rows::Written,
    sql::{self, Statement},
    terms::{Leased, settle},
};

/// An object whose bytes are stored already.
pub struct NewObject<'a> {
    /// The directory's partition.
    pub place: Leased,
    /// Name.
    pub name: &'a str,
    /// New id.
    pub id: i64,
    /// Owner, group, mode.
    pub permission: Permission,
    /// Size in bytes.
    pub size: u64,
    /// MD5 in hexadecimal.
    pub etag: &'a str,
    /// MIME type.
    pub content_type: Option<&'a str>,
    /// User metadata.
    pub user_metadata: Option<Value>,
    /// Where the bytes are.
    pub locator: &'a str,
    /// `*absent`, `*present`, an etag, or none.
    pub condition: Option<&'a str>,
}

/// An object to be moved.
pub struct RenameObject<'a> {
    /// Partition it is in.
    pub source_pid: i64,
    /// Its name.
    pub source_name: &'a str,
    /// Partition it goes to.
    pub destination: Leased,
    /// Its new name.
    pub destination_name: &'a str,
    /// May it replace an object?
    pub overwrite: bool,
}

/// One put of a batch.
pub struct PutObject {
    signed: Signed,
    place: Leased,
    name: String,
    id: i64,
    permission: Permission,
    size: u64,
    etag: String,
    content_type: Option<String>,
    user_metadata: Option<Value>,
    locator: String,
    condition: Option<String>,
}

impl Mutation for PutObject {
    type Answer = Written;
    const STATEMENT: &'static Statement = &sql::PUT_OBJECT;
    /// The directory's, the name's.
    const LATCHES_MAX: usize = 2;

    fn signed(&self) -> &Signed {
        &self.signed
    }

    fn leased(&self) -> &Leased {
        &self.place
    }

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, Type::INT8_ARRAY, |new| new.place.pid),
            column(batch, Type::TEXT_ARRAY, |new| new.name.as_str()),
            column(batch, Type::INT8_ARRAY, |new| new.id),
            column(batch, Type::INT4_ARRAY, |new| new.permission.owner as i32),
            column(batch, Type::INT4_ARRAY, |new| new.permission.group as i32),
            column(batch, Type::INT4_ARRAY, |new| i32::from(new.permission.mode)),
            column(batch, Type::INT8_ARRAY, |new| new.size as i64),
            column(batch, Type::TEXT_ARRAY, |new| new.etag.as_str()),
            column(batch, Type::TEXT_ARRAY, |new| new.content_type.as_deref()),
            column(batch, Type::JSONB_ARRAY, |new| new.user_metadata.as_ref()),
            column(batch, Type::TEXT_ARRAY, |new| new.locator.as_str()),
            column(batch, Type::TEXT_ARRAY, |new| new.condition.as_deref()),
        ]
    }

    fn answer(row: &Row) -> Result<Written> {
        Written::expect(row)
    }
}

/// One deletion of a batch.
pub struct DeleteObject {
    signed: Signed,
    place: Leased,
    name: String,
}

impl Mutation for DeleteObject {
    type Answer = Written;
    const STATEMENT: &'static Statement = &sql::DELETE_OBJECT;
    /// The directory's, the name's.
    const LATCHES_MAX: usize = 2;

    fn signed(&self) -> &Signed {
        &self.signed
    }

    fn leased(&self) -> &Leased {
        &self.place
    }

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, Type::INT8_ARRAY, |old| old.place.pid),
            column(batch, Type::TEXT_ARRAY, |old| old.name.as_str()),
        ]
    }

    fn answer(row: &Row) -> Result<Written> {
        Written::expect(row)
    }
}

impl Store {
    /// Creates or replaces an object.
    pub async fn put_object(&self, signed: Signed, new: &NewObject<'_>) -> Result<Written> {
        let put = PutObject {
            signed,
            place: new.place,
            name: new.name.to_owned(),
            id: new.id,
            permission: new.permission,
            size: new.size,
            etag: new.etag.to_owned(),
            content_type: new.content_type.map(str::to_owned),
            user_metadata: new.user_metadata.clone(),
            locator: new.locator.to_owned(),
            condition: new.condition.map(str::to_owned),
        };
        self.put_object.submit(put).await
    }

    /// Removes an object.
    pub async fn delete_object(&self, signed: Signed, place: Leased, name: &str) -> Result<Written> {
        self.delete_object.submit(DeleteObject { signed, place, name: name.to_owned() }).await
    }

    /// Moves an object.
    pub async fn rename_object(&self, signed: Signed, rename: RenameObject<'_>) -> Result<Written> {
        let principal = signed.principal as i32;
        let row = self
            .query_one_at(
                rename.destination.pid,
                &sql::RENAME_OBJECT,
                &[
                    (&principal, Type::INT4),
                    (&signed.ns, Type::INT8),
                    (&rename.source_pid, Type::INT8),
                    (&rename.source_name, Type::TEXT),
                    (&rename.destination.pid, Type::INT8),
                    (&rename.destination_name, Type::TEXT),
                    (&rename.overwrite, Type::BOOL),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                    (&rename.destination.lease.to_string(), Type::TEXT),
                ],
            )
            .await?;
        let written = Written::expect(&row)?;
        if self.nodes.are_apart(rename.source_pid, rename.destination.pid) {
            // Nobody else waits for the other half, as the index does for a directory's.
            settle(&self.nodes).await?;
        }
        Ok(written)
    }
}
