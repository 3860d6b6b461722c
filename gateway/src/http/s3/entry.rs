//! An entry in S3's terms: etag and times. GET, HEAD and the listings share these.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SubsecRound, Utc};
use s3s::dto::{ETag, Timestamp};

use crate::store::Entry;

pub(super) fn etag(entry: &Entry) -> Option<ETag> {
    entry.md5().map(|md5| ETag::Strong(md5.to_owned()))
}

/// In whole seconds, as HTTP's headers have it: the same in every answer.
pub(super) fn timestamp(time: DateTime<Utc>) -> Timestamp {
    SystemTime::from(time.trunc_subsecs(0)).into()
}

/// The time of an entry that has none: some clients fail without one.
pub(super) fn epoch() -> Timestamp {
    UNIX_EPOCH.into()
}
