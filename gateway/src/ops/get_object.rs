//! get_object: reads the metadata, then the bytes that it names.

use mantle_types::{Error, ErrorCode, Result};

use super::{
    restarts::RESTARTS_MAX,
    stat::{Found, Naming},
};
use crate::{
    app::{Call, Gateway},
    data::Content,
    store::{Entry, PartOfObject, UploadId},
};

/// Counter of reads that found no bytes.
const BYTES_MISSING: &str = "mantle_gateway_bytes_missing_total";

/// An error unless the caller may read the bytes.
pub(super) fn may_read(call: &Call, entry: &Entry) -> Result<()> {
    match entry.permission.may_read(&call.caller) {
        true => Ok(()),
        false => Err(Error::new(ErrorCode::AccessDenied, "the caller may not read the object")),
    }
}

impl Gateway {
    /// The object, or the explicit directory, at a key that the caller may read.
    pub async fn head_object(&self, call: &Call, namespace: &str, key: &str) -> Result<Entry> {
        let Found { entry, .. } = self.find(call, namespace, key, Naming::Exact).await.map_err(|e| match e.code() {
            // S3 has no entries below an object, so the key does not exist.
            ErrorCode::ParentIsObject => Error::new(ErrorCode::NotFound, e.detail()),
            _ => e,
        })?;
        if entry.is_directory() && !entry.explicit {
            return Err(Error::new(ErrorCode::NotFound, "the directory was not made explicitly"));
        }
        may_read(call, &entry)?;
        Ok(entry)
    }

    /// A part of an object that was uploaded in parts; `None` for any other object.
    pub async fn part_of_object(&self, entry: &Entry, number: Option<u32>) -> Result<Option<PartOfObject>> {
        let manifest = entry.locator.as_deref().and_then(UploadId::of_manifest);
        let (Some(manifest), Some(number)) = (manifest, number) else { return Ok(None) };
        match self.store.part_of_object(manifest, number).await? {
            Some(part) => Ok(Some(part)),
            None => Err(Error::new(ErrorCode::InvalidRange, "the requested part number is not satisfiable")),
        }
    }

    /// The object at a key, and the range of its bytes that `select` chooses. `part`: the number of a part.
    pub async fn get_object<T, E: From<Error>>(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        part: Option<u32>,
        select: impl Fn(&Entry, Option<&PartOfObject>) -> Result<(std::ops::Range<u64>, T), E>,
    ) -> Result<(Entry, T, Content), E> {
        for _ in 0..RESTARTS_MAX {
            let entry = self.head_object(call, namespace, key).await?;
            let place = self.part_of_object(&entry, part).await?;
            let (range, selected) = select(&entry, place.as_ref())?;
            if entry.is_directory() || entry.locator.is_some() && range.is_empty() {
                return Ok((entry, selected, Content::empty()));
            }
            let Some(locator) = &entry.locator else { return Err(E::from(ErrorCode::NoData.into())) };
            match self.read_bytes(locator, range).await? {
                Some(bytes) => return Ok((entry, selected, bytes)),
                // The object was replaced or removed between the two reads.
                None => tracing::debug!(locator, "the bytes are gone"),
            }
        }
        metrics::counter!(BYTES_MISSING).increment(1);
        tracing::error!(namespace, key, "an object's bytes are missing");
        Err(E::from(Error::new(ErrorCode::BytesMissing, "the object's bytes are missing")))
    }
}
