//! What can go wrong with bytes, and what the client is told. The cause goes to the log.

use std::{error::Error as StdError, io};

use mantle_types::{Error, ErrorCode};

use super::Mismatch;

#[derive(Debug)]
pub enum UploadError {
    TooLarge,
    /// The client's stream broke, or failed verification.
    Body(Box<dyn StdError + Send + Sync>),
    /// The bytes do not match an announced digest.
    Mismatch(Mismatch),
    /// The store failed, or a use case refused.
    Store(Error),
}

impl From<Error> for UploadError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<object_store::Error> for UploadError {
    fn from(cause: object_store::Error) -> Self {
        Self::Store(failed(&cause))
    }
}

impl From<io::Error> for UploadError {
    fn from(cause: io::Error) -> Self {
        Self::Store(failed(&cause))
    }
}

/// A failure of this machine's disk.
pub(super) fn failed(cause: &(dyn StdError + 'static)) -> Error {
    if is_full(cause) {
        tracing::warn!(cause, "the data store is full");
        return ErrorCode::StorageFull.into();
    }
    tracing::error!(cause, "the data store failed");
    ErrorCode::Internal.into()
}

/// Whether a write failed because the disk, or this user's quota, is full.
fn is_full(cause: &(dyn StdError + 'static)) -> bool {
    use io::{Error, ErrorKind};
    let mut kinds = anyhow::Chain::new(cause).filter_map(|cause| cause.downcast_ref::<Error>().map(Error::kind));
    kinds.any(|kind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}
