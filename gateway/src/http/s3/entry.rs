//! An entry in S3's terms: etag, size, times. GET, HEAD and the listings share these.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SubsecRound, Utc};
use s3s::dto::{ETag, Timestamp};

use crate::store::Entry;

/// MD5 of no bytes: the etag of an explicit directory.
pub(super) const EMPTY_MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// The MD5 of an entry's bytes; `None` for an imported object, which has no bytes.
pub(super) fn md5(entry: &Entry) -> Option<&str> {
    if entry.is_directory() { Some(EMPTY_MD5) } else { entry.etag.as_deref() }
}

pub(super) fn etag(entry: &Entry) -> Option<ETag> {
    md5(entry).map(|md5| ETag::Strong(md5.to_owned()))
}

pub(super) fn size(entry: &Entry) -> u64 {
    if entry.is_directory() { 0 } else { entry.size }
}

/// In whole seconds, as HTTP's headers have it: the same in every answer.
pub(super) fn timestamp(time: DateTime<Utc>) -> Timestamp {
    SystemTime::from(time.trunc_subsecs(0)).into()
}

/// The time of an entry that has none: some clients fail without one.
pub(super) fn epoch() -> Timestamp {
    UNIX_EPOCH.into()
}
