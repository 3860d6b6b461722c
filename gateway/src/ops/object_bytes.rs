//! Stores and reads an object's bytes. A locator names bytes in a store, or the manifest of an upload. The extents of a
//! manifest are read one after the other, in pages.

use std::{collections::VecDeque, io, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use mantle_types::{Error, ErrorCode, Result};
use uuid::Uuid;

use crate::{
    app::Gateway,
    data::{Content, DataStore, Expected, Stored, UploadError},
    store::{Extent, Store, UploadId},
};

/// Most extents that a read keeps in memory.
const PAGE_EXTENTS: usize = 1000;

impl Gateway {
    /// Makes a client's bytes durable.
    pub(super) async fn store_bytes<S, E>(&self, body: S, expected: Expected) -> Result<Stored, UploadError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let cluster = self.mark().await?;
        self.data.put(cluster, body, self.limits.object_bytes_max, expected).await
    }

    /// What stores mark bytes with; PostgreSQL is asked only if one of them does.
    pub(super) async fn mark(&self) -> Result<Uuid> {
        if self.data.marks_bytes() { self.cluster().await } else { Ok(Uuid::nil()) }
    }

    /// A range of the bytes that a locator names, which is not empty; `None` when they are gone.
    pub(super) async fn read_bytes(&self, locator: &str, range: Range<u64>) -> Result<Option<Content>> {
        let Some(manifest) = UploadId::of_manifest(locator) else { return self.data.get(locator, range).await };
        let mut reader =
            Reader { store: self.store.clone(), data: self.data.clone(), manifest, rest: range, page: VecDeque::new() };
        // The first extent is opened here: a client gets an error before any byte, or the bytes.
        let Some(Content { first, rest }) = reader.open_next().await? else { return Ok(None) };
        let others = stream::try_unfold(reader, async |mut reader| {
            if reader.is_at_end() {
                return Ok(None);
            }
            let next = reader.open_next().await.and_then(|next| next.ok_or_else(|| ErrorCode::BytesMissing.into()));
            next.map(|next| Some((next.into_stream(), reader))).map_err(broken)
        });
        let rest = stream::iter(rest).flatten().chain(others.try_flatten());
        Ok(Some(Content { first, rest: Some(rest.boxed()) }))
    }
}

/// A read that ends before its end: the connection is closed, and the client sees that bytes are missing.
fn broken(error: Error) -> io::Error {
    tracing::error!(%error, "a read broke off");
    io::Error::other(error)
}

struct Reader {
    store: Arc<Store>,
    data: DataStore,
    manifest: UploadId,
    /// What the pages so far do not hold.
    rest: Range<u64>,
    page: VecDeque<Extent>,
}

impl Reader {
    fn is_at_end(&self) -> bool {
        self.page.is_empty() && self.rest.is_empty()
    }

    /// The bytes of the next extent; `None` if they are gone.
    async fn open_next(&mut self) -> Result<Option<Content>> {
        if self.page.is_empty() {
            self.page = self.store.extents_between(self.manifest, self.rest.clone(), PAGE_EXTENTS).await?.into();
            self.rest.start += self.page.iter().map(|extent| extent.length).sum::<u64>();
        }
        let Some(Extent { locator, start, length }) = self.page.pop_front() else { return Ok(None) };
        self.data.get(&locator, start..start + length).await
    }
}
