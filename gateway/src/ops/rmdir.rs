//! rmdir: resolves parent and directory with one RPC, removes it with one SQL call, and waits until the index knows.

use mantle_types::{DirectoryId, Error, ErrorCode, NamespaceId, Result, name::Path};

use super::{delete_object::DeleteCondition, directory_name, locate::Purpose, restarts::Restarts, stat::Naming};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::{Rmdir, SetAttributes},
};

impl Gateway {
    pub async fn rmdir(&self, call: &Call, namespace: &str, key: &str) -> Result<()> {
        let path = Path::parse(key)?;
        let hash = RequestHash::new("rmdir", namespace, &path.components().join("/")).finish();
        let attempt = self.remove_directory(call, namespace, &path, hash, None);
        self.answer_once(call, namespace, hash, |_| (), attempt).await
    }

    /// `only`: the directory that is meant; another one of its name stays.
    async fn remove_directory(
        &self,
        call: &Call,
        namespace: &str,
        path: &Path<'_>,
        hash: i64,
        only: Option<DirectoryId>,
    ) -> Result<()> {
        let Some((name, parents)) = path.split_last() else {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root is removed with its namespace"));
        };
        let mut restarts = Restarts::default();
        loop {
            let paths = [parents, path.components()];
            let found = self.search_many(&call.caller, namespace, &paths, Purpose::DirectoryChange).await?;
            let mut found = found.into_iter();
            let (Some(parent), Some(directory)) = (found.next(), found.next()) else {
                return Err(ErrorCode::Internal.into());
            };
            let parent = self.whole(parent?, parents, true).await?;
            parent.check_change(&call.caller)?;
            let directory = self.whole(directory?, path.components(), false).await?;
            if only.is_some_and(|only| only != directory.id) {
                return Err(Error::new(ErrorCode::NotFound, "the directory was removed, and made again"));
            }
            let claim = call.claim(parent.ns, hash);
            let awaited = self.index.begin_await(namespace, claim.key());
            let old = Rmdir { name: directory_name(name), id: directory.id };
            match self.store.rmdir.run(claim, &call.caller, parent.leased_partition(), old).await {
                Ok(written) => return awaited.acknowledge(&written).await,
                // For example, another directory has taken its place since the lookup.
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }

    /// Deletes the key `dir/`. Removes an empty directory. Another directory becomes implicit: it is no key any more,
    /// and vanishes with its last entry.
    ///
    /// # Errors
    /// `NotFound`; `PreconditionFailed` if the condition does not hold.
    pub async fn delete_marker(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        condition: &DeleteCondition,
    ) -> Result<()> {
        let path = Path::parse(key)?;
        let hash = condition.hashed(RequestHash::new("delete_marker", namespace, key)).finish();
        let implicit = Call { request: call.step(NamespaceId(0), "make_implicit", hash).request, ..call.clone() };
        let attempt = async {
            let only = self.only_to_delete(call, namespace, key, condition).await?.map(|(id, _)| id.as_directory());
            match self.remove_directory(call, namespace, &path, hash, only).await {
                Err(e) if e.code() == ErrorCode::NotEmpty => self.make_implicit(&implicit, namespace, key, hash).await,
                other => other,
            }
        };
        let removed = self.answer_once(call, namespace, hash, |_| (), attempt);
        self.answer_once(&implicit, namespace, hash, |_| (), removed).await
    }

    /// rmdir has checked that the caller may remove the directory.
    async fn make_implicit(&self, call: &Call, namespace: &str, key: &str, hash: i64) -> Result<()> {
        let mut restarts = Restarts::default();
        loop {
            let found = self.find(call, namespace, key, Naming::Exact).await?;
            if !found.entry.explicit {
                return Ok(());
            }
            let claim = call.claim(found.ns, hash);
            let set = SetAttributes { explicit: Some(false), ..SetAttributes::of(&found.entry) };
            let awaited = self.index.begin_await(namespace, claim.key());
            match self.store.set_attributes.run(claim, &call.caller, found.partition, set).await {
                Ok(written) => return awaited.acknowledge(&written).await,
                // Renamed or removed since the lookup.
                Err(e) if e.code() == ErrorCode::NotFound => restarts.again().await?,
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }
}
