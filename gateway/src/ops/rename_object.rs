//! Renames an object: one RPC for both parents, one SQL call. The index has no objects, so there is no wait for it.

use mantle_types::{EntryId, Error, ErrorCode, Result, name::Path};

use super::{locate::Purpose, restarts::Restarts};
use crate::{
    app::{Call, Gateway},
    store::RenameObject,
};

impl Gateway {
    pub(super) async fn rename_object(
        &self,
        call: &Call,
        namespace: &str,
        source: &Path<'_>,
        destination: &Path<'_>,
        overwrite: bool,
        hash: i64,
    ) -> Result<EntryId> {
        let (Some((source_name, from)), Some((destination_name, to))) = (source.split_last(), destination.split_last())
        else {
            return Err(ErrorCode::InvalidArgument.into());
        };
        let mut restarts = Restarts::default();
        loop {
            let mut found = self.search_many(&call.caller, namespace, &[from, to], Purpose::Lookup).await?.into_iter();
            let (Some(source_parent), Some(destination_parent)) = (found.next(), found.next()) else {
                return Err(ErrorCode::Internal.into());
            };
            let source_parent = self.whole(source_parent?, from, true).await?;
            let destination_parent = self.whole(destination_parent?, to, true).await?;
            source_parent.check_change(&call.caller)?;
            destination_parent.check_change(&call.caller)?;
            self.admit_key(destination_parent.ns, destination).await?;
            let rename = RenameObject {
                source: source_parent.leased_partition(),
                source_name,
                destination: destination_parent.leased_partition(),
                destination_name,
                overwrite,
                caller: &call.caller,
            };
            match self.store.rename_object(call.claim(source_parent.ns, hash), rename).await {
                Ok(written) => {
                    self.delete_replaced(&written).await;
                    return Ok(written.id);
                }
                Err(e) if e.code() == ErrorCode::NotFound => {
                    let key = source.components().join("/");
                    return Err(Error::new(ErrorCode::NotFound, format!("there is no object `{key}`")));
                }
                Err(e) if e.code() == ErrorCode::IsDirectory => {
                    match self.prune_ghost(destination_parent.ns, destination_parent.pid(), destination_name).await? {
                        true => restarts.again().await?,
                        false => return Err(e),
                    }
                }
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }
}
