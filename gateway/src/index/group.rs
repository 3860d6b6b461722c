//! One index group: its replicas, and the terms under which it is asked. Invariant (P5): terms count for one
//! lease, from before they were read.

use std::{sync::Arc, time::Instant};

use mantle_index_client::IndexClient;
use mantle_types::Result;
use parking_lot::Mutex;

use crate::store::{Store, Terms};

/// Handle on a group.
pub struct Group {
    /// Its number.
    pub number: u32,
    /// Its replicas.
    pub client: IndexClient,
    store: Arc<Store>,
    terms: Mutex<Option<(Arc<Terms>, Instant)>>,
    refreshing: tokio::sync::Mutex<()>,
}

impl Group {
    /// A group whose terms are not known yet.
    pub fn new(number: u32, client: IndexClient, store: Arc<Store>) -> Self {
        Self { number, client, store, terms: Mutex::new(None), refreshing: tokio::sync::Mutex::default() }
    }

    /// The terms that count now.
    pub async fn terms(&self) -> Result<Arc<Terms>> {
        let now = Instant::now();
        let known = self.terms.lock().clone();
        match known {
            Some((terms, read)) if now.duration_since(read) < terms.lease => Ok(terms),
            _ => self.refresh(now).await,
        }
    }

    /// Reads the terms unless somebody did after `wanted`.
    pub async fn refresh(&self, wanted: Instant) -> Result<Arc<Terms>> {
        let _guard = self.refreshing.lock().await;
        let known = self.terms.lock().clone();
        if let Some((terms, read)) = &known
            && *read >= wanted
        {
            return Ok(terms.clone());
        }
        let started = Instant::now();
        let terms = Arc::new(self.store.terms(self.number, known.as_ref().map(|(terms, _)| &**terms)).await?);
        // The lease counts from before the read: the epoch may have been raised right after.
        *self.terms.lock() = Some((terms.clone(), started));
        Ok(terms)
    }
}
