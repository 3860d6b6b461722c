//! Reads everything again, slowly, so that damage is found while another copy may still exist. The caller passes the extents that
//! rows name, in the order of their places. The cursor says where to continue after a restart.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{
    error::{Error, Result},
    generation::Generation,
    place::Extent,
    store::Store,
};

/// What was scrubbed last: continue with the extents after it. The caller keeps it, in any form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubCursor {
    /// Segment and block of an extent; `None` at the beginning.
    pub after: Option<(u32, u32)>,
}

/// An extent whose bytes could not be read. If rows still name it, its bytes are lost or damaged.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The extent.
    pub extent: Extent,
    /// Whose bytes it was to have.
    pub generation: Generation,
    /// What was found instead.
    pub error: Error,
}

/// A walk over the extents of one volume.
pub struct Scrub {
    store: Store,
    cursor: ScrubCursor,
    bytes_per_second: u64,
    /// When the next read may begin.
    next: Option<Instant>,
}

impl Scrub {
    /// Goes on behind the cursor, at this pace.
    pub fn new(store: Store, cursor: ScrubCursor, bytes_per_second: u64) -> Self {
        Self { store, cursor, bytes_per_second: bytes_per_second.max(1), next: None }
    }

    /// Where to go on.
    pub fn cursor(&self) -> ScrubCursor {
        self.cursor
    }

    /// Reads these extents of one volume, which come in the order of their places; those before the cursor are left out. If it is
    /// dropped in the middle, the cursor says how far it came.
    ///
    /// # Errors
    /// `NotMounted`. What is wrong with bytes is a finding.
    pub async fn step(&mut self, extents: impl IntoIterator<Item = (Extent, Generation)>) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for (extent, generation) in extents {
            let place = Some((extent.segment.number, extent.block));
            if place <= self.cursor.after {
                continue;
            }
            if let Some(next) = self.next {
                sleep_until(next).await;
            }
            let taken = Duration::from_secs_f64(f64::from(extent.length) / self.bytes_per_second as f64);
            self.next = Some(Instant::now() + taken);
            match read_all(&self.store, extent, generation).await {
                Ok(()) => {}
                Err(not_mounted @ Error::NotMounted(_)) => return Err(not_mounted),
                Err(error) => findings.push(Finding { extent, generation, error }),
            }
            self.cursor.after = place;
        }
        Ok(findings)
    }
}

/// Reads from the disk, not from the kernel's cache, and leaves the cache as it was.
async fn read_all(store: &Store, extent: Extent, generation: Generation) -> Result<()> {
    let was_cached = store.forget_cached(extent)?;
    let result = read_uncached(store, extent, generation).await;
    if !was_cached {
        store.forget_cached(extent)?;
    }
    result
}

async fn read_uncached(store: &Store, extent: Extent, generation: Generation) -> Result<()> {
    let mut reader = store.read_extents([(extent, generation)], 0..extent.length.into())?;
    while reader.next().await?.is_some() {}
    Ok(())
}
