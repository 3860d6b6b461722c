//! One index group: its replicas, and the context under which it is asked. Invariant (P5): context count for one
//! lease, from before they were read.

use std::{sync::Arc, time::Instant};

use mantle_index_client::IndexClient;
use mantle_types::{GroupId, Result};
use parking_lot::Mutex;

use crate::store::{ResolutionContext, Store};

/// Handle on a group.
pub struct Group {
    /// Its number.
    pub number: GroupId,
    /// Its replicas.
    pub client: IndexClient,
    store: Arc<Store>,
    context: Mutex<Option<(Arc<ResolutionContext>, Instant)>>,
    refreshing: tokio::sync::Mutex<()>,
}

impl Group {
    /// A group whose context are not known yet.
    pub fn new(number: GroupId, client: IndexClient, store: Arc<Store>) -> Self {
        Self { number, client, store, context: Mutex::new(None), refreshing: tokio::sync::Mutex::default() }
    }

    /// The context that count now.
    pub async fn context(&self) -> Result<Arc<ResolutionContext>> {
        let now = Instant::now();
        let known = self.context.lock().clone();
        match known {
            Some((context, read)) if now.duration_since(read) < context.lease => Ok(context),
            _ => self.refresh(now).await,
        }
    }

    /// Reads the context unless somebody did after `wanted`.
    pub async fn refresh(&self, wanted: Instant) -> Result<Arc<ResolutionContext>> {
        let _guard = self.refreshing.lock().await;
        let known = self.context.lock().clone();
        if let Some((context, read)) = &known
            && *read >= wanted
        {
            return Ok(context.clone());
        }
        let started = Instant::now();
        let context =
            Arc::new(self.store.resolution_context(self.number, known.as_ref().map(|(context, _)| &**context)).await?);
        // The lease counts from before the read: the epoch may have been raised right after.
        *self.context.lock() = Some((context.clone(), started));
        Ok(context)
    }
}
