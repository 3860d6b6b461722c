//! Namespaces, and the recorded answers of requests.

use chrono::{DateTime, Utc};
use mantle_types::{ErrorCode, Permission, Result};
use tokio_postgres::{Row, types::Type};

use super::{
    Signed, Store,
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

    /// Creates a namespace. With `namespace_exists` the answer names the existing one and its owner.
    pub async fn create_namespace(
        &self,
        signed: Signed,
        name: &str,
        id: i64,
        permission: Permission,
    ) -> Result<(Option<ErrorCode>, Written)> {
        let (principal, owner, group) = (signed.principal as i32, permission.owner as i32, permission.group as i32);
        let mode = i32::from(permission.mode);
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
