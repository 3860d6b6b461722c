//! remove_tree: moves a directory with everything below it into the trash, which a worker in the database empties.

use mantle_types::{Error, ErrorCode, Result, name::Path};
use uuid::Uuid;

use super::directory_move::{DirectoryMove, operation_id};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::Operation,
};

impl Gateway {
    /// Removes a directory with everything below it; answers the operation that empties it.
    pub async fn remove_tree(&self, call: &Call, namespace: &str, key: &str) -> Result<Operation> {
        let source = &Path::parse(key)?;
        if source.is_root() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root is removed with its namespace"));
        }
        let hash = RequestHash::new("remove_tree", namespace, &source.components().join("/")).finish();
        let id = match self.replayed(call, namespace, hash).await? {
            Some(id) => id,
            None => {
                let change = DirectoryMove { call, namespace, hash, source, destination: None, overwrite: false };
                self.move_directory(&change).await?
            }
        };
        self.operation(call, operation_id(call, id)).await
    }

    /// A background operation. Only the caller that began it finds it, and uid 0.
    pub async fn operation(&self, call: &Call, id: Uuid) -> Result<Operation> {
        let found = self.store.operation(call.caller.uid, id).await?;
        found.ok_or_else(|| Error::new(ErrorCode::NotFound, "there is no such operation"))
    }
}
