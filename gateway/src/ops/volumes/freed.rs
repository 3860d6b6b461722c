//! Takes deletes from PostgreSQL that are durable on whatever may be promoted, and makes their blocks free (P60).

use mantle_types::{ErrorCode, Result};
use mantle_volumes::Locator;

use super::Keeper;

/// Most deletes that a node is asked for at once.
const PAGE_LOCATORS: usize = 2_000;
/// Counter of extents whose blocks could not be freed.
pub(super) const FREES_REFUSED: &str = "mantle_gateway_frees_refused_total";

impl Keeper<'_> {
    pub(super) async fn take_freed(&mut self) -> Result<()> {
        let delay = self.volumes.settings().reuse_delay_ms;
        for at in self.nodes.clone() {
            loop {
                let horizon = self.horizons.get(&at).map(String::as_str);
                let taken = match self.store.take_freed(at, &self.mount, horizon, delay, PAGE_LOCATORS).await {
                    Ok(taken) => taken,
                    Err(error) => {
                        if error.code() == ErrorCode::UnknownOutcome {
                            // What it would have answered is found when the segments are leased anew.
                            self.lineage = None;
                        }
                        return Err(error);
                    }
                };
                if let Some(horizon) = taken.horizon {
                    self.horizons.insert(at, horizon);
                }
                taken.locators.iter().for_each(|locator| self.free(locator));
                if taken.locators.len() < PAGE_LOCATORS {
                    break;
                }
            }
        }
        Ok(())
    }

    fn free(&self, text: &str) {
        let Ok(locator) = text.parse::<Locator>() else {
            tracing::error!(text, "a locator that was freed is malformed");
            return;
        };
        match self.volumes.store().free(&locator) {
            // Whoever leases the segment next derives that they are free.
            Ok(()) | Err(mantle_volumes::Error::NotLeased(_)) => {}
            Err(cause) => {
                metrics::counter!(FREES_REFUSED).increment(1);
                tracing::error!(%cause, text, "blocks that were freed are not in use, or another object's");
            }
        }
    }
}
