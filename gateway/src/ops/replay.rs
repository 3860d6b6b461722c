//! Recorded answers. A retry under a client's request id must not resolve its path again, or it may apply twice (P19).

use mantle_types::{EntryId, NamespaceId, Result};

use crate::{
    app::{Call, Gateway},
    store::Written,
};

impl Gateway {
    /// The id that an earlier attempt answered, once the index serves its change. `None` unless the client chose the
    /// request id.
    pub(super) async fn replayed(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<EntryId>> {
        match call.client_key {
            true => self.recorded(call, namespace, hash).await,
            false => Ok(None),
        }
    }

    /// The same, for any request id.
    pub(super) async fn recorded(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<EntryId>> {
        Ok(self.recorded_answer(call, namespace, hash).await?.map(|written| written.id))
    }

    /// The whole answer.
    pub(super) async fn recorded_answer(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<Written>> {
        let recorded = self.store.replay(call.claim(NamespaceId(0), hash), namespace).await?;
        let Some((ns, written)) = recorded else { return Ok(None) };
        self.index.await_written(namespace, call.claim(ns, hash).key(), &written).await?;
        Ok(Some(written))
    }
}
