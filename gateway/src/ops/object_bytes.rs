//! Stores and reads an object's bytes. A locator names bytes in a store, or the manifest of an upload. The extents of a
//! manifest are read one after the other, in pages.

use std::{collections::VecDeque, io, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use mantle_types::{Error, ErrorCode, PartitionId, Result, inline::is_inline};
use uuid::Uuid;

use crate::{
    app::Gateway,
    data::{Content, DataStore, Expected, Mark, Stored, StoredPiece, UploadError, volumes::Pins},
    store::{Entry, Extent, Store, UploadId},
};

/// Counters of reads that found no bytes, or damaged ones.
const BYTES_MISSING: &str = "mantle_gateway_bytes_missing_total";
const BYTES_CORRUPT: &str = "mantle_gateway_bytes_corrupt_total";
/// How often a put follows the segment of its bytes to another epoch.
pub(super) const RENEWALS_MAX: u32 = 5;
/// Most extents that a read keeps in memory. They are pinned from the beginning of the read, as long as it may take.
const PAGE_EXTENTS: usize = 10_000;

impl Gateway {
    /// Makes a client's bytes durable; or only receives them, if they are at most `inline_max`.
    pub(super) async fn store_bytes<S, E>(
        &self,
        body: S,
        expected: Expected,
        inline_max: usize,
    ) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let cluster = self.mark().await?;
        let generation = match self.data.puts_into_volume() {
            true => Some(self.ids.next_generation().await?),
            false => None,
        };
        self.data.put(Mark { cluster, generation }, body, self.limits.object_bytes_max, expected, inline_max).await
    }

    /// What buckets mark bytes with; PostgreSQL is asked only if there is one.
    pub(super) async fn mark(&self) -> Result<Uuid> {
        if self.data.marks_bytes() { self.cluster().await } else { Ok(Uuid::nil()) }
    }

    /// A range of an object's bytes, which is not empty; `None` when they are gone, or the entry has moved since it was read.
    /// `bytes_corrupt` as below.
    pub(super) async fn read_object(
        &self,
        pid: PartitionId,
        entry: &Entry,
        range: Range<u64>,
    ) -> Result<Option<Content>> {
        let Some(locator) = &entry.locator else { return Err(ErrorCode::NoData.into()) };
        if !is_inline(locator) {
            return self.read_bytes(locator, range).await;
        }
        let bytes = match &entry.inline {
            Some(bytes) => bytes.clone(),
            None => match self.store.inline_bytes(pid, locator).await? {
                Some(bytes) => bytes,
                None => return Ok(None),
            },
        };
        if bytes.len() as u64 != entry.size || range.end > entry.size {
            return Err(ErrorCode::BytesCorrupt.into());
        }
        Ok(Some(Content { first: bytes.slice(range.start as usize..range.end as usize), rest: None }))
    }

    /// A range of the bytes that a locator names, which is not empty; `None` when they are gone. `bytes_corrupt` if they are gone or
    /// damaged: [`Self::is_damaged`] tells which.
    pub(super) async fn read_bytes(&self, locator: &str, range: Range<u64>) -> Result<Option<Content>> {
        let Some(manifest) = UploadId::of_manifest(locator) else {
            let content = self.data.get(locator, range).await?;
            return Ok(content.map(|content| watched(content, &self.store, locator)));
        };
        let at = range.start;
        let (store, data, page) = (self.store.clone(), self.data.clone(), VecDeque::new());
        let mut reader = Reader { store, data, manifest, rest: range, at, page };
        // The first extent is opened here: a client gets an error before any byte, or the bytes.
        let Some(Content { first, rest }) = reader.open_next().await? else { return Ok(None) };
        let others = stream::try_unfold(reader, async |mut reader| {
            if reader.is_at_end() {
                return Ok(None);
            }
            let next = reader.open_next().await.and_then(|next| next.ok_or_else(|| ErrorCode::BytesMissing.into()));
            match next {
                Ok(next) => Ok(Some((next.into_stream(), reader))),
                Err(error) => Err(reader.broken(error).await),
            }
        });
        let rest = stream::iter(rest).flatten().chain(others.try_flatten());
        Ok(Some(Content { first, rest: Some(rest.boxed()) }))
    }
}

/// Where stored bytes are, as rows of a manifest say it.
pub(super) fn extents_of(stored: &Stored) -> Vec<Extent> {
    let extent = |piece: &StoredPiece| Extent { locator: piece.locator.clone(), start: 0, length: piece.length };
    stored.pieces.iter().map(extent).collect()
}

/// Counts what is damaged, if a read finds that after its first piece. Bytes that are not those that were asked for may also be
/// another object's by now, because this one was deleted long ago: that is no damage.
fn watched(content: Content, store: &Arc<Store>, locator: &str) -> Content {
    let Content { first, rest: Some(rest) } = content else { return content };
    let (store, locator) = (store.clone(), locator.to_owned());
    let watch = move |piece: io::Result<Bytes>| {
        let (store, locator) = (store.clone(), locator.clone());
        async move {
            let cause = match piece {
                Ok(piece) => return Ok(piece),
                Err(cause) => cause,
            };
            let code = cause.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).map(Error::code);
            if let Some(code) = code.filter(|code| is_damage(*code)) {
                note_damage(&store, &locator, code).await;
            }
            Err(cause)
        }
    };
    Content { first, rest: Some(rest.then(watch).boxed()) }
}

fn is_damage(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::BytesCorrupt | ErrorCode::BytesMissing)
}

/// Counts damage, unless no row names the bytes any more.
async fn note_damage(store: &Store, locator: &str, code: ErrorCode) {
    match is_named(store, locator).await {
        Ok(false) => tracing::debug!(locator, "a read ended short: the object is gone"),
        // If PostgreSQL does not tell, an operator should look.
        Ok(true) | Err(_) => tracing::error!(locator, "{}", count_damage(Some(code))),
    }
}

/// Whether an object or a part of an upload names these bytes.
async fn is_named(store: &Store, locator: &str) -> Result<bool> {
    Ok(store.unused_locators(&[locator.to_owned()]).await?.is_empty())
}

/// Counts bytes that metadata names and that are not there, or not whole. Returns what to log.
pub(super) fn count_damage(code: Option<ErrorCode>) -> &'static str {
    let (counter, what) = match code {
        Some(ErrorCode::BytesCorrupt) => (BYTES_CORRUPT, "an object's bytes are damaged"),
        _ => (BYTES_MISSING, "an object's bytes are missing"),
    };
    metrics::counter!(counter).increment(1);
    what
}

struct Reader {
    store: Arc<Store>,
    data: DataStore,
    manifest: UploadId,
    /// What the pages so far do not hold.
    rest: Range<u64>,
    /// Where the first extent of the page begins.
    at: u64,
    page: VecDeque<(Extent, Option<Pins>)>,
}

impl Reader {
    fn is_at_end(&self) -> bool {
        self.page.is_empty() && self.rest.is_empty()
    }

    /// Why the read ends before its end: the connection is closed, and the client sees that bytes are missing.
    async fn broken(&self, error: Error) -> io::Error {
        if is_damage(error.code()) {
            let locator = self.page.front().map_or_else(|| self.manifest.manifest(), |(next, _)| next.locator.clone());
            note_damage(&self.store, &locator, error.code()).await;
        } else {
            tracing::error!(%error, "a read broke off");
        }
        io::Error::other(error)
    }

    /// The bytes of the next extent; `None` if they are gone. Then, and after an error, the page begins with the extent.
    async fn open_next(&mut self) -> Result<Option<Content>> {
        if self.page.is_empty() {
            self.read_page().await?;
        }
        let Some(extent) = self.page.front().map(|(extent, _)| extent.clone()) else { return Ok(None) };
        let found = self.open(&extent).await;
        match &found {
            Ok(Some(_)) => return self.passed(found),
            Err(error) if error.code() != ErrorCode::BytesCorrupt => return found,
            _ => {}
        }
        // They may have been moved since the page was read.
        self.rest.start = self.at;
        self.read_page().await?;
        let Some(moved) = self.page.front().map(|(now, _)| now.clone()).filter(|now| *now != extent) else {
            return found;
        };
        match self.open(&moved).await {
            found @ Ok(Some(_)) => self.passed(found),
            found => found,
        }
    }

    /// The next extent is open.
    fn passed(&mut self, found: Result<Option<Content>>) -> Result<Option<Content>> {
        self.at += self.page.pop_front().map_or(0, |(extent, _)| extent.length);
        found
    }

    async fn read_page(&mut self) -> Result<()> {
        let extents = self.store.extents_between(self.manifest, self.rest.clone(), PAGE_EXTENTS).await?;
        self.rest.start += extents.iter().map(|extent| extent.length).sum::<u64>();
        let pinned = |extent: Extent| {
            let pins = self.data.pin(&extent.locator);
            (extent, pins)
        };
        self.page = extents.into_iter().map(pinned).collect();
        Ok(())
    }

    async fn open(&self, Extent { locator, start, length }: &Extent) -> Result<Option<Content>> {
        let content = self.data.get(locator, *start..start + length).await?;
        Ok(content.map(|content| watched(content, &self.store, locator)))
    }
}
