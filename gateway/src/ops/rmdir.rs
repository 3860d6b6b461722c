//! rmdir: resolves parent and directory with one RPC, removes it with one SQL call, and waits until the index knows.

use mantle_types::{Error, ErrorCode, Result, name::Path};

use super::{
    directory_name,
    locate::{Purpose, whole},
    restarts::Restarts,
    stat::Naming,
};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::{Rmdir, SetAttributes},
};

impl Gateway {
    pub async fn rmdir(&self, call: &Call, namespace: &str, key: &str) -> Result<()> {
        let path = Path::parse(key)?;
        let Some((name, parents)) = path.split_last() else {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root is removed with its namespace"));
        };
        let hash = RequestHash::new("rmdir", namespace, &path.components().join("/")).finish();
        if self.replayed(call, namespace, hash).await?.is_some() {
            return Ok(());
        }
        let mut restarts = Restarts::default();
        loop {
            let paths = [parents, path.components()];
            let found = self.search_many(&call.caller, namespace, &paths, Purpose::DirectoryChange).await?;
            let mut found = found.into_iter();
            let (Some(parent), Some(directory)) = (found.next(), found.next()) else {
                return Err(ErrorCode::Internal.into());
            };
            let parent = whole(parent?, parents, true)?;
            parent.check_change(&call.caller)?;
            let directory = whole(directory?, path.components(), false)?;
            let claim = call.claim(parent.ns, hash);
            let awaited = self.index.begin_await(namespace, claim.key());
            let old = Rmdir { name: directory_name(name), id: directory.id };
            match self.store.rmdir.run(claim, parent.leased_partition(), old).await {
                Ok(written) => return awaited.acknowledge(&written).await,
                // For example, another directory has taken its place since the lookup.
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }

    /// Deletes the key `dir/`. Removes an empty directory. Another directory becomes implicit: it is no key any more,
    /// and vanishes with its last entry.
    pub async fn delete_marker(&self, call: &Call, namespace: &str, key: &str) -> Result<()> {
        match self.rmdir(call, namespace, key).await {
            Err(e) if e.code() == ErrorCode::NotEmpty => self.make_implicit(call, namespace, key).await,
            other => other,
        }
    }

    /// rmdir has checked that the caller may remove the directory.
    async fn make_implicit(&self, call: &Call, namespace: &str, key: &str) -> Result<()> {
        let hash = RequestHash::new("make_implicit", namespace, key).finish();
        let mut restarts = Restarts::default();
        loop {
            let found = self.stat(call, namespace, key, Naming::Exact).await?;
            if !found.entry.explicit {
                return Ok(());
            }
            let claim = call.step(found.ns, "make_implicit", hash);
            let set = SetAttributes { explicit: Some(false), ..SetAttributes::of(&found.entry) };
            let awaited = self.index.begin_await(namespace, claim.key());
            match self.store.set_attributes.run(claim, found.partition, set).await {
                Ok(written) => return awaited.acknowledge(&written).await,
                // Renamed or removed since the lookup.
                Err(e) if e.code() == ErrorCode::NotFound => restarts.again().await?,
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }
}
