//! Compares the index with PostgreSQL in the background, to find a lost message (P3).
//!
//! It goes slice by slice, in both directions: a directory in PostgreSQL must be in the index with the same parent, name and
//! version; a directory in the index must be in PostgreSQL. Both change meanwhile. So rows are compared with the index once it
//! has applied everything that was committed when they were read: it may be newer, but not older. A difference counts only if
//! it is found `CONFIRMATIONS` more times: with several nodes, a rename under way shows no row, or two.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Result, anyhow};
use futures::future::try_join_all;
use mantle_types::{DirectoryId, NamespaceId};
use tokio::time::{Instant, sleep};

use super::continuity::RebuildReason;
use crate::{
    index::{
        Entry, SLICES,
        command::{NamespaceState, SourceId},
    },
    node::Node,
    postgres::upstream::Session,
    waits,
};

const PAUSE: Duration = Duration::from_millis(250);
/// The pause is this many times the duration of the last slice: PostgreSQL reads a whole table that is not analyzed yet.
const REST_PER_SLICE: u32 = 9;
const PAUSE_MAX: Duration = Duration::from_secs(30);
const SLICE_DIRECTORIES: usize = 2000;
/// A difference is checked again this many times before it counts, with this pause in between.
const CONFIRMATIONS: usize = 5;
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(1);
const CATCH_UP: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Cursor {
    /// In PostgreSQL: the last id that was compared.
    after: DirectoryId,
    /// In the index: the next slice.
    slice: usize,
}

pub struct Verifier {
    pub node: Arc<Node>,
    /// A session with the coordinator, which knows all directories.
    pub control: Session,
    pub sessions: Vec<(SourceId, Session)>,
}

impl Verifier {
    /// Returns when there is a difference.
    pub async fn run(self) -> Result<RebuildReason> {
        let mut cursor = Cursor::default();
        let mut took = Duration::ZERO;
        loop {
            sleep((took * REST_PER_SLICE).clamp(PAUSE, PAUSE_MAX)).await;
            if !self.node.state.is_serving() {
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
            self.node.stream.compared.fetch_add(ids.len() as u64, Ordering::Relaxed);
            if let Some(id) = suspects.first() {
                let why = format!("{} directories differ from PostgreSQL's, {id} among them", suspects.len());
                return Ok(RebuildReason::behind(why));
            }
        }
    }

    /// The ids of the next slice in PostgreSQL and the next in the index.
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
        // With few directories, both slices contain all of them.
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// The ids whose directories differ between the index and PostgreSQL.
    async fn differences(&self, ids: &[DirectoryId]) -> Result<Vec<DirectoryId>> {
        // A directory that is missing in PostgreSQL counts only if the index had it before PostgreSQL was asked.
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
        let state = |ns: NamespaceId| self.node.state.read().index.namespace_state(ns);
        let differs = |id: &&DirectoryId| match (rows.get(id), before.get(id), now.get(id)) {
            // The namespace moves in or out: not all of it is here.
            (Some((_, ns)), ..) if state(*ns).is_some_and(|state| !state.answers()) => false,
            (Some((_, ns)), _, now) if state(*ns).is_none() => now.is_some(),
            (Some((row, _)), _, Some(entry)) => {
                entry.version < row.version || (entry.version == row.version && entry != row)
            }
            // Removed since the row was read, or its message was lost.
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
