//! Mutations of directories, and of the attributes of any entry. The functions take batches; these are batches of one.

use mantle_types::{ErrorCode, Permission, Result};
use serde_json::Value;
use tokio_postgres::types::Type;

use super::{Signed, Store, rows::Written, sql};

/// A directory to be made.
pub struct NewDirectory<'a> {
    /// The parent's partition.
    pub pid: i64,
    /// Name with its trailing slash.
    pub name: &'a str,
    /// New id.
    pub id: i64,
    /// Owner, group, mode.
    pub permission: Permission,
    /// Made explicitly (stays when empty)?
    pub explicit: bool,
    /// User metadata.
    pub user_metadata: Option<Value>,
}

/// A directory to be moved, as the index's leader has locked it.
pub struct RenameDirectory<'a> {
    /// Partition it is in.
    pub source_pid: i64,
    /// Its name with the trailing slash.
    pub source_name: &'a str,
    /// Its id.
    pub source_id: i64,
    /// Partition it goes to.
    pub destination_pid: i64,
    /// Its new name with the trailing slash.
    pub destination_name: &'a str,
    /// The empty directory to be replaced; 0 for none.
    pub victim_id: i64,
    /// The index group.
    pub group: u32,
    /// The epoch of the prepare.
    pub epoch: u64,
    /// The attempt.
    pub attempt: u64,
}

/// New attributes of an entry; `None` leaves one as it is.
#[derive(Default)]
pub struct SetAttributes<'a> {
    /// Partition.
    pub pid: i64,
    /// Name, a directory's with its trailing slash.
    pub name: &'a str,
    /// Id.
    pub id: i64,
    /// Owner.
    pub owner: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Mode.
    pub mode: Option<u16>,
    /// User metadata, replaced as a whole.
    pub user_metadata: Option<Value>,
    /// Does the directory stay when empty?
    pub explicit: Option<bool>,
}

impl Store {
    /// Makes a directory. With `already_exists` the answer has the existing one's id.
    pub async fn mkdir(&self, signed: Signed, new: NewDirectory<'_>) -> Result<(Option<ErrorCode>, Written)> {
        let principal = signed.principal as i32;
        let Permission { owner, group, mode } = new.permission;
        let row = self
            .query_one(
                &sql::MKDIR,
                &[
                    (&&[principal][..], Type::INT4_ARRAY),
                    (&&[signed.ns][..], Type::INT8_ARRAY),
                    (&&[new.pid][..], Type::INT8_ARRAY),
                    (&&[new.name][..], Type::TEXT_ARRAY),
                    (&&[new.id][..], Type::INT8_ARRAY),
                    (&&[owner as i32][..], Type::INT4_ARRAY),
                    (&&[group as i32][..], Type::INT4_ARRAY),
                    (&&[i32::from(mode)][..], Type::INT4_ARRAY),
                    (&&[new.explicit][..], Type::BOOL_ARRAY),
                    (&&[new.user_metadata][..], Type::JSONB_ARRAY),
                    (&&[signed.request][..], Type::UUID_ARRAY),
                    (&&[signed.hash][..], Type::INT8_ARRAY),
                ],
            )
            .await?;
        Written::read(&row)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, signed: Signed, pid: i64, name: &str, id: i64) -> Result<Written> {
        let principal = signed.principal as i32;
        let row = self
            .query_one(
                &sql::RMDIR,
                &[
                    (&&[principal][..], Type::INT4_ARRAY),
                    (&&[signed.ns][..], Type::INT8_ARRAY),
                    (&&[pid][..], Type::INT8_ARRAY),
                    (&&[name][..], Type::TEXT_ARRAY),
                    (&&[id][..], Type::INT8_ARRAY),
                    (&&[signed.request][..], Type::UUID_ARRAY),
                    (&&[signed.hash][..], Type::INT8_ARRAY),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// Moves a directory that the index's leader has locked for this request.
    pub async fn rename_directory(&self, signed: Signed, rename: RenameDirectory<'_>) -> Result<Written> {
        let (principal, group) = (signed.principal as i32, rename.group as i32);
        let (epoch, attempt) = (rename.epoch as i64, rename.attempt as i64);
        let row = self
            .query_one(
                &sql::RENAME_DIRECTORY,
                &[
                    (&principal, Type::INT4),
                    (&signed.ns, Type::INT8),
                    (&rename.source_pid, Type::INT8),
                    (&rename.source_name, Type::TEXT),
                    (&rename.source_id, Type::INT8),
                    (&rename.destination_pid, Type::INT8),
                    (&rename.destination_name, Type::TEXT),
                    (&rename.victim_id, Type::INT8),
                    (&group, Type::INT4),
                    (&epoch, Type::INT8),
                    (&attempt, Type::INT8),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// Changes attributes of a directory or an object.
    pub async fn set_attributes(&self, signed: Signed, set: SetAttributes<'_>) -> Result<Written> {
        let principal = signed.principal as i32;
        let (owner, group) = (set.owner.map(|v| v as i32), set.group.map(|v| v as i32));
        let mode = set.mode.map(i32::from);
        let row = self
            .query_one(
                &sql::SET_ATTRIBUTES,
                &[
                    (&&[principal][..], Type::INT4_ARRAY),
                    (&&[signed.ns][..], Type::INT8_ARRAY),
                    (&&[set.pid][..], Type::INT8_ARRAY),
                    (&&[set.name][..], Type::TEXT_ARRAY),
                    (&&[set.id][..], Type::INT8_ARRAY),
                    (&&[owner][..], Type::INT4_ARRAY),
                    (&&[group][..], Type::INT4_ARRAY),
                    (&&[mode][..], Type::INT4_ARRAY),
                    (&&[set.user_metadata][..], Type::JSONB_ARRAY),
                    (&&[set.explicit][..], Type::BOOL_ARRAY),
                    (&&[signed.request][..], Type::UUID_ARRAY),
                    (&&[signed.hash][..], Type::INT8_ARRAY),
                ],
            )
            .await?;
        Written::expect(&row)
    }
}
