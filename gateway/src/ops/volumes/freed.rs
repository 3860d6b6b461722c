//! Takes deletes from PostgreSQL that are durable on every server that may be promoted, and makes their blocks free (P60).

use mantle_types::Result;
use mantle_volumes::Locator;

use super::Keeper;

/// Most deletes that a node is asked for at once.
const PAGE_LOCATORS: usize = 1_000;
/// Counter of extents whose blocks could not be freed.
const FREES_REFUSED: &str = "mantle_gateway_frees_refused_total";

impl Keeper<'_> {
    pub(super) async fn take_freed(&mut self) -> Result<()> {
        let delay = self.volumes.settings().reuse_delay_ms;
        for at in self.nodes.clone() {
            loop {
                let horizon = self.horizons.get(&at).map(String::as_str);
                // After an unknown outcome the segments are leased again, and the scan of their rows finds the deletes of the lost answer.
                let taken = self.store.take_freed(at, &self.mount, horizon, delay, PAGE_LOCATORS).await?;
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
            // The next lease of the segment derives from the rows that they are free.
            Ok(()) | Err(mantle_volumes::Error::NotLeased(_)) => {}
            Err(cause) => {
                metrics::counter!(FREES_REFUSED).increment(1);
                tracing::error!(%cause, text, "blocks that were freed are not in use, or another object's");
            }
        }
    }
}
