//! Creations take a new id. If PostgreSQL lost the record of the id's block in a failover, it refuses the id (P9).

use mantle_types::{EntryId, ErrorCode, Result};

use crate::{
    app::Gateway,
    store::{Coded, code_of},
};

impl Gateway {
    /// Runs a creation with a new id, and once more with an id of a new block if PostgreSQL refuses the first.
    pub(super) async fn with_new_id<F, Fut>(&self, create: F) -> Result<Coded>
    where
        F: Fn(EntryId) -> Fut,
        Fut: Future<Output = Result<Coded>>,
    {
        let answer = create(self.ids.next().await?).await;
        if code_of(&answer) != Some(ErrorCode::InvalidId) {
            return answer;
        }
        self.ids.discard();
        create(self.ids.next().await?).await
    }
}
