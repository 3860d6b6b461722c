//! New ids. PostgreSQL records them in blocks (P9), so taking one costs nothing. The next block is fetched in the
//! background once half of a block is used. The rest of a block is lost at exit, which is harmless: ids are never
//! reused.

use std::sync::Arc;

use mantle_types::{EntryId, Result};
use parking_lot::Mutex;

use crate::store::Store;

/// Hands out ids.
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

enum Taken {
    Id { id: i64, fetch: bool },
    Exhausted,
}

impl Blocks {
    fn take(&mut self, block: u32) -> Taken {
        if self.next == self.end {
            let Some((first, last)) = self.spare.take() else { return Taken::Exhausted };
            (self.next, self.end, self.wanted) = (first, last + 1, false);
        }
        let id = self.next;
        self.next += 1;
        let fetch = !self.wanted && self.spare.is_none() && self.end - self.next <= i64::from(block / 2);
        self.wanted |= fetch;
        Taken::Id { id, fetch }
    }
}

impl Ids {
    /// An allocator that owns no block yet.
    pub fn new(store: Arc<Store>, owner: String, block: u32) -> Self {
        Self { store, owner, block, blocks: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    /// A new id for a directory or an object.
    pub async fn next(self: &Arc<Self>) -> Result<EntryId> {
        loop {
            let taken = self.blocks.lock().take(self.block);
            match taken {
                Taken::Id { id, fetch: false } => return Ok(id.into()),
                Taken::Id { id, fetch: true } => {
                    let ids = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = ids.fetch().await {
                            tracing::debug!(%error, "could not fetch a block of ids ahead");
                            ids.blocks.lock().wanted = false;
                        }
                    });
                    return Ok(id.into());
                }
                Taken::Exhausted => self.fetch().await?,
            }
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
    fn a_block_is_used_up_before_the_next_and_fetched_ahead_once() {
        let mut blocks = Blocks { spare: Some((10, 13)), ..Blocks::default() };
        let mut seen = vec![];
        let mut fetches = 0;
        while let Taken::Id { id, fetch } = blocks.take(4) {
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
