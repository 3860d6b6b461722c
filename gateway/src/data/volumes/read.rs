//! Reads whose every byte is checked. A read that finds other bytes than those of its locator ends with an error.

use std::{io, ops::Range};

use bytes::Bytes;
use futures::{StreamExt, stream};
use mantle_types::{Error, ErrorCode, Result};
use mantle_volumes::{Locator, Reader};

use super::{super::Content, Volumes, unavailable};

/// What a read answers instead of bytes. The caller has to ask then whether metadata still name them: if not, they were deleted
/// meanwhile.
fn failed(locator: &Locator, cause: mantle_volumes::Error) -> Error {
    match cause {
        mantle_volumes::Error::Foreign { .. } => {
            tracing::debug!(%cause, "bytes are gone");
            Error::new(ErrorCode::BytesMissing, "the object's bytes are missing")
        }
        mantle_volumes::Error::Corrupt { .. } => {
            tracing::debug!(%cause, "bytes are damaged, or gone");
            ErrorCode::BytesCorrupt.into()
        }
        mantle_volumes::Error::Io(cause) => {
            tracing::error!(%cause, %locator, "a volume cannot be read");
            unavailable("the volume cannot be read")
        }
        cause => {
            tracing::error!(%cause, %locator, "a locator leads nowhere");
            ErrorCode::Internal.into()
        }
    }
}

/// Pins extents that are read later: while it exists, this gateway does not use their blocks again, up to the bound of a read.
pub struct Pins {
    _reader: Reader,
}

impl Volumes {
    /// Pins the extents of a locator. `None` if they are in another gateway's volume, which is not open here: that gateway does not know
    /// of reads here.
    pub(in crate::data) fn pin(&self, locator: &str) -> Option<Pins> {
        let locator: Locator = locator.parse().ok()?;
        let reader = self.store().read(std::slice::from_ref(&locator), 0..locator.bytes()).ok()?;
        Some(Pins { _reader: reader })
    }

    /// Reads a range that is not empty.
    ///
    /// # Errors
    /// Here, or in the stream: `BytesMissing`, `BytesCorrupt`, `BytesUnavailable`.
    pub(in crate::data) async fn get(&self, locator: &str, range: Range<u64>) -> Result<Content> {
        let locator: Locator = locator.parse().map_err(|_| {
            tracing::error!(locator, "a locator is malformed");
            Error::from(ErrorCode::Internal)
        })?;
        let mut reader = self.open(&locator, range.clone()).await?;
        let first = reader.next().await.map_err(|cause| failed(&locator, cause))?.unwrap_or_default();
        let is_all = first.len() as u64 == range.end - range.start;
        let rest = stream::try_unfold((reader, locator), async |(mut reader, locator)| {
            // Bytes in the page cache are always ready. Without this a long read would keep other tasks from its thread.
            tokio::task::yield_now().await;
            match reader.next().await {
                Ok(piece) => Ok(piece.map(|piece: Bytes| (piece, (reader, locator)))),
                Err(cause) => Err(io::Error::other(failed(&locator, cause))),
            }
        });
        Ok(Content { first, rest: (!is_all).then(|| rest.boxed()) })
    }

    async fn open(&self, locator: &Locator, range: Range<u64>) -> Result<Reader> {
        let all = std::slice::from_ref(locator);
        match self.store().read(all, range.clone()) {
            Err(mantle_volumes::Error::NotMounted(volume)) => {
                self.view(volume).await?;
                self.store().read(all, range)
            }
            opened => opened,
        }
        .map_err(|cause| failed(locator, cause))
    }
}
