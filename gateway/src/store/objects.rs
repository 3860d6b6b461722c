//! Mutations of objects' metadata.

use mantle_types::{Permission, Result};
use serde_json::Value;
use tokio_postgres::types::Type;

use super::{Signed, Store, rows::Written, sql};

/// An object whose bytes are stored already.
pub struct NewObject<'a> {
    /// The directory's partition.
    pub pid: i64,
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
    pub destination_pid: i64,
    /// Its new name.
    pub destination_name: &'a str,
    /// May it replace an object?
    pub overwrite: bool,
}

impl Store {
    /// Creates or replaces an object.
    pub async fn put_object(&self, signed: Signed, new: &NewObject<'_>) -> Result<Written> {
        let principal = signed.principal as i32;
        let Permission { owner, group, mode } = new.permission;
        let row = self
            .query_one(
                &sql::PUT_OBJECT,
                &[
                    (&&[principal][..], Type::INT4_ARRAY),
                    (&&[signed.ns][..], Type::INT8_ARRAY),
                    (&&[new.pid][..], Type::INT8_ARRAY),
                    (&&[new.name][..], Type::TEXT_ARRAY),
                    (&&[new.id][..], Type::INT8_ARRAY),
                    (&&[owner as i32][..], Type::INT4_ARRAY),
                    (&&[group as i32][..], Type::INT4_ARRAY),
                    (&&[i32::from(mode)][..], Type::INT4_ARRAY),
                    (&&[new.size as i64][..], Type::INT8_ARRAY),
                    (&&[new.etag][..], Type::TEXT_ARRAY),
                    (&&[new.content_type][..], Type::TEXT_ARRAY),
                    (&&[new.user_metadata.clone()][..], Type::JSONB_ARRAY),
                    (&&[new.locator][..], Type::TEXT_ARRAY),
                    (&&[new.condition][..], Type::TEXT_ARRAY),
                    (&&[signed.request][..], Type::UUID_ARRAY),
                    (&&[signed.hash][..], Type::INT8_ARRAY),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// Removes an object.
    pub async fn delete_object(&self, signed: Signed, pid: i64, name: &str) -> Result<Written> {
        let principal = signed.principal as i32;
        let row = self
            .query_one(
                &sql::DELETE_OBJECT,
                &[
                    (&&[principal][..], Type::INT4_ARRAY),
                    (&&[signed.ns][..], Type::INT8_ARRAY),
                    (&&[pid][..], Type::INT8_ARRAY),
                    (&&[name][..], Type::TEXT_ARRAY),
                    (&&[signed.request][..], Type::UUID_ARRAY),
                    (&&[signed.hash][..], Type::INT8_ARRAY),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// Moves an object.
    pub async fn rename_object(&self, signed: Signed, rename: RenameObject<'_>) -> Result<Written> {
        let principal = signed.principal as i32;
        let row = self
            .query_one(
                &sql::RENAME_OBJECT,
                &[
                    (&principal, Type::INT4),
                    (&signed.ns, Type::INT8),
                    (&rename.source_pid, Type::INT8),
                    (&rename.source_name, Type::TEXT),
                    (&rename.destination_pid, Type::INT8),
                    (&rename.destination_name, Type::TEXT),
                    (&rename.overwrite, Type::BOOL),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                ],
            )
            .await?;
        Written::expect(&row)
    }
}
