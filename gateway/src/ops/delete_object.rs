//! delete_object: removes the metadata first, then the bytes.

use mantle_types::{Error, ErrorCode, Result, name::Path};

use super::{locate::Purpose, restarts::Restarts};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::{DeleteObject, UploadId, Written},
};

impl Gateway {
    /// Deletes the bytes that a change left without a row. Not for a replayed answer: the row may name them again. The
    /// sweeper deletes those of a manifest, because others may be reading them one after the other.
    pub(super) async fn delete_replaced(&self, written: &Written) {
        let old = written.old_locator.as_deref().filter(|_| !written.replayed);
        if let Some(old) = old.filter(|old| UploadId::of_manifest(old).is_none()) {
            self.data.delete(old).await;
        }
    }

    pub async fn delete_object(&self, call: &Call, namespace: &str, key: &str) -> Result<()> {
        let path = Path::parse(key)?;
        let Some((name, parents)) = path.split_last().filter(|_| !path.is_directory()) else {
            return Err(Error::new(ErrorCode::InvalidArgument, "a key that ends in a slash names a directory"));
        };
        let hash = RequestHash::new("delete_object", namespace, key).finish();
        if self.replayed(call, namespace, hash).await?.is_some() {
            return Ok(());
        }
        let mut restarts = Restarts::default();
        loop {
            let parent = self.locate_parent(&call.caller, namespace, parents, Purpose::Lookup).await?;
            parent.check_change(&call.caller)?;
            let (claim, old) = (call.claim(parent.ns, hash), DeleteObject { name: name.to_owned() });
            match self.store.delete_object.run(claim, parent.leased_partition(), old).await {
                Ok(written) => {
                    self.delete_replaced(&written).await;
                    return Ok(());
                }
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }
}
