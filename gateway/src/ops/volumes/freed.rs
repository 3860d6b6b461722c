//! Takes deletes from PostgreSQL that are durable on every server that may be promoted, and makes their blocks free (P60).

use mantle_types::{ErrorCode, Result};
use mantle_volumes::Locator;

use super::{Keeper, repeatable};

/// Most deletes that a node is asked for at once.
const PAGE_LOCATORS: usize = 1_000;
/// Counter of extents whose blocks could not be freed.
const FREES_REFUSED: &str = "mantle_gateway_frees_refused_total";

/// The history of the node that answered a horizon.
fn history(horizon: &str) -> &str {
    horizon.split(' ').next().unwrap_or_default()
}

impl Keeper<'_> {
    /// Takes deletes from every node. A node that is away keeps its own, and those of the others are taken meanwhile.
    pub(super) async fn take_freed(&mut self) -> Result<()> {
        let mut away = None;
        for at in self.nodes.clone() {
            match self.take_freed_of(at).await {
                Ok(()) => {}
                Err(error) if matches!(error.code(), ErrorCode::UnknownOutcome | ErrorCode::DatabaseUnavailable) => {
                    // Blocks that it may have answered stay used until the segments are leased again. That needs every node, and
                    // until then nothing could be put into them. So it waits until this one is back.
                    if error.code() == ErrorCode::UnknownOutcome {
                        self.unsure.insert(at);
                    }
                    away = Some(repeatable(error));
                }
                Err(error) => return Err(error),
            }
        }
        away.map_or(Ok(()), Err)
    }

    async fn take_freed_of(&mut self, at: i64) -> Result<()> {
        let delay = self.volumes.settings().reuse_delay_ms;
        loop {
            let before = self.horizons.get(&at).map(String::as_str);
            let taken = self.store.take_freed(at, &self.mount, before, delay, PAGE_LOCATORS).await?;
            let is_other = |now: &String| before.is_some_and(|before| history(before) != history(now));
            if taken.horizon.as_ref().is_some_and(is_other) {
                // It admits nothing any more, and so would let nothing be taken. The next put there would notice it, too.
                tracing::info!(at, "a node of PostgreSQL was promoted or restored");
                self.lineage = None;
            }
            if self.unsure.remove(&at) {
                self.lineage = None;
            }
            if let Some(horizon) = taken.horizon {
                self.horizons.insert(at, horizon);
            }
            taken.locators.iter().for_each(|locator| self.free(locator));
            if taken.locators.len() < PAGE_LOCATORS {
                return Ok(());
            }
        }
    }

    /// Learns the history of a node, before it admits anything in it. Nothing is taken.
    pub(super) async fn note_history(&mut self, at: i64) -> Result<()> {
        if !self.horizons.contains_key(&at) {
            let taken = self.store.take_freed(at, &self.mount, None, 0, PAGE_LOCATORS).await.map_err(repeatable)?;
            self.horizons.extend(taken.horizon.map(|horizon| (at, horizon)));
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
