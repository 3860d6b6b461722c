//! One index group: its replicas and its resolution context. Invariant (P5): a context, and so the epoch that a lookup
//! carries, counts for one lease from before it was read. An abandoned group cannot answer.

use std::{sync::Arc, time::Instant};

use mantle_index_client::IndexClient;
use mantle_types::{GroupId, Result};
use parking_lot::Mutex;

use crate::store::{ResolutionContext, Store};

pub struct Group {
    pub number: GroupId,
    pub client: IndexClient,
    store: Arc<Store>,
    context: Mutex<Option<(Arc<ResolutionContext>, Instant)>>,
    refreshing: tokio::sync::Mutex<()>,
}

impl Group {
    pub fn new(number: GroupId, client: IndexClient, store: Arc<Store>) -> Self {
        Self { number, client, store, context: Mutex::new(None), refreshing: tokio::sync::Mutex::default() }
    }

    pub async fn context(&self) -> Result<Arc<ResolutionContext>> {
        let now = Instant::now();
        let known = self.context.lock().clone();
        match known {
            Some((context, read)) if now.duration_since(read) < context.lease => Ok(context),
            _ => self.refresh(now).await,
        }
    }

    /// Reads the context unless another caller did after `wanted`.
    pub async fn refresh(&self, wanted: Instant) -> Result<Arc<ResolutionContext>> {
        let _guard = self.refreshing.lock().await;
        let known = self.context.lock().clone();
        if let Some((context, read)) = &known
            && *read >= wanted
        {
            return Ok(context.clone());
        }
        let started = Instant::now();
        let old = known.as_ref().map(|(context, _)| &**context);
        let context = Arc::new(self.store.resolution_context(self.number, old).await?);
        // The lease counts from before the read: the epoch may be raised right after it.
        *self.context.lock() = Some((context.clone(), started));
        Ok(context)
    }
}
