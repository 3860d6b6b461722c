//! Mutations of directories, and of the attributes of any entry.

use mantle_types::{ErrorCode, Permission, Result};
use serde_json::Value;
use tokio_postgres::{Row, types::Type};

use super::{
    Signed, Store,
    mutation::{Column, Mutation, column},
    rows::{Entry, Written},
    sql::{self, Statement},
    terms::Leased,
};

/// A directory to be made.
pub struct NewDirectory<'a> {
    /// The parent's partition.
    pub place: Leased,
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
    pub source: Leased,
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
    /// That the index has prepared this.
    pub proof: Option<&'a [u8]>,
}

/// New attributes of an entry; `None` leaves one as it is.
pub struct SetAttributes<'a> {
    /// Partition.
    pub place: Leased,
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

impl<'a> SetAttributes<'a> {
    /// An entry, and nothing new.
    pub fn none(place: Leased, entry: &'a Entry) -> Self {
        Self {
            place,
            name: &entry.name,
            id: entry.id,
            owner: None,
            group: None,
            mode: None,
            user_metadata: None,
            explicit: None,
        }
    }
}

/// One mkdir of a batch.
pub struct Mkdir {
    signed: Signed,
    place: Leased,
    name: String,
    id: i64,
    permission: Permission,
    explicit: bool,
    user_metadata: Option<Value>,
}

impl Mutation for Mkdir {
    type Answer = (Option<ErrorCode>, Written);
    const STATEMENT: &'static Statement = &sql::MKDIR;
    /// The parent's, the name's.
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
            column(batch, Type::BOOL_ARRAY, |new| new.explicit),
            column(batch, Type::JSONB_ARRAY, |new| new.user_metadata.as_ref()),
        ]
    }

    fn answer(row: &Row) -> Result<Self::Answer> {
        Written::read(row)
    }
}

/// One rmdir of a batch.
pub struct Rmdir {
    signed: Signed,
    place: Leased,
    name: String,
    id: i64,
}

impl Mutation for Rmdir {
    type Answer = Written;
    const STATEMENT: &'static Statement = &sql::RMDIR;
    /// The parent's, the directory's own, the name's.
    const LATCHES_MAX: usize = 3;

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
            column(batch, Type::INT8_ARRAY, |old| old.id),
        ]
    }

    fn answer(row: &Row) -> Result<Written> {
        Written::expect(row)
    }
}

/// One change of attributes of a batch.
pub struct SetAttributesOf {
    signed: Signed,
    name: String,
    set: SetAttributes<'static>,
}

impl Mutation for SetAttributesOf {
    type Answer = Written;
    const STATEMENT: &'static Statement = &sql::SET_ATTRIBUTES;
    /// The partition's, the name's.
    const LATCHES_MAX: usize = 2;

    fn signed(&self) -> &Signed {
        &self.signed
    }

    fn leased(&self) -> &Leased {
        &self.set.place
    }

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, Type::INT8_ARRAY, |of| of.set.place.pid),
            column(batch, Type::TEXT_ARRAY, |of| of.name.as_str()),
            column(batch, Type::INT8_ARRAY, |of| of.set.id),
            column(batch, Type::INT4_ARRAY, |of| of.set.owner.map(|owner| owner as i32)),
            column(batch, Type::INT4_ARRAY, |of| of.set.group.map(|group| group as i32)),
            column(batch, Type::INT4_ARRAY, |of| of.set.mode.map(i32::from)),
            column(batch, Type::JSONB_ARRAY, |of| of.set.user_metadata.as_ref()),
            column(batch, Type::BOOL_ARRAY, |of| of.set.explicit),
        ]
    }

    fn answer(row: &Row) -> Result<Written> {
        Written::expect(row)
    }
}

impl Store {
    /// Makes a directory. With `already_exists` the answer has the existing one's id.
    pub async fn mkdir(&self, signed: Signed, new: NewDirectory<'_>) -> Result<(Option<ErrorCode>, Written)> {
        let NewDirectory { place, name, id, permission, explicit, user_metadata } = new;
        let name = name.to_owned();
        self.mkdir.submit(Mkdir { signed, place, name, id, permission, explicit, user_metadata }).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, signed: Signed, place: Leased, name: &str, id: i64) -> Result<Written> {
        self.rmdir.submit(Rmdir { signed, place, name: name.to_owned(), id }).await
    }

    /// Moves a directory that the index's leader has locked for this request.
    pub async fn rename_directory(&self, signed: Signed, rename: RenameDirectory<'_>) -> Result<Written> {
        let (principal, group) = (signed.principal as i32, rename.group as i32);
        let (epoch, attempt) = (rename.epoch as i64, rename.attempt as i64);
        let row = self
            .query_one_at(
                rename.source.pid,
                &sql::RENAME_DIRECTORY,
                &[
                    (&principal, Type::INT4),
                    (&signed.ns, Type::INT8),
                    (&rename.source.pid, Type::INT8),
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
                    (&rename.source.lease.to_string(), Type::TEXT),
                    (&rename.proof, Type::BYTEA),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// Changes attributes of a directory or an object.
    pub async fn set_attributes(&self, signed: Signed, set: SetAttributes<'_>) -> Result<Written> {
        let name = set.name.to_owned();
        self.set_attributes.submit(SetAttributesOf { signed, name, set: SetAttributes { name: "", ..set } }).await
    }
}
