//! Writes a client's bytes into the volume, one piece at a time, so that a large body is never in memory as a whole.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::Stream;
use mantle_types::{Error, ErrorCode};
use mantle_volumes::{EXTENT_BYTES_MAX, Generation, NewBytes, Writer};
use tokio::time::{Instant, timeout_at};

use super::{
    super::{Stored, StoredPiece, UploadError, Written, body::Body, failure},
    Claim, ROUNDS_OF_DELETES, Volumes, unavailable,
};

/// Larger objects are written in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

impl Volumes {
    /// Stores a client's bytes. On an error none remain. `generation`: one that nothing else has, or ever had.
    pub(in crate::data) async fn put<S, E>(
        &self,
        generation: Generation,
        body: &mut Body<S>,
    ) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.own()?;
        let first = body.piece(PIECE_BYTES).await?;
        let is_all = first.len() < PIECE_BYTES;
        if first.is_empty() {
            return Ok(Stored::empty(body.check()?));
        }
        // A small body that does not match its digest is not written.
        let checked = if is_all { Some(body.check()?) } else { None };
        let size = if is_all { Some(first.len() as u64) } else { body.announced() };
        // The object gets its id with its row, so the header says the id of the write.
        let mut writer = self.store().writer(NewBytes { generation, object: generation.id, size });
        let (mut piece, mut written) = (first, Written::now());
        let (mut sent, mut allocated) = (0, 0);
        let mut gathered = None;
        while !piece.is_empty() {
            sent += piece.len() as u64;
            // With the size known, blocks are allocated for as much as an extent holds.
            if sent > allocated {
                let rest = size.map_or(piece.len() as u64, |size| size.saturating_sub(allocated));
                let bytes = rest.min(EXTENT_BYTES_MAX.into());
                gathered = Some(self.room_for(bytes).await);
                allocated += bytes;
            }
            written = Written::now();
            // A short piece is the last one, and is written at the end. So is all, if this is all that was announced.
            let is_gathered = piece.len() < PIECE_BYTES || size == Some(sent);
            writer.write(piece).await.map_err(|cause| self.failed(cause))?;
            if !is_gathered {
                gathered = None;
            }
            piece = if is_all { Bytes::new() } else { body.piece(PIECE_BYTES).await? };
        }
        let checksums = match checked {
            Some(checksums) => checksums,
            None => body.check()?,
        };
        let claim = self.finish(writer).await?;
        drop(gathered);
        let size = body.size();
        Ok(Stored { pieces: pieces(&claim), inline: None, size, checksums, written, claim: Some(claim) })
    }

    async fn finish(&self, writer: Writer) -> Result<Claim, Error> {
        let stored = writer.finish().await.map_err(|cause| self.failed(cause))?;
        Ok(Claim::new(self.clone(), stored))
    }

    /// What a failed put answers.
    fn failed(&self, cause: mantle_volumes::Error) -> Error {
        // The volume was given up meanwhile: another gateway has it.
        if let Err(gone) = self.own() {
            tracing::info!(%cause, "a put found its volume given up");
            return gone;
        }
        match cause {
            mantle_volumes::Error::Full { .. } if self.is_more_to_come() => {
                unavailable("the volume gets more room, or its segments are leased anew; both need PostgreSQL")
            }
            mantle_volumes::Error::Full { .. } => {
                tracing::warn!(%cause, "the volume is full");
                ErrorCode::StorageFull.into()
            }
            mantle_volumes::Error::ReadOnly(volume) => {
                unavailable(format!("volume {volume} is read-only since a flush failed"))
            }
            mantle_volumes::Error::Io(cause) => failure::failed(&*cause),
            cause => {
                tracing::error!(%cause, "the volume failed");
                ErrorCode::Internal.into()
            }
        }
    }

    /// Waits while the volume grows, or its segments are leased again, rather than have the put refused, or its bytes written into
    /// the last small gaps. In a full volume it waits for what was deleted before, which becomes free a little later.
    async fn room_for(&self, bytes: u64) -> Coming<'_> {
        let coming = Coming::new(self, bytes);
        if !self.is_crowded() && !self.is_full() {
            return coming;
        }
        let deadline = Instant::now() + self.0.room_wait;
        let mut changes = self.0.changed.subscribe();
        let last_round = self.rounds() + ROUNDS_OF_DELETES;
        while self.is_crowded() || self.is_full() && self.rounds() < last_round {
            self.want();
            if !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                break;
            }
        }
        coming
    }
}

/// Bytes that a put is about to write, which count as used. While they are written they are counted twice.
struct Coming<'a> {
    volumes: &'a Volumes,
    bytes: u64,
}

impl<'a> Coming<'a> {
    fn new(volumes: &'a Volumes, bytes: u64) -> Self {
        volumes.0.coming.fetch_add(bytes, Ordering::AcqRel);
        Self { volumes, bytes }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let inner = &self.volumes.0;
        inner.coming.fetch_sub(self.bytes, Ordering::AcqRel);
        // A put that waits may be waiting for this.
        if inner.changed.receiver_count() > 0 {
            self.volumes.has_changed();
        }
    }
}

/// As metadata keeps them.
pub(in crate::data) fn pieces(claim: &Claim) -> Vec<StoredPiece> {
    let piece =
        |locator: &mantle_volumes::Locator| StoredPiece { locator: locator.to_string(), length: locator.bytes() };
    claim.locators().iter().map(piece).collect()
}
