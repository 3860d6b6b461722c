//! Object rename: one RPC for both parents, one SQL call. The index knows no objects, so there is nothing to wait for.

use mantle_types::{Error, ErrorCode, Result, name::Path};

use super::{
    RESTARTS_MAX,
    locate::{Purpose, whole},
};
use crate::{
    app::{Call, Gateway},
    store::{RenameObject, pause},
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
    ) -> Result<i64> {
        let (Some((source_name, from)), Some((destination_name, to))) = (source.split_last(), destination.split_last())
        else {
            return Err(ErrorCode::InvalidArgument.into());
        };
        for restart in 0..RESTARTS_MAX {
            let mut found = self.search_many(&call.caller, namespace, &[from, to], Purpose::Lookup).await?.into_iter();
            let (Some(source_parent), Some(destination_parent)) = (found.next(), found.next()) else {
                return Err(ErrorCode::Internal.into());
            };
            let source_parent = whole(source_parent?, from, true)?;
            let destination_parent = whole(destination_parent?, to, true)?;
            source_parent.check_change(&call.caller)?;
            destination_parent.check_change(&call.caller)?;
            let rename = RenameObject {
                source_pid: source_parent.pid(),
                source_name,
                destination: destination_parent.place(),
                destination_name,
                overwrite,
            };
            match self.store.rename_object(call.signed(source_parent.ns, hash), rename).await {
                Ok(written) => {
                    if let Some(old) = written.old_locator.as_deref().filter(|_| !written.replayed) {
                        self.data.delete(old).await;
                    }
                    return Ok(written.id);
                }
                Err(e) if self.is_outdated(e.code()).await => pause(restart).await,
                Err(e) if e.code() == ErrorCode::NotFound => {
                    let key = source.components().join("/");
                    return Err(Error::new(ErrorCode::NotFound, format!("there is no object `{key}`")));
                }
                Err(e) => return Err(e),
            }
        }
        Err(ErrorCode::DirectoryRemoved.into())
    }
}
