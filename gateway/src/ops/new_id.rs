//! Creations take a new id. After a failover PostgreSQL may have lost the record of the id's block, and refuses the id
//! (P9).

use mantle_types::{EntryId, ErrorCode, Result};

use crate::{
    app::Gateway,
    store::{Coded, Written},
};

impl Gateway {
    /// Runs a creation with a new id, and once more with an id of a new block if PostgreSQL refuses the first.
    pub(super) async fn with_new_id<T: Refusal, F, Fut>(&self, create: F) -> Result<T>
    where
        F: Fn(EntryId) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let answer = create(self.ids.next().await?).await;
        let code = answer.as_ref().map_or_else(|error| Some(error.code()), Refusal::code);
        if code != Some(ErrorCode::InvalidId) {
            return answer;
        }
        self.ids.discard();
        create(self.ids.next().await?).await
    }
}

/// An answer that may hold a refusal.
pub(super) trait Refusal {
    fn code(&self) -> Option<ErrorCode>;
}

impl Refusal for Coded {
    fn code(&self) -> Option<ErrorCode> {
        self.0
    }
}

impl Refusal for Written {
    fn code(&self) -> Option<ErrorCode> {
        None
    }
}
