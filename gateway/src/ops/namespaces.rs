//! Namespaces (buckets): create, remove, list.

use mantle_types::{
    Caller, Error, ErrorCode, GroupId, NamespaceId, Result, name::check_namespace_name, permission::Access,
};

use super::{locate::Purpose, stat::check_root};
use crate::{
    app::{Call, Gateway, ROOT_MODE},
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

/// What a new namespace has of its own; `None` is the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewNamespace {
    /// The index group that serves it; by default PostgreSQL's first.
    pub group: Option<GroupId>,
    /// Of its root; by default only the owner sees what is in it.
    pub mode: Option<u16>,
    /// The mode bits that nothing new in it gets; by default all of group and others.
    pub umask: Option<u16>,
}

impl Gateway {
    /// Creates a namespace.
    pub async fn create_namespace(&self, call: &Call, name: &str, new: &NewNamespace) -> Result<Creation> {
        check_namespace_name(name)?;
        if RESERVED.contains(&name) {
            let detail = format!("`{name}` is a path of the service itself");
            return Err(Error::new(ErrorCode::InvalidNamespaceName, detail));
        }
        let hash = RequestHash::new("create_namespace", name, "");
        let hash = if let Some(group) = new.group { hash.part(group.0.to_le_bytes()) } else { hash };
        let modes = [new.mode, new.umask];
        let hash = if modes == [None; 2] {
            hash
        } else {
            modes.iter().fold(hash, |hash, mode| hash.optional(mode.map(u16::to_le_bytes)))
        };
        let claim = call.claim(NamespaceId(0), hash.finish());
        if call.client_key
            && let Some(written) = self.store.replay_namespace(claim).await?
        {
            self.index.await_written(name, claim.key(), &written).await?;
            return Ok(Creation::Created(NamespaceId(written.id.0)));
        }
        let permission = call.permission(new.mode.unwrap_or(ROOT_MODE));
        let (code, written) = self
            .with_new_id(|id| {
                let id = NamespaceId(id.0);
                self.store.create_namespace(claim, name, id, permission, new.umask, new.group)
            })
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

    /// Changes the mode bits that nothing new in a namespace gets. What is there keeps its mode.
    pub async fn set_umask(&self, call: &Call, name: &str, umask: u16) -> Result<()> {
        check_namespace_name(name)?;
        self.store.set_umask(call.caller.uid, name, umask).await
    }

    pub async fn delete_namespace(&self, call: &Call, name: &str) -> Result<()> {
        check_namespace_name(name)?;
        let claim = call.claim(NamespaceId(0), RequestHash::new("delete_namespace", name, "").finish());
        if call.client_key && self.store.replay_namespace(claim).await?.is_some() {
            return self.index.await_old_removal().await;
        }
        let Some(namespace) = self.store.namespace(name).await? else {
            // An earlier attempt may have deleted it, and be answered while this one asks.
            let earlier = call.client_key && self.store.replay_namespace(claim).await?.is_some();
            return if earlier { self.index.await_old_removal().await } else { Err(no_namespace(name)) };
        };
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

    /// The owner of a namespace; `None` if there is no such namespace.
    ///
    /// # Errors
    /// `AccessDenied` unless the caller owns the namespace or may see its root, whoever the owner is.
    pub async fn owner_of_namespace(&self, caller: &Caller, name: &str) -> Result<Option<u32>> {
        let Some(namespace) = self.store.namespace(name).await? else { return Ok(None) };
        if namespace.owner != caller.uid {
            check_root(&self.locate(caller, name, &[], Purpose::Lookup).await?, caller)?;
        }
        Ok(Some(namespace.owner))
    }
}
