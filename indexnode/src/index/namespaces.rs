//! Which namespaces the group has, and what it may do with each: part of the replicated state, changed by entries of the log
//! alone, so that every replica leaves out the same operations of the change stream.
//!
//! A group of an older version, whose log says nothing of namespaces, has all of them, until its leader says which.

use std::collections::BTreeMap;

use mantle_types::{Lsn, NamespaceId};

use super::command::{NamespaceState, SourceId};

/// An attempt has so many bits for the log's index; those above, but the sign of PostgreSQL's bigint, count moves.
const LOG_INDEX_BITS: u32 = 40;

/// The namespaces of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// Those that the group serves, nearly always all, and how often each was moved.
    serving: BTreeMap<NamespaceId, u32>,
    /// Those on their way in or out; of one that is copied, the position in each source below which the copy has every
    /// record.
    moving: BTreeMap<NamespaceId, (NamespaceState, Vec<(SourceId, Lsn)>)>,
}

impl Namespaces {
    pub(super) fn state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        let moving = || self.moving.get(&ns).map(|(state, _)| *state);
        moving().or_else(|| self.serving.contains_key(&ns).then_some(NamespaceState::Serving))
    }

    /// The attempt of a rename that is prepared by the entry at a log index. The next group's is higher, whatever its log.
    pub(super) fn attempt(&self, ns: NamespaceId, log_index: u64) -> u64 {
        u64::from(self.serving.get(&ns).copied().unwrap_or(0)) << LOG_INDEX_BITS | log_index
    }

    /// It is served, and was moved so often.
    pub(super) fn serve(&mut self, ns: NamespaceId, moves: u32) {
        self.moving.remove(&ns);
        self.serving.insert(ns, moves);
    }

    /// It is on its way in or out, or no longer here.
    pub(super) fn set(&mut self, ns: NamespaceId, state: Option<NamespaceState>, copied: Vec<(SourceId, Lsn)>) {
        self.serving.remove(&ns);
        self.moving.remove(&ns);
        if let Some(state) = state {
            self.moving.insert(ns, (state, copied));
        }
    }

    /// Either.
    pub(super) fn put(&mut self, ns: NamespaceId, state: NamespaceState, moves: u32) {
        match state {
            NamespaceState::Serving => self.serve(ns, moves),
            state => self.set(ns, Some(state), Vec::new()),
        }
    }

    /// Is none on its way in or out?
    pub(super) fn all_serve(&self) -> bool {
        self.moving.is_empty()
    }

    /// Is one being copied? Then removals are remembered: a record that was read before may be put after.
    pub(super) fn is_copying(&self) -> bool {
        self.moving.values().any(|(state, _)| *state == NamespaceState::Copying)
    }

    /// Has the copy of a namespace, if it is being copied, every record that the source committed there?
    pub(super) fn is_copied(&self, ns: NamespaceId, source: SourceId, commit_lsn: Lsn) -> bool {
        let positions = self.moving.get(&ns).map_or(&[][..], |(_, positions)| positions);
        positions.iter().any(|(of, below)| *of == source && commit_lsn < *below)
    }

    /// What each stands for, how often it was moved, and for a copy its positions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NamespaceId, NamespaceState, u32, &[(SourceId, Lsn)])> {
        let moving = self.moving.iter().map(|(ns, (state, copied))| (*ns, *state, 0, &copied[..]));
        self.serving.iter().map(|(ns, moves)| (*ns, NamespaceState::Serving, *moves, &[][..])).chain(moving)
    }
}
