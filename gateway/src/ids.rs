//! New ids. PostgreSQL records them in blocks (P9), so taking one costs nothing. The next block is fetched in the
//! background once half of a block is used. The rest of a block is lost at exit, which is harmless: ids are never
//! reused.

use std::sync::Arc;

use mantle_types::{EntryId, Result};
use mantle_volumes::Generation;
use parking_lot::Mutex;

use crate::store::{IdBlock, Store};

pub struct Ids {
    store: Arc<Store>,
    owner: String,
    block: u32,
    blocks: Mutex<Blocks>,
    /// Held during a fetch, so that callers without ids share one.
    fetching: tokio::sync::Mutex<()>,
}

/// Ids come from what is left of `current`, then from `spare`.
#[derive(Default)]
struct Blocks {
    current: Option<IdBlock>,
    spare: Option<IdBlock>,
    wanted: bool,
}

impl Blocks {
    /// An id with its timeline, and whether to fetch the next block; `None` if all are used up.
    fn take(&mut self, block: u32) -> Option<(i64, u32, bool)> {
        if self.current.is_none_or(|current| current.first > current.last) {
            self.current = self.spare.take();
            self.wanted = false;
        }
        let current = self.current.as_mut()?;
        let id = current.first;
        current.first += 1;
        let left = current.last - id;
        let fetch = !self.wanted && self.spare.is_none() && left <= i64::from(block / 2);
        self.wanted |= fetch;
        Some((id, current.timeline, fetch))
    }
}

impl Ids {
    pub fn new(store: Arc<Store>, owner: String, block: u32) -> Self {
        Self { store, owner, block, blocks: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    /// A new id.
    pub async fn next(self: &Arc<Self>) -> Result<EntryId> {
        self.take().await.map(|(id, _)| id.into())
    }

    /// A name that no other write of bytes has or had: after a restore ids are handed out again, on another timeline.
    pub async fn next_generation(self: &Arc<Self>) -> Result<Generation> {
        self.take().await.map(|(id, timeline)| Generation { timeline, id: id as u64 })
    }

    async fn take(self: &Arc<Self>) -> Result<(i64, u32)> {
        loop {
            let taken = self.blocks.lock().take(self.block);
            let Some((id, timeline, fetch)) = taken else {
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
            return Ok((id, timeline));
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
        let spare = |first, last, timeline| Some(IdBlock { first, last, timeline });
        let mut blocks = Blocks { spare: spare(10, 13, 1), ..Blocks::default() };
        let (mut seen, mut fetches) = (vec![], 0);
        while let Some((id, timeline, fetch)) = blocks.take(4) {
            seen.push((id, timeline));
            fetches += u32::from(fetch);
            if seen.len() == 3 {
                blocks.spare = spare(100, 103, 2);
            }
            if seen.len() == 8 {
                assert_eq!(fetches, 2);
            }
        }
        assert_eq!(seen, [(10, 1), (11, 1), (12, 1), (13, 1), (100, 2), (101, 2), (102, 2), (103, 2)]);
    }
}
