//! The reserved blocks of a put, until it is known what became of its metadata. A put that ends without telling loses no bytes.
//! Before metadata that name the blocks are sent, dropping the claim frees them. After that, dropping it leaves them in doubt.

use std::time::Duration;

use mantle_types::{ErrorCode, Result};
use mantle_volumes::{Locator, Stored};
use tokio::time::{Instant, timeout_at};

use super::{Volumes, unavailable};

/// How long a put waits until its segment is leased under another epoch.
const RENEWAL_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// No metadata that name them were sent.
    Unsent,
    /// Metadata may name them, now or later.
    Sent,
    Settled,
}

/// The reserved blocks of one put.
pub(in crate::data) struct Claim {
    volumes: Volumes,
    stored: Stored,
    fate: Fate,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim").field("stored", &self.stored).field("fate", &self.fate).finish_non_exhaustive()
    }
}

impl Claim {
    pub(super) fn new(volumes: Volumes, stored: Stored) -> Self {
        Self { volumes, stored, fate: Fate::Unsent }
    }

    pub(in crate::data) fn locators(&self) -> &[Locator] {
        &self.stored.locators
    }

    /// From now on metadata may name the bytes.
    pub(in crate::data) fn sent(&mut self) {
        self.fate = Fate::Sent;
    }

    /// Metadata names the bytes, or certainly never will.
    pub(in crate::data) fn settle(mut self, is_named: bool) {
        self.fate = Fate::Settled;
        match is_named {
            true => self.volumes.store().named(&self.stored),
            false => self.volumes.store().discard(&self.stored),
        }
    }

    /// PostgreSQL refused the epoch of a segment. Waits until this gateway has leased the segment under another epoch. The bytes
    /// stay where they are.
    ///
    /// # Errors
    /// `BytesUnavailable` if another gateway has the segment now, or that is not known in time: the bytes have to be put again.
    pub(in crate::data) async fn renew(&mut self) -> Result<()> {
        let deadline = Instant::now() + RENEWAL_MAX;
        let mut changes = self.volumes.0.changed.subscribe();
        loop {
            changes.mark_unchanged();
            let renewed = self.volumes.store().renew(&self.stored).map_err(|cause| {
                tracing::info!(%cause, "the segment of a put was taken over by another gateway");
                unavailable("the segment of the bytes was taken over by another gateway; send the request again")
            })?;
            if renewed.locators != self.stored.locators {
                self.stored = renewed;
                return Ok(());
            }
            self.stored.locators.iter().for_each(|locator| self.volumes.refuse(locator.lease));
            match timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(ErrorCode::StaleSegment.into()),
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        match self.fate {
            Fate::Unsent => self.volumes.store().discard(&self.stored),
            Fate::Sent => self.volumes.store().leave_in_doubt(&self.stored),
            Fate::Settled => {}
        }
    }
}
