//! What a directory's rename and its removal with all that is below it share: they begin with a lock in the index, and are
//! tried again when what stands against that passes.

use mantle_types::{Error, ErrorCode, Result};

use super::RESTARTS_MAX;
use crate::{app::Gateway, store::pause};

/// One try's outcome.
pub(super) enum Tried {
    /// The id of the directory.
    Done(i64),
    /// What stood against it passes.
    Again(Error),
    /// The index refused, as it knows the tree.
    Refused(Error),
}

/// A prepare that was refused, unless for good.
pub(super) fn refused(refusal: Error) -> Result<Tried> {
    match refusal.code() {
        ErrorCode::Locked | ErrorCode::StaleEpoch | ErrorCode::NotServed => Ok(Tried::Again(refusal)),
        ErrorCode::NotFound
        | ErrorCode::NamespaceNotFound
        | ErrorCode::AlreadyExists
        | ErrorCode::RenameLoop
        | ErrorCode::AccessDenied => Ok(Tried::Refused(refusal)),
        _ => Err(refusal),
    }
}

/// The tries of one change.
#[derive(Default)]
pub(super) struct Tries {
    restarts: u32,
    /// The index has all that was committed when this began.
    is_current: bool,
}

impl Tries {
    /// What came of another try: the directory's id, a refusal for good, or, after a while, neither. The index may be a moment
    /// behind PostgreSQL, from which others may have been told already of what makes this possible: its refusal counts once it
    /// has caught up.
    pub(super) async fn judge(&mut self, gateway: &Gateway, namespace: &str, tried: Tried) -> Result<Option<i64>> {
        match tried {
            Tried::Done(id) => return Ok(Some(id)),
            Tried::Refused(refusal) if self.is_current => return Err(refusal),
            Tried::Refused(_) => {
                gateway.index.catch_up(namespace).await?;
                self.is_current = true;
            }
            Tried::Again(error) if self.restarts == RESTARTS_MAX => return Err(error),
            Tried::Again(_) => {
                pause(self.restarts).await;
                self.restarts += 1;
            }
        }
        Ok(None)
    }
}
