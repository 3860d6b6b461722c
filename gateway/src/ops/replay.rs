//! Recorded answers. A retry under a client's request id must not resolve its path again, or it may apply twice (P19).

use mantle_types::{EntryId, NamespaceId, Result};

use crate::app::{Call, Gateway};

impl Gateway {
    /// The id that an earlier attempt answered, once the index serves its change. `None` unless the client chose the
    /// request id.
    pub(super) async fn replayed(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<EntryId>> {
        if call.client_key { self.recorded(call, namespace, hash).await } else { Ok(None) }
    }

    /// The same, for any request id.
    pub(super) async fn recorded(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<EntryId>> {
        let recorded = self.store.replay(call.claim(NamespaceId(0), hash), namespace).await?;
        let Some((ns, written)) = recorded else { return Ok(None) };
        self.index.await_written(namespace, call.claim(ns, hash).key(), &written).await?;
        Ok(Some(written.id))
    }
}
