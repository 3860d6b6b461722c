//! The background comparison of the index with PostgreSQL, which finds a message that was lost (P3).
//!
//! Slice by slice, in both directions: what PostgreSQL has must be in the index with the same parent, name and version; what
//! the index has must be in PostgreSQL. Both change meanwhile, so what was read there is compared with the index once that has
//! applied everything that was committed by then: it may be newer, but not older. A difference counts when it is found again
//! and again: on several nodes a rename under way shows no row, or two.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Result, anyhow};
use futures::future::try_join_all;
use mantle_types::{DirectoryId, NamespaceId};
use tokio::time::{Instant, sleep};

use super::continuity::Reason;
use crate::{
    index::{
        Entry, SLICES,
        command::{NamespaceState, SourceId},
    },
    node::Node,
    postgres::upstream::Session,
    waits,
};

/// Between two slices, at least.
const PAUSE: Duration = Duration::from_millis(250);
/// And so many times as long as the last one took: of a table that it has not analyzed yet PostgreSQL reads all for a slice.
const REST_PER_SLICE: u32 = 9;
/// But no longer than this.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Directories in one slice, about.
const SLICE_DIRECTORIES: usize = 2000;
/// A difference is looked at so often before it counts, with this time between.
const CONFIRMATIONS: usize = 5;
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(1);
const CATCH_UP: Duration = Duration::from_secs(30);

/// Where the two passes are.
#[derive(Default)]
struct Cursor {
    /// In PostgreSQL: the last id that was compared.
    after: DirectoryId,
    /// In the index: the next slice.
    slice: usize,
}

/// Compares for as long as the stream runs.
pub struct Verifier {
    /// This replica, which leads.
    pub node: Arc<Node>,
    /// The node that knows all directories.
    pub control: Session,
    /// The nodes that feed the group.
    pub sessions: Vec<(SourceId, Session)>,
}

impl Verifier {
    /// Returns when there is a difference.
    pub async fn run(self) -> Result<Reason> {
        let mut cursor = Cursor::default();
        let mut took = Duration::ZERO;
        loop {
            sleep((took * REST_PER_SLICE).clamp(PAUSE, PAUSE_MAX)).await;
            if !self.node.state.positions().borrow().is_serving {
                continue;
            }
            let begun = Instant::now();
            let ids = self.next(&mut cursor).await?;
            let mut suspects = self.differences(&ids).await?;
            took = begun.elapsed();
            for _ in 0..CONFIRMATIONS {
                if suspects.is_empty() {
                    break;
                }
                sleep(CONFIRMATION_PAUSE).await;
                suspects = self.differences(&suspects).await?;
            }
            self.node.stream.count_compared(ids.len());
            if let Some(id) = suspects.first() {
                let count = suspects.len();
                return Ok(Reason::behind(format!("{count} directories differ from PostgreSQL's, {id} among them")));
            }
        }
    }

    /// The ids of the next slices, one of each side.
    async fn next(&self, cursor: &mut Cursor) -> Result<Vec<DirectoryId>> {
        let rows = self.control.directories_after(cursor.after, SLICE_DIRECTORIES).await?;
        cursor.after = rows.last().map(|(id, _)| *id).unwrap_or_default();
        let state = self.node.state.read();
        let is_ours = |ns| state.index.namespace_state(ns).is_some_and(NamespaceState::answers);
        let mut ids: Vec<DirectoryId> = rows.into_iter().filter(|(_, ns)| is_ours(*ns)).map(|(id, _)| id).collect();
        let from = ids.len();
        let first = cursor.slice;
        while ids.len() - from < SLICE_DIRECTORIES {
            ids.extend(state.index.slice(cursor.slice));
            cursor.slice = (cursor.slice + 1) % SLICES;
            if cursor.slice == first {
                break;
            }
        }
        // Of few directories both slices are all of them.
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// Those of the ids whose directory in the index is not PostgreSQL's.
    async fn differences(&self, ids: &[DirectoryId]) -> Result<Vec<DirectoryId>> {
        // What the index has that PostgreSQL has not any more counts if the index had it before it was asked for.
        let before = self.entries(ids);
        let mut rows: HashMap<DirectoryId, (Entry, NamespaceId)> = HashMap::with_capacity(ids.len());
        for (row, ns) in self.control.directories(ids).await? {
            let (newest, _) = rows.entry(row.id).or_insert_with(|| (row.clone(), ns));
            if row.version > newest.version {
                *newest = row;
            }
        }
        self.catch_up().await?;
        let now = self.entries(ids);
        let standing = |ns: NamespaceId| self.node.state.read().index.namespace_state(ns);
        let differs = |id: &&DirectoryId| match (rows.get(id), before.get(id), now.get(id)) {
            // On its way in or out: not all of it is here.
            (Some((_, ns)), ..) if standing(*ns).is_some_and(|standing| !standing.answers()) => false,
            (Some((_, ns)), _, now) if standing(*ns).is_none() => now.is_some(),
            (Some((row, _)), _, Some(entry)) => {
                entry.version < row.version || (entry.version == row.version && entry != row)
            }
            // Removed since, or never told.
            (Some(_), before, None) => before.is_none(),
            (None, Some(before), Some(now)) => before.version == now.version,
            (None, ..) => false,
        };
        Ok(ids.iter().filter(differs).copied().collect())
    }

    fn entries(&self, ids: &[DirectoryId]) -> HashMap<DirectoryId, Entry> {
        let state = self.node.state.read();
        ids.iter().filter_map(|id| Some((*id, state.index.entry(*id)?))).collect()
    }

    /// Waits until everything is applied that was committed when this was called.
    async fn catch_up(&self) -> Result<()> {
        let waits = self.sessions.iter().map(|(source, session)| async move {
            let flushed = session.flushed().await?;
            waits::position(&self.node, *source, flushed, CATCH_UP).await.map_err(|e| anyhow!("{e}"))
        });
        try_join_all(waits).await.map(|_| ())
    }
}
