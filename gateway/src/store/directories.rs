//! Mutations of directories, and of the attributes of any entry.

use mantle_types::{
    DirectoryId, EntryId, ErrorCode, PartitionId, Permission, Result,
    verbs::{Verb, mkdir, rmdir, set_attributes},
};
use serde_json::Value;
use tokio_postgres::types::Type;

use super::{
    RequestClaim, Store,
    columns::{Column, column, column_if_any},
    mutation::Mutation,
    renames::{self, Element, RenameDirectory},
    rows::{self, Entry, Written},
    sql::{self, Statement},
};
use crate::disconnect::check_client_waits;

#[derive(Clone)]
pub struct NewDirectory {
    /// Name with its trailing slash.
    pub name: String,
    pub id: DirectoryId,
    pub permission: Permission,
    /// An explicit directory stays when it is empty.
    pub explicit: bool,
    pub user_metadata: Option<Value>,
}

/// New attributes of an entry; `None` leaves one as it is.
pub struct SetAttributes {
    /// Name; a directory's has its trailing slash.
    pub name: String,
    /// The entry that was looked up.
    pub id: EntryId,
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub mode: Option<u16>,
    /// User metadata, replaced as a whole.
    pub user_metadata: Option<Value>,
    /// An explicit directory stays when it is empty.
    pub explicit: Option<bool>,
    pub part_of: Option<PartOf>,
}

/// A request of which a change of attributes is a part, if it needs more permissions than the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOf {
    /// A put of the key of a directory that is there: what making it needs.
    Put,
    /// A change of tags: reading the entry.
    Tags,
}

impl PartOf {
    /// As the SQL verb takes it.
    const fn as_sql(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Tags => "tags",
        }
    }
}

impl SetAttributes {
    /// Changes nothing of an entry yet.
    pub fn of(entry: &Entry) -> Self {
        let (name, id) = (entry.name.clone(), entry.id);
        Self { name, id, owner: None, group: None, mode: None, user_metadata: None, explicit: None, part_of: None }
    }
}

impl Mutation for NewDirectory {
    const VERB: &'static Verb = &mkdir::VERB;
    const STATEMENT: &'static Statement = &sql::MKDIR;
    /// The parent's, the name's.
    const LATCHES_MAX: usize = 2;

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, mkdir::NAME, |new| new.name.as_str()),
            column(batch, mkdir::ID, |new| new.id.as_i64()),
            column(batch, mkdir::OWNER, |new| new.permission.owner as i32),
            column(batch, mkdir::GRP, |new| new.permission.group as i32),
            column(batch, mkdir::MODE, |new| i32::from(new.permission.mode)),
            column(batch, mkdir::EXPLICIT, |new| new.explicit),
            column(batch, mkdir::USER_METADATA, |new| new.user_metadata.as_ref()),
        ]
    }
}

pub struct Rmdir {
    /// Name with its trailing slash.
    pub name: String,
    pub id: DirectoryId,
}

impl Mutation for Rmdir {
    const VERB: &'static Verb = &rmdir::VERB;
    const STATEMENT: &'static Statement = &sql::RMDIR;
    /// The parent's, the directory's own, the name's.
    const LATCHES_MAX: usize = 3;

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![column(batch, rmdir::NAME, |old| old.name.as_str()), column(batch, rmdir::ID, |old| old.id.as_i64())]
    }
}

impl Mutation for SetAttributes {
    const VERB: &'static Verb = &set_attributes::VERB;
    const STATEMENT: &'static Statement = &sql::SET_ATTRIBUTES;
    /// The partition's, the name's.
    const LATCHES_MAX: usize = 2;

    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>> {
        vec![
            column(batch, set_attributes::NAME, |set| set.name.as_str()),
            column(batch, set_attributes::ID, |set| set.id.as_i64()),
            column(batch, set_attributes::OWNER, |set| set.owner.map(|owner| owner as i32)),
            column(batch, set_attributes::GRP, |set| set.group.map(|group| group as i32)),
            column(batch, set_attributes::MODE, |set| set.mode.map(i32::from)),
            column(batch, set_attributes::USER_METADATA, |set| set.user_metadata.as_ref()),
            column(batch, set_attributes::EXPLICIT, |set| set.explicit),
            column_if_any(batch, set_attributes::PART_OF, |set| set.part_of.map(PartOf::as_sql)),
        ]
    }
}

/// What became of directories that hold no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pruned {
    Gone,
    /// There are more than one call removes, or something came in between.
    More,
    /// They hold a key.
    Kept,
}

impl Store {
    /// Removes an implicit directory and those below it, if no key is in them. `keeps`: only those below it.
    pub async fn prune_tree(&self, at: PartitionId, id: DirectoryId, keeps: bool) -> Result<Pruned> {
        let params = [(&id.as_i64() as _, Type::INT8), (&keeps as _, Type::BOOL)];
        let row = self.query_one_at(at, &sql::PRUNE_TREE, &params).await?;
        Ok(match rows::get::<&str>(&row, "state")? {
            "gone" => Pruned::Gone,
            "more" => Pruned::More,
            _ => Pruned::Kept,
        })
    }

    /// Commits a rename of a directory that the index has prepared.
    pub async fn rename_directory(&self, claim: RequestClaim, rename: RenameDirectory<'_>) -> Result<Written> {
        let element = Element::new(claim, &rename);
        if self.nodes.is_single().await? {
            check_client_waits()?;
            let answer = self.renames.submit(element.clone()).await;
            if rows::code_of(&answer) != Some(ErrorCode::WrongNode) {
                return rows::accepted(answer?);
            }
            // Rolled back: there are several nodes now.
        }
        let columns = element.columns();
        let row = self.query_one_at(element.source, &sql::RENAME_DIRECTORY, &renames::params(&columns)).await?;
        Written::expect(&row)
    }
}
