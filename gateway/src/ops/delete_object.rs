//! delete_object: the metadata first, then the bytes.

use mantle_types::{Error, ErrorCode, Result, name::Path};

use super::{RESTARTS_MAX, locate::Purpose};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::pause,
};

impl Gateway {
    /// Removes an object.
    pub async fn delete_object(&self, call: &Call, namespace: &str, key: &str) -> Result<()> {
        let path = Path::parse(key)?;
        let Some((name, parents)) = path.split_last().filter(|_| !path.is_directory()) else {
            return Err(Error::new(ErrorCode::InvalidArgument, "a key that ends in a slash names a directory"));
        };
        let hash = RequestHash::new("delete_object", namespace, key).finish();
        if self.replayed(call, namespace, hash).await?.is_some() {
            return Ok(());
        }
        for restart in 0..RESTARTS_MAX {
            let parent = self.locate_parent(&call.caller, namespace, parents, Purpose::Lookup).await?;
            parent.check_change(&call.caller)?;
            match self.store.delete_object(call.signed(parent.ns, hash), parent.place(), name).await {
                Ok(written) => {
                    if let Some(old) = written.old_locator.as_deref().filter(|_| !written.replayed) {
                        self.data.delete(old).await;
                    }
                    return Ok(());
                }
                Err(e) if self.is_outdated(e.code()).await => pause(restart).await,
                Err(e) => return Err(e),
            }
        }
        Err(ErrorCode::DirectoryRemoved.into())
    }
}
