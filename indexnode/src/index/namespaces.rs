//! Which namespaces the group has, and what it may do with each: part of the replicated state, changed by entries of the log
//! alone, so that every replica leaves out the same operations of the change stream.
//!
//! A group of an older version, whose log says nothing of namespaces, has all of them, until its leader says which.

use std::collections::BTreeMap;

use mantle_types::{Lsn, NamespaceId};
use serde::{Deserialize, Serialize};

use super::command::SourceId;

/// An attempt has so many bits for the log's index; those above, but the sign of PostgreSQL's bigint, count moves.
const LOG_INDEX_BITS: u32 = 40;

/// What the group may do with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Its directories are being copied from PostgreSQL, beside those that are served. Changes are applied.
    Copying,
    /// All that another group serves of it is here: lookups may be answered. That group prepares its renames.
    Ready,
    /// Lookups are answered and renames prepared.
    Serving,
    /// Another group serves it: its directories are being forgotten. Nothing comes in any more.
    Leaving,
}

impl Standing {
    /// May lookups be answered?
    pub fn answers(self) -> bool {
        matches!(self, Self::Ready | Self::Serving)
    }
}

/// The namespaces of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// Those that the group serves, nearly always all, and how often each was moved.
    serving: BTreeMap<NamespaceId, u32>,
    /// Those on their way in or out; of one that is copied, the position in each source below which the copy has every
    /// record.
    moving: BTreeMap<NamespaceId, (Standing, Vec<(SourceId, Lsn)>)>,
}

impl Namespaces {
    pub(super) fn standing(&self, ns: NamespaceId) -> Option<Standing> {
        let moving = || self.moving.get(&ns).map(|(standing, _)| *standing);
        moving().or_else(|| self.serving.contains_key(&ns).then_some(Standing::Serving))
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
    pub(super) fn set(&mut self, ns: NamespaceId, standing: Option<Standing>, copied: Vec<(SourceId, Lsn)>) {
        self.serving.remove(&ns);
        self.moving.remove(&ns);
        if let Some(standing) = standing {
            self.moving.insert(ns, (standing, copied));
        }
    }

    /// Either.
    pub(super) fn put(&mut self, ns: NamespaceId, standing: Standing, moves: u32) {
        match standing {
            Standing::Serving => self.serve(ns, moves),
            standing => self.set(ns, Some(standing), Vec::new()),
        }
    }

    /// Is none on its way in or out?
    pub(super) fn all_serve(&self) -> bool {
        self.moving.is_empty()
    }

    /// Is one being copied? Then removals are remembered: a record that was read before may be put after.
    pub(super) fn is_copying(&self) -> bool {
        self.moving.values().any(|(standing, _)| *standing == Standing::Copying)
    }

    /// Has the copy of a namespace, if it is being copied, every record that the source committed there?
    pub(super) fn is_copied(&self, ns: NamespaceId, source: SourceId, commit_lsn: Lsn) -> bool {
        let positions = self.moving.get(&ns).map_or(&[][..], |(_, positions)| positions);
        positions.iter().any(|(of, below)| *of == source && commit_lsn < *below)
    }

    /// What each stands for, how often it was moved, and for a copy its positions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NamespaceId, Standing, u32, &[(SourceId, Lsn)])> {
        let moving = self.moving.iter().map(|(ns, (standing, copied))| (*ns, *standing, 0, &copied[..]));
        self.serving.iter().map(|(ns, moves)| (*ns, Standing::Serving, *moves, &[][..])).chain(moving)
    }
}
