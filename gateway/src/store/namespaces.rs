//! Namespaces, and the recorded answers of requests.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use mantle_types::{ErrorCode, Permission, Result};
use tokio_postgres::{Row, types::Type};

use super::{
    Signed, Store,
    nodes::Nodes,
    questions::Asks,
    rows::{self, Written},
    sql,
};

/// A namespace (bucket).
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Id, also of its root directory.
    pub ns: i64,
    /// Name.
    pub name: String,
    /// Owner.
    pub owner: u32,
    /// Created.
    pub created: DateTime<Utc>,
}

/// Which index group serves a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The group.
    pub group: u32,
    /// Another one that has to have a change before it is acknowledged.
    pub also: Option<u32>,
    /// How often assignments of the group had been changed when this was read.
    pub changes: i64,
}

impl Namespace {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            ns: rows::get(row, "ns")?,
            name: rows::get(row, "name")?,
            owner: rows::get::<i32>(row, "owner")? as u32,
            created: rows::get(row, "created")?,
        })
    }
}

/// Asks for the assignments of namespaces by their names. There may be a storm of names that are none (P28).
pub struct Assignments(pub Arc<Nodes>);

impl Asks for Assignments {
    type Question = String;
    type Answer = Option<Assignment>;
    const NAME: &'static str = sql::ASSIGNMENTS.name;

    async fn ask(&self, names: &[String]) -> Result<Vec<Result<Option<Assignment>>>> {
        let rows = self.0.main().query(&sql::ASSIGNMENTS, &[(&names, Type::TEXT_ARRAY)], false).await?;
        let read = |row: &Row| {
            let Some(group) = rows::get_opt::<i32>(row, "index_group")? else { return Ok(None) };
            let also = rows::get_opt::<i32>(row, "also")?.map(|also| also as u32);
            Ok(Some(Assignment { group: group as u32, also, changes: rows::get(row, "changes")? }))
        };
        Ok(rows.iter().map(read).collect())
    }
}

impl Store {
    /// All namespaces, by name.
    pub async fn list_namespaces(&self) -> Result<Vec<Namespace>> {
        let rows = self.query(&sql::LIST_NAMESPACES, &[]).await?;
        let mut all = rows.iter().map(Namespace::read).collect::<Result<Vec<_>>>()?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// One namespace.
    pub async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let rows = self.query(&sql::NAMESPACE, &[(&name, Type::TEXT)]).await?;
        match rows.first() {
            // A function that returns one composite row answers NULLs for nothing.
            Some(row) if rows::get_opt::<i64>(row, "ns")?.is_some() => Namespace::read(row).map(Some),
            _ => Ok(None),
        }
    }

    /// The group of a namespace, if there is such a namespace.
    pub async fn assignment(&self, name: &str) -> Result<Option<Assignment>> {
        self.assignments.ask(name.to_owned()).await
    }

    /// The groups that have, or had, replicas.
    pub async fn hosted_groups(&self) -> Result<Vec<u32>> {
        let rows = self.query(&sql::HOSTED_GROUPS, &[]).await?;
        rows.iter().map(|row| Ok(rows::get::<i32>(row, "index_group")? as u32)).collect()
    }

    /// Creates a namespace, in a group or PostgreSQL's default. With `namespace_exists` the answer names the existing one and its owner.
    pub async fn create_namespace(
        &self,
        signed: Signed,
        name: &str,
        id: i64,
        permission: Permission,
        index_group: Option<u32>,
    ) -> Result<(Option<ErrorCode>, Written)> {
        let (principal, owner, group) = (signed.principal as i32, permission.owner as i32, permission.group as i32);
        let (mode, index_group) = (i32::from(permission.mode), index_group.map(|group| group as i32));
        let row = self
            .query_one(
                &sql::CREATE_NAMESPACE,
                &[
                    (&principal, Type::INT4),
                    (&name, Type::TEXT),
                    (&id, Type::INT8),
                    (&owner, Type::INT4),
                    (&group, Type::INT4),
                    (&mode, Type::INT4),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                    (&index_group, Type::INT4),
                ],
            )
            .await?;
        Written::read(&row)
    }

    /// Removes an empty namespace.
    pub async fn delete_namespace(&self, signed: Signed, name: &str) -> Result<Written> {
        let principal = signed.principal as i32;
        let row = self
            .query_one(
                &sql::DELETE_NAMESPACE,
                &[
                    (&principal, Type::INT4),
                    (&name, Type::TEXT),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                ],
            )
            .await?;
        Written::expect(&row)
    }

    /// The recorded answer of a client's request in a namespace, and the namespace's id; `None` when there is none.
    pub async fn replay(&self, signed: Signed, namespace: &str) -> Result<Option<(i64, Written)>> {
        let principal = signed.principal as i32;
        let rows = self
            .query(
                &sql::REPLAY,
                &[
                    (&principal, Type::INT4),
                    (&namespace, Type::TEXT),
                    (&signed.request, Type::UUID),
                    (&signed.hash, Type::INT8),
                ],
            )
            .await?;
        recorded(rows.first())
    }

    /// The recorded answer of a request that created or removed a namespace.
    pub async fn replay_namespace(&self, signed: Signed) -> Result<Option<Written>> {
        let principal = signed.principal as i32;
        let rows = self
            .query(
                &sql::REPLAY_NAMESPACE,
                &[(&principal, Type::INT4), (&signed.request, Type::UUID), (&signed.hash, Type::INT8)],
            )
            .await?;
        Ok(recorded(rows.first())?.map(|(_, written)| written))
    }
}

fn recorded(row: Option<&Row>) -> Result<Option<(i64, Written)>> {
    let Some(row) = row else { return Ok(None) };
    if let Some(code) = rows::code(row)? {
        return Err(code.into());
    }
    if !rows::get_opt::<bool>(row, "found")?.unwrap_or_default() {
        return Ok(None);
    }
    let (_, written) = Written::read(row)?;
    Ok(Some((rows::get(row, "ns")?, Written { replayed: true, ..written })))
}
