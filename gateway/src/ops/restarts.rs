//! A use case starts again when a directory that it resolved was removed or moved, or when its lease ended (P8).

use mantle_types::{Error, ErrorCode, Result};

use crate::{app::Gateway, store::pause};

/// How often a use case starts again.
pub(super) const RESTARTS_MAX: u32 = 6;

#[derive(Default)]
pub(super) struct Restarts(pub(super) u32);

impl Restarts {
    /// Pauses, and returns when the use case may start again. An error when it has done so too often.
    pub(super) async fn again(&mut self) -> Result<()> {
        pause(self.0).await;
        self.0 += 1;
        if self.0 < RESTARTS_MAX { Ok(()) } else { Err(ErrorCode::DirectoryRemoved.into()) }
    }

    /// As [`Self::again`] if resolving again may help against this error; otherwise the error.
    pub(super) async fn after(&mut self, gateway: &Gateway, error: Error) -> Result<()> {
        if gateway.is_outdated(error.code()).await { self.again().await } else { Err(error) }
    }
}
