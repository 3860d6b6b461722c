//! get_object: reads the metadata, then the bytes that they name. If the bytes are gone, the object may have been replaced
//! or removed between the two reads; so the metadata are read again.

use mantle_types::{Error, ErrorCode, Result, inline::is_inline};

use super::{
    object_bytes::count_damage,
    restarts::RESTARTS_MAX,
    stat::{Found, Naming},
};
use crate::{
    app::{Call, Gateway},
    data::Content,
    store::{Entry, PartOfObject, UploadId},
};

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
        Ok(self.readable(call, namespace, key, false).await?.entry)
    }

    /// The same, with its place, and perhaps its bytes.
    pub(super) async fn readable(&self, call: &Call, namespace: &str, key: &str, with_bytes: bool) -> Result<Found> {
        let found = self.find_entry(call, namespace, key, Naming::Exact, with_bytes).await;
        let found = found.map_err(|e| match e.code() {
            // S3 has no entries below an object, so the key does not exist.
            ErrorCode::ParentIsObject => Error::new(ErrorCode::NotFound, e.detail()),
            _ => e,
        })?;
        if found.entry.is_directory() && !found.entry.explicit {
            return Err(Error::new(ErrorCode::NotFound, "the directory was not made explicitly"));
        }
        may_read(call, &found.entry)?;
        Ok(found)
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
        let mut before: Option<(String, ErrorCode)> = None;
        // With the setting at 0 few objects have their bytes in PostgreSQL, and these take a second statement.
        let with_bytes = self.limits.inline_bytes_max > 0;
        for _ in 0..RESTARTS_MAX {
            let Found { entry, partition, .. } = self.readable(call, namespace, key, with_bytes).await?;
            let place = self.part_of_object(&entry, part).await?;
            let (range, selected) = select(&entry, place.as_ref())?;
            if entry.is_directory() || entry.locator.is_some() && range.is_empty() {
                return Ok((entry, selected, Content::empty()));
            }
            let Some(locator) = &entry.locator else { return Err(E::from(ErrorCode::NoData.into())) };
            // A rename to another directory takes the bytes along, and does not change their locator.
            if !is_inline(locator) && before.as_ref().is_some_and(|(before, _)| before == locator) {
                // The object still names these bytes, so they are missing or damaged.
                break;
            }
            let code = match self.read_object(partition.pid, &entry, range).await {
                Ok(Some(bytes)) => return Ok((entry, selected, bytes)),
                Ok(None) => ErrorCode::BytesMissing,
                Err(error) if error.code() == ErrorCode::BytesCorrupt => ErrorCode::BytesCorrupt,
                Err(error) => return Err(error.into()),
            };
            tracing::debug!(locator, %code, "the bytes are gone, or damaged");
            before = Some((locator.clone(), code));
        }
        let (locator, code) = before.unwrap_or((String::new(), ErrorCode::BytesMissing));
        tracing::error!(namespace, key, locator, "{}", count_damage(Some(code)));
        Err(E::from(match code {
            ErrorCode::BytesMissing => Error::new(code, "the object's bytes are missing"),
            code => code.into(),
        }))
    }
}
