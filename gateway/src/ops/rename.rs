//! rename: moves a directory or an object to another key.

use mantle_types::{EntryId, Error, ErrorCode, Result, name::Path};

use super::directory_move::DirectoryMove;
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
};

/// What to move where.
#[derive(Clone, Debug)]
pub struct Rename {
    /// Key of the directory (trailing slash) or object.
    pub source: String,
    /// Its new key, of the same kind.
    pub destination: String,
    /// May replace an object, or an empty directory.
    pub overwrite: bool,
}

impl Gateway {
    /// Moves a directory or an object; answers its id, which stays.
    pub async fn rename(&self, call: &Call, namespace: &str, rename: &Rename) -> Result<EntryId> {
        let (source, destination) = (Path::parse(&rename.source)?, Path::parse(&rename.destination)?);
        if source.is_root() || destination.is_root() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root of a namespace is not renamed"));
        }
        if source.is_directory() != destination.is_directory() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "source and destination must both end in a slash (a directory) or both not (an object)",
            ));
        }
        let hash = RequestHash::new("rename", namespace, &rename.source)
            .part(&rename.destination)
            .part([u8::from(rename.overwrite)])
            .finish();
        if let Some(id) = self.replayed(call, namespace, hash).await? {
            return Ok(id);
        }
        if !source.is_directory() {
            return self.rename_object(call, namespace, &source, &destination, rename.overwrite, hash).await;
        }
        let (source, destination) = (&source, Some(&destination));
        let overwrite = rename.overwrite;
        self.move_directory(&DirectoryMove { call, namespace, hash, source, destination, overwrite }).await
    }
}
