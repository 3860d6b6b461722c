//! The namespaces of the group, and what it may do with each. They are part of the replicated state, and only log entries
//! change them. So every replica skips the same operations of the change stream.
//!
//! The log of an older version does not mention namespaces. Such a group has all of them until its leader says which.

use std::collections::BTreeMap;

use mantle_types::{Lsn, NamespaceId};

use super::command::{NamespaceState, SourceId};

/// Bits of an attempt that hold the log index. The bits above count moves, except the sign of PostgreSQL's bigint.
const LOG_INDEX_BITS: u32 = 40;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// The namespaces that the group serves (nearly always all), and how often each was moved.
    serving: BTreeMap<NamespaceId, u32>,
    /// The namespaces that move in or out. For one that is being copied: the position in each source below which the copy has
    /// every record.
    unserved: BTreeMap<NamespaceId, (NamespaceState, Vec<(SourceId, Lsn)>)>,
}

impl Namespaces {
    pub(super) fn state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        let unserved = || self.unserved.get(&ns).map(|(state, _)| *state);
        unserved().or_else(|| self.serving.contains_key(&ns).then_some(NamespaceState::Serving))
    }

    /// The attempt of a rename prepared by the entry at this log index. After a move the next group's attempts are higher,
    /// even if its log is shorter.
    pub(super) fn attempt(&self, ns: NamespaceId, log_index: u64) -> u64 {
        u64::from(self.serving.get(&ns).copied().unwrap_or(0)) << LOG_INDEX_BITS | log_index
    }

    pub(super) fn serve(&mut self, ns: NamespaceId, moves: u32) {
        self.set(ns, Some(NamespaceState::Serving), moves, Vec::new());
    }

    /// Sets the state of a namespace. `None` removes it. `moves` counts only if it is served, `copied` only if it is not.
    pub(super) fn set(
        &mut self,
        ns: NamespaceId,
        state: Option<NamespaceState>,
        moves: u32,
        copied: Vec<(SourceId, Lsn)>,
    ) {
        self.serving.remove(&ns);
        self.unserved.remove(&ns);
        match state {
            Some(NamespaceState::Serving) => drop(self.serving.insert(ns, moves)),
            Some(state) => drop(self.unserved.insert(ns, (state, copied))),
            None => {}
        }
    }

    pub(super) fn unserved(&self) -> Vec<(NamespaceId, NamespaceState)> {
        self.unserved.iter().map(|(ns, (state, _))| (*ns, *state)).collect()
    }

    /// Tells whether no namespace moves in or out.
    pub(super) fn all_serve(&self) -> bool {
        self.unserved.is_empty()
    }

    /// Tells whether a namespace is being copied. Removals are remembered meanwhile: the copy may put a record that it read
    /// before the removal.
    pub(super) fn is_copying(&self) -> bool {
        self.unserved.values().any(|(state, _)| *state == NamespaceState::Copying)
    }

    /// Tells whether the namespace is being copied and the copy has every record that the source committed at that LSN.
    pub(super) fn is_copied(&self, ns: NamespaceId, source: SourceId, commit_lsn: Lsn) -> bool {
        let positions = self.unserved.get(&ns).map_or(&[][..], |(_, positions)| positions);
        positions.iter().any(|(of, below)| *of == source && commit_lsn < *below)
    }

    /// Each namespace with its state, how often it was moved, and the positions of its copy.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NamespaceId, NamespaceState, u32, &[(SourceId, Lsn)])> {
        let unserved = self.unserved.iter().map(|(ns, (state, copied))| (*ns, *state, 0, &copied[..]));
        self.serving.iter().map(|(ns, moves)| (*ns, NamespaceState::Serving, *moves, &[][..])).chain(unserved)
    }
}
