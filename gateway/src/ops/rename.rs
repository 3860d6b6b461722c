//! rename: moves a directory or an object to another key.

use mantle_types::{EntryId, Error, ErrorCode, Result, name::Path};
use serde::Deserialize;

use super::{directory_move::DirectoryMove, stat::Naming};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
};

/// Keys of a directory (trailing slash) or an object. `overwrite`: it may replace an object, or an empty directory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    #[serde(rename = "src")]
    pub source: String,
    #[serde(rename = "dst")]
    pub destination: String,
    #[serde(default)]
    pub overwrite: bool,
}

impl Gateway {
    pub async fn rename(&self, call: &Call, namespace: &str, rename: &Rename) -> Result<EntryId> {
        let (source, destination) = (Path::parse(&rename.source)?, Path::parse(&rename.destination)?);
        if source.is_root() || destination.is_root() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the root of a namespace is not renamed"));
        }
        if source.is_directory() != destination.is_directory() {
            let detail = "source and destination must both end in a slash (a directory) or both not (an object)";
            return Err(Error::new(ErrorCode::InvalidArgument, detail));
        }
        if source == destination {
            // Onto itself: nothing to do, if it is there.
            return Ok(self.find(call, namespace, &rename.source, Naming::Exact).await?.entry.id);
        }
        let hash = RequestHash::new("rename", namespace, &rename.source)
            .part(&rename.destination)
            .part([u8::from(rename.overwrite)])
            .finish();
        let overwrite = rename.overwrite;
        let attempt = async {
            if !source.is_directory() {
                return self.rename_object(call, namespace, &source, &destination, overwrite, hash).await;
            }
            let (source, destination) = (&source, Some(&destination));
            self.move_directory(&DirectoryMove { call, namespace, hash, source, destination, overwrite }).await
        };
        self.answer_once(call, namespace, hash, |written| written.id, attempt).await
    }
}
