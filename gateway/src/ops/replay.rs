//! Recorded answers. A retry under a client's request id must not resolve its path again, or it may apply twice (P19). And
//! it must not be refused because of what its own earlier attempt has changed.

use std::future::Future;

use mantle_types::{EntryId, NamespaceId, Result, error::Retry};

use crate::{
    app::{Call, Gateway},
    store::Written,
};

impl Gateway {
    /// Answers a request: as an earlier attempt was answered, if the client chose the request id; otherwise by `attempt`.
    ///
    /// An earlier attempt may reach PostgreSQL after the first look. Its change may be why this attempt is refused. So its
    /// answer is looked for again before a refusal.
    pub(super) async fn answer_once<T>(
        &self,
        call: &Call,
        namespace: &str,
        hash: i64,
        answer: impl Fn(&Written) -> T,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if let Some(written) = self.earlier_answer(call, namespace, hash).await? {
            return Ok(answer(&written));
        }
        match attempt.await {
            // After the other errors the client repeats the request.
            Err(refusal) if refusal.code().row().retry == Retry::No => {
                let earlier = self.earlier_answer(call, namespace, hash).await?;
                earlier.map(|written| answer(&written)).ok_or(refusal)
            }
            other => other,
        }
    }

    /// What an earlier attempt was answered. `None` unless the client chose the request id.
    pub(super) async fn earlier_answer(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<Written>> {
        match call.client_key {
            true => self.recorded_answer(call, namespace, hash).await,
            false => Ok(None),
        }
    }

    /// The id that an earlier attempt answered, once the index serves its change. For any request id.
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
