//! New ids. PostgreSQL records them in blocks (P9), so taking one costs nothing. The next block is fetched in the
//! background once half of a block is used. The rest of a block is lost at exit, which is harmless: ids are never
//! reused.

use std::sync::Arc;

use mantle_types::{EntryId, Result};
use parking_lot::Mutex;

use crate::store::Store;

pub struct Ids {
    store: Arc<Store>,
    owner: String,
    block: u32,
    blocks: Mutex<Blocks>,
    /// Held during a fetch, so that callers without ids share one.
    fetching: tokio::sync::Mutex<()>,
}

/// Ids come from `next..end`, then from `spare`.
#[derive(Default)]
struct Blocks {
    next: i64,
    end: i64,
    spare: Option<(i64, i64)>,
    wanted: bool,
}

impl Blocks {
    /// An id, and whether to fetch the next block; `None` if all are used up.
    fn take(&mut self, block: u32) -> Option<(i64, bool)> {
        if self.next == self.end {
            let (first, last) = self.spare.take()?;
            (self.next, self.end, self.wanted) = (first, last + 1, false);
        }
        let id = self.next;
        self.next += 1;
        let fetch = !self.wanted && self.spare.is_none() && self.end - self.next <= i64::from(block / 2);
        self.wanted |= fetch;
        Some((id, fetch))
    }
}

impl Ids {
    pub fn new(store: Arc<Store>, owner: String, block: u32) -> Self {
        Self { store, owner, block, blocks: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    pub async fn next(self: &Arc<Self>) -> Result<EntryId> {
        loop {
            let taken = self.blocks.lock().take(self.block);
            let Some((id, fetch)) = taken else {
                self.fetch().await?;
                continue;
            };
            if fetch {
                let ids = self.clone();
                tokio::spawn(async move {
                    if let Err(error) = ids.fetch().await {
                        tracing::debug!(%error, "could not prefetch a block of ids");
                        ids.blocks.lock().wanted = false;
                    }
                });
            }
            return Ok(id.into());
        }
    }

    /// Drops the blocks: PostgreSQL refused one of their ids, because it lost the record in a failover.
    pub fn discard(&self) {
        *self.blocks.lock() = Blocks::default();
    }

    async fn fetch(&self) -> Result<()> {
        let _guard = self.fetching.lock().await;
        if self.blocks.lock().spare.is_some() {
            return Ok(());
        }
        let block = self.store.allocate_ids(&self.owner, self.block).await?;
        self.blocks.lock().spare = Some(block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_up_before_the_next_which_is_prefetched_once() {
        let mut blocks = Blocks { spare: Some((10, 13)), ..Blocks::default() };
        let (mut seen, mut fetches) = (vec![], 0);
        while let Some((id, fetch)) = blocks.take(4) {
            seen.push(id);
            fetches += u32::from(fetch);
            if seen.len() == 3 {
                blocks.spare = Some((100, 103));
            }
            if seen.len() == 8 {
                assert_eq!(fetches, 2);
            }
        }
        assert_eq!(seen, [10, 11, 12, 13, 100, 101, 102, 103]);
    }
}
