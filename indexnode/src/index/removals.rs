//! Versions of removed directories, kept as long as an older message about them may still arrive (P1).
//!
//! With one source none can: its messages arrive in commit order, which is version order. With several, a message that
//! committed before the removal may still be in transit from another source, until a [`Horizon`] is passed.

use std::collections::{BTreeMap, VecDeque};

use mantle_types::{DirectoryId, Lsn};
use serde::{Deserialize, Serialize};

use super::command::{Source, SourceId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Removal {
    pub version: u64,
    /// Log index of the entry that removed it.
    pub log_index: u64,
}

/// The flush positions of all sources, sampled when the log was applied up to `after`. Removals at or before that log index are
/// forgotten once every source is past its position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Horizon {
    pub after: u64,
    pub positions: Vec<(SourceId, Lsn)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Removals {
    pub removed: BTreeMap<DirectoryId, Removal>,
    pub horizons: VecDeque<Horizon>,
}

impl Removals {
    pub(super) fn version(&self, id: DirectoryId) -> Option<u64> {
        self.removed.get(&id).map(|removal| removal.version)
    }

    /// Drops the removals that no older message can contradict any more.
    pub(super) fn forget(&mut self, sources: &BTreeMap<SourceId, Source>) {
        if sources.len() <= 1 {
            self.removed.clear();
            self.horizons.clear();
            return;
        }
        let mut after = None;
        while self.horizons.front().is_some_and(|horizon| horizon.is_passed(sources)) {
            after = self.horizons.pop_front().map(|horizon| horizon.after).max(after);
        }
        if let Some(after) = after {
            self.removed.retain(|_, removal| removal.log_index > after);
        }
    }
}

impl Horizon {
    /// A commit below a position has a commit LSN below it. A source that the group no longer has does not count.
    fn is_passed(&self, sources: &BTreeMap<SourceId, Source>) -> bool {
        self.positions.iter().all(|(source, position)| {
            sources.get(source).is_none_or(|source| source.applied.0 >= position.0.saturating_sub(1))
        })
    }
}
