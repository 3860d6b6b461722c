//! list: one page of a directory's children, in key order.

use mantle_types::{Result, name::Path};

use super::locate::Purpose;
use crate::{
    app::{Call, Gateway},
    store::{Entry, Listed},
};

pub struct Children {
    pub entries: Vec<Entry>,
    pub truncated: bool,
}

impl Gateway {
    pub async fn list(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Children> {
        let path = Path::parse(key)?;
        let directory = self.locate(&call.caller, namespace, path.components(), Purpose::Lookup).await?;
        directory.check_list(&call.caller)?;
        let mut entries =
            self.store.list(Listed::Children, directory.ns, directory.pid(), start_after, "", limit + 1).await?;
        let truncated = entries.len() > limit;
        entries.truncate(limit);
        let entries = entries.into_iter().map(|entry| entry.shown_to(&call.caller)).collect();
        Ok(Children { entries, truncated })
    }
}
