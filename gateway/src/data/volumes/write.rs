//! Writes a client's bytes into the volume, one piece at a time, so that a large body is never in memory as a whole.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use futures::Stream;
use mantle_types::{Error, ErrorCode};
use mantle_volumes::{EXTENT_BYTES_MAX, Generation, NewBytes};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

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
        let mut patience = Patience::new(self);
        while !piece.is_empty() {
            patience = Patience::new(self);
            sent += piece.len() as u64;
            // With the size known, blocks are allocated for as much as an extent holds.
            if sent > allocated {
                let rest = size.map_or(piece.len() as u64, |size| size.saturating_sub(allocated));
                let bytes = rest.min(EXTENT_BYTES_MAX.into());
                gathered = Some(self.room_for(bytes, &mut patience).await);
                allocated += bytes;
            }
            written = Written::now();
            // A short piece is the last one, and is written at the end. So is all, if this is all that was announced.
            let is_gathered = piece.len() < PIECE_BYTES || size == Some(sent);
            while let Err(cause) = writer.write(std::mem::take(&mut piece)).await {
                patience.more_room(cause).await?;
            }
            if !is_gathered {
                gathered = None;
            }
            piece = if is_all { Bytes::new() } else { body.piece(PIECE_BYTES).await? };
        }
        let checksums = match checked {
            Some(checksums) => checksums,
            None => body.check()?,
        };
        let stored = loop {
            match writer.finish().await {
                Ok(stored) => break stored,
                Err(cause) => patience.more_room(cause).await?,
            }
        };
        let claim = Claim::new(self.clone(), stored);
        drop(gathered);
        let size = body.size();
        Ok(Stored { pieces: pieces(&claim), inline: None, size, checksums, written, claim: Some(claim) })
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
    async fn room_for(&self, bytes: u64, patience: &mut Patience<'_>) -> Coming<'_> {
        let coming = Coming::new(self, bytes);
        while self.is_crowded() || self.is_full() && patience.rounds_left > 0 {
            if !patience.wait().await {
                break;
            }
        }
        coming
    }
}

/// How long a piece of a put waits for room, before it is written and when the volume turns out to be full in the middle.
struct Patience<'a> {
    volumes: &'a Volumes,
    /// Only of a put that waits: while there is one, each other put reports that it has ended.
    changes: Option<watch::Receiver<u64>>,
    left: Duration,
    rounds_left: u64,
}

impl<'a> Patience<'a> {
    fn new(volumes: &'a Volumes) -> Self {
        Self { volumes, changes: None, left: volumes.0.room_wait, rounds_left: ROUNDS_OF_DELETES }
    }

    /// Waits until there may be more room; `false` if it has waited long enough. The first call returns at once: what has changed
    /// before it is not reported, so the caller looks again.
    async fn wait(&mut self) -> bool {
        let Some(changes) = &mut self.changes else {
            self.changes = Some(self.volumes.0.changed.subscribe());
            return true;
        };
        let (begun, round) = (Instant::now(), self.volumes.rounds());
        self.volumes.want();
        let has_changed = matches!(timeout(self.left, changes.changed()).await, Ok(Ok(())));
        self.left = self.left.saturating_sub(begun.elapsed());
        self.rounds_left = self.rounds_left.saturating_sub(self.volumes.rounds() - round);
        has_changed
    }

    /// Returns when a put that failed for this cause may go on. A large object has a part of its blocks already when the volume turns
    /// out to be full.
    async fn more_room(&mut self, cause: mantle_volumes::Error) -> Result<(), Error> {
        let may_wait = self.volumes.is_more_to_come() || self.rounds_left > 0;
        let is_full = matches!(cause, mantle_volumes::Error::Full { .. });
        if is_full && may_wait && self.wait().await { Ok(()) } else { Err(self.volumes.failed(cause)) }
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
