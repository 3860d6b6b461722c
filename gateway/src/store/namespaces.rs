//! Namespaces and their index groups.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use mantle_types::{Error, ErrorCode, GroupId, NamespaceId, Permission, Result};
use serde::Serialize;
use tokio_postgres::{Row, types::Type};

use super::{
    RequestClaim, Store,
    coalesced_reads::{BatchRead, Failure},
    database::Param,
    nodes::Nodes,
    rows::{self, Coded, Written},
    sql,
};

/// A namespace (bucket). The native API answers it as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Namespace {
    pub name: String,
    /// Also the id of its root directory.
    #[serde(rename = "id")]
    pub ns: NamespaceId,
    pub owner: u32,
    pub created: DateTime<Utc>,
}

/// Which index group serves a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub group: GroupId,
    /// During a move, a second group that must have a change before it is acknowledged.
    pub also: Option<GroupId>,
    /// The group's counter of changed assignments when this was read.
    pub changes: i64,
}

impl Namespace {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            ns: rows::get::<i64>(row, "ns")?.into(),
            name: rows::get(row, "name")?,
            owner: rows::get::<i32>(row, "owner")? as u32,
            created: rows::get(row, "created")?,
        })
    }
}

/// Reads assignments by the namespaces' names. A storm of unknown names is possible (P28).
pub struct ReadAssignments(pub Arc<Nodes>);

impl BatchRead for ReadAssignments {
    type Key = String;
    type Answer = Option<Assignment>;
    const NAME: &'static str = sql::ASSIGNMENTS.name;

    async fn read(&self, names: &[String]) -> Result<Vec<Result<Option<Assignment>>>, Failure> {
        let rows = self.0.main().query(&sql::ASSIGNMENTS, &[(&names, Type::TEXT_ARRAY)], false).await?;
        let read = |row: &Row| {
            let Some(group) = group_of(row, "index_group")? else { return Ok(None) };
            Ok(Some(Assignment { group, also: group_of(row, "also")?, changes: rows::get(row, "changes")? }))
        };
        Ok(rows.iter().map(read).collect())
    }
}

impl Store {
    pub async fn list_namespaces(&self) -> Result<Vec<Namespace>> {
        let rows = self.query(&sql::LIST_NAMESPACES, &[]).await?;
        let mut all = rows.iter().map(Namespace::read).collect::<Result<Vec<_>>>()?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    pub async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let rows = self.query(&sql::NAMESPACE, &[(&name, Type::TEXT)]).await?;
        match rows.first() {
            // A function that returns one composite row answers NULLs when there is none.
            Some(row) if rows::get_opt::<i64>(row, "ns")?.is_some() => Namespace::read(row).map(Some),
            _ => Ok(None),
        }
    }

    /// The group of a namespace; `None` if the namespace does not exist.
    pub async fn assignment(&self, name: &str) -> Result<Option<Assignment>> {
        self.assignments.read(name.to_owned()).await
    }

    /// Permits keys with this many components and bytes.
    pub async fn raise_key_size(&self, ns: NamespaceId, levels: i32, bytes: i32) -> Result<()> {
        let params = [(&ns.as_i64() as _, Type::INT8), (&levels as _, Type::INT4), (&bytes as _, Type::INT4)];
        self.query_one(&sql::RAISE_KEY_SIZE, &params).await.map(drop)
    }

    /// Whether a directory may move to a path with this many more components and bytes, whatever is below it.
    pub async fn admit_move(&self, ns: NamespaceId, levels: i32, bytes: i32) -> Result<bool> {
        let params = [(&ns.as_i64() as _, Type::INT8), (&levels as _, Type::INT4), (&bytes as _, Type::INT4)];
        rows::get(&self.query_one(&sql::ADMIT_MOVE, &params).await?, "is_admitted")
    }

    /// All groups that have, or had, replicas.
    pub async fn hosted_groups(&self) -> Result<Vec<GroupId>> {
        let rows = self.query(&sql::HOSTED_GROUPS, &[]).await?;
        rows.iter().filter_map(|row| group_of(row, "index_group").transpose()).collect()
    }

    /// Creates a namespace, in PostgreSQL's default group unless one is given. With `namespace_exists` the answer has
    /// the existing one's id and owner.
    pub async fn create_namespace(
        &self,
        claim: RequestClaim,
        name: &str,
        id: NamespaceId,
        permission: Permission,
        umask: Option<u16>,
        index_group: Option<GroupId>,
    ) -> Result<Coded> {
        let (principal, owner, group) = (claim.principal as i32, permission.owner as i32, permission.group as i32);
        let (mode, index_group) = (i32::from(permission.mode), index_group.map(GroupId::as_i32));
        let row = self
            .query_one(
                &sql::CREATE_NAMESPACE,
                &[
                    (&principal, Type::INT4),
                    (&name, Type::TEXT),
                    (&id.as_i64(), Type::INT8),
                    (&owner, Type::INT4),
                    (&group, Type::INT4),
                    (&mode, Type::INT4),
                    (&claim.request, Type::UUID),
                    (&claim.hash, Type::INT8),
                    (&index_group, Type::INT4),
                    (&umask.map(i32::from), Type::INT4),
                ],
            )
            .await?;
        Written::read(&row)
    }

    /// Changes the mode bits that nothing new in a namespace gets.
    pub async fn set_umask(&self, principal: u32, name: &str, umask: u16) -> Result<()> {
        let (principal, umask) = (principal as i32, i32::from(umask));
        let params: [Param<'_>; 3] = [(&principal, Type::INT4), (&name, Type::TEXT), (&umask, Type::INT4)];
        match rows::code(&self.query_one(&sql::SET_UMASK, &params).await?)? {
            None => Ok(()),
            Some(code) => Err(code.into()),
        }
    }

    pub async fn delete_namespace(&self, claim: RequestClaim, name: &str) -> Result<Written> {
        let principal = claim.principal as i32;
        let params: [Param<'_>; 4] =
            [(&principal, Type::INT4), (&name, Type::TEXT), (&claim.request, Type::UUID), (&claim.hash, Type::INT8)];
        Written::expect(&self.query_one(&sql::DELETE_NAMESPACE, &params).await?)
    }
}

/// The error of a name that no namespace has.
pub fn no_namespace(name: &str) -> Error {
    Error::new(ErrorCode::NamespaceNotFound, format!("there is no namespace `{name}`"))
}

fn group_of(row: &Row, column: &str) -> Result<Option<GroupId>> {
    Ok(rows::get_opt::<i32>(row, column)?.map(GroupId::from))
}
