//! usage: objects, directories and bytes, of a whole subtree or of one directory.

use mantle_types::{Result, name::Path, permission::Access};

use super::locate::Purpose;
use crate::app::{Call, Gateway};

/// What is there.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Objects.
    pub objects: i64,
    /// Directories, without the one asked for.
    pub directories: i64,
    /// Bytes of the objects.
    pub bytes: i64,
}

impl Gateway {
    /// What a directory holds: itself (its counters are kept, so this costs the same for any directory) or with all that
    /// is below it (which reads every entry there).
    pub async fn usage(&self, call: &Call, namespace: &str, key: &str, whole_subtree: bool) -> Result<Usage> {
        let path = Path::parse(key)?;
        let directory = self.locate(&call.caller, namespace, path.components(), Purpose::Lookup).await?;
        directory.check(&call.caller, Access::Read)?;
        if whole_subtree {
            let (objects, directories, bytes) = self.store.du(namespace, &path.components().join("/")).await?;
            return Ok(Usage { objects, directories, bytes });
        }
        let totals = self.store.dirstat(directory.ns, &[directory.id]).await?.pop().unwrap_or_default();
        Ok(Usage {
            objects: totals.entries - totals.subdirectories,
            directories: totals.subdirectories,
            bytes: totals.bytes,
        })
    }
}
