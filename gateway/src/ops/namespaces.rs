//! Namespaces (buckets): create, remove, list.

use mantle_types::{Error, ErrorCode, GroupId, NamespaceId, Result, name::check_namespace_name, permission::Access};

use super::locate::Purpose;
use crate::{
    app::{Call, DIRECTORY_MODE, Gateway},
    hash::RequestHash,
    store::{Namespace, no_namespace},
};

/// Paths that gateways of older releases answer themselves, so that they cannot be namespaces.
pub const RESERVED: [&str; 3] = ["livez", "readyz", "metrics"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    Created(NamespaceId),
    /// The caller owned it already.
    Existing(NamespaceId),
}

impl Gateway {
    /// Creates a namespace, in PostgreSQL's default index group unless one is given.
    pub async fn create_namespace(&self, call: &Call, name: &str, group: Option<GroupId>) -> Result<Creation> {
        check_namespace_name(name)?;
        if RESERVED.contains(&name) {
            let detail = format!("`{name}` is a path of the service itself");
            return Err(Error::new(ErrorCode::InvalidNamespaceName, detail));
        }
        let hash = RequestHash::new("create_namespace", name, "");
        let hash = if let Some(group) = group { hash.part(group.0.to_le_bytes()) } else { hash };
        let claim = call.claim(NamespaceId(0), hash.finish());
        if call.client_key
            && let Some(written) = self.store.replay_namespace(claim).await?
        {
            self.index.await_written(name, claim.key(), &written).await?;
            return Ok(Creation::Created(NamespaceId(written.id.0)));
        }
        let permission = call.permission(DIRECTORY_MODE);
        let (code, written) = self
            .with_new_id(|id| self.store.create_namespace(claim, name, NamespaceId(id.0), permission, group))
            .await?;
        match code {
            None => {
                self.index.await_written(name, claim.key(), &written).await?;
                Ok(Creation::Created(NamespaceId(written.id.0)))
            }
            Some(ErrorCode::NamespaceExists) if written.owner == Some(call.caller.uid) => {
                Ok(Creation::Existing(NamespaceId(written.id.0)))
            }
            Some(code) => Err(code.into()),
        }
    }

    pub async fn delete_namespace(&self, call: &Call, name: &str) -> Result<()> {
        check_namespace_name(name)?;
        let claim = call.claim(NamespaceId(0), RequestHash::new("delete_namespace", name, "").finish());
        if call.client_key && self.store.replay_namespace(claim).await?.is_some() {
            return self.index.await_old_removal().await;
        }
        let namespace = self.store.namespace(name).await?.ok_or_else(|| no_namespace(name))?;
        if call.caller.uid != 0 && call.caller.uid != namespace.owner {
            return Err(Error::new(ErrorCode::AccessDenied, "only its owner may remove a namespace"));
        }
        let assigned = self.index.assigned(name).await?;
        let mut answer = self.store.delete_namespace(claim, name).await;
        if matches!(&answer, Err(e) if e.code() == ErrorCode::NotEmpty) {
            let root = namespace.ns.root();
            // It may hold nothing but directories that S3 does not show, and more than go at once.
            if self.prune_ghosts(root.sole_partition(), root, true).await? {
                answer = self.store.delete_namespace(claim, name).await;
            }
        }
        let written = answer?;
        match written.replayed {
            true => self.index.await_old_removal().await,
            false => self.index.await_removal(&assigned, claim.key()).await,
        }
    }

    /// The caller's namespaces; all of them for uid 0.
    pub async fn list_namespaces(&self, call: &Call) -> Result<Vec<Namespace>> {
        let mut all = self.store.list_namespaces().await?;
        all.retain(|namespace| call.caller.uid == 0 || call.caller.uid == namespace.owner);
        Ok(all)
    }

    /// An error unless the namespace exists and the caller may use it.
    pub async fn head_namespace(&self, call: &Call, name: &str) -> Result<()> {
        check_namespace_name(name)?;
        let root = self.locate(&call.caller, name, &[], Purpose::Lookup).await?;
        root.check(&call.caller, Access::Search)
    }
}
