//! The leader's work with PostgreSQL: follows the change streams, rebuilds the index, moves namespaces between groups.
//!
//! Invariant: only the leader reads the slots, and only after it has applied the first entry of its own term (P4). A slot
//! is confirmed up to a position only when the group has applied it (`confirmed ≤ applied ≤ received`). Sources:
//! PostgreSQL's logical replication protocol; materialize's `replication.rs` for the states.

pub mod assignments;
pub mod backlog;
pub mod connections;
pub mod continuity;
pub mod leader;
pub mod moves;
mod problems;
pub mod reader;
pub mod rebuild;
mod recovery;
pub mod rename_locks;
pub mod retrace;
pub mod split;
pub mod standby_gate;
pub mod stream;
pub mod verify;

use std::{future::pending, pin::Pin};

use anyhow::Result;
use futures::future::try_join_all;
use mantle_types::Lsn;

use crate::{index::command::SourceId, postgres::upstream::Session};

/// A future that may be running, for `select!`.
type InFlight<'a, T> = Option<Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>>;

async fn poll_or_pend<T>(slot: &mut InFlight<'_, T>) -> Result<T> {
    match slot {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// The flush positions of all sources.
async fn flushed(sessions: &[(SourceId, Session)]) -> Result<Vec<(SourceId, Lsn)>> {
    try_join_all(sessions.iter().map(|(id, session)| async move { Ok((*id, session.flushed().await?)) })).await
}
