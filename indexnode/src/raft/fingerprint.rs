//! Fingerprints of the replicated state, so that a replica that differs from its leader finds out before it answers (P49).
//!
//! The log and the state machine make all replicas equal. A folder that went back, a disk or a processor that errs, or a bug may
//! break that, and nothing else would show it. A replica sends its fingerprint with each request for a read index; the leader
//! remembers its own of the last entries, and compares.

use std::collections::VecDeque;

use openraft::EntryPayload;
use parking_lot::Mutex;

use super::{Proposal, types::LogId};
use crate::{
    index::{Index, mix},
    proto::peer::{self, Agreement},
};

/// A replica that is further behind is compared once it has caught up.
const REMEMBERED: usize = 4096;

/// The state of a replica after an entry; see `peer.proto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// The entry's log index.
    pub index: u64,
    /// Hash of the entries up to it; 0: unknown.
    pub history: u64,
    pub epoch: u64,
    /// Hash of the sources' systems and timelines.
    pub lineage: u64,
    /// Hash of the directories.
    pub digest: u64,
}

impl Fingerprint {
    pub fn of(index: u64, history: u64, state: &Index) -> Self {
        let lineage = state.sources().fold(0, |hash, (id, source)| {
            let words = [u64::from(id.0), source.lineage.system_identifier, u64::from(source.lineage.timeline)];
            words.into_iter().fold(hash, chain)
        });
        Self { index, history, epoch: state.epoch().0, lineage, digest: state.digest() }
    }

    /// Says what differs between this replica's state and the leader's at the same entry.
    fn difference(&self, leader: &Self) -> Option<String> {
        let Self { index, .. } = self;
        if self.epoch != leader.epoch {
            Some(format!("its epoch at entry {index} is {}, the leader's {}", self.epoch, leader.epoch))
        } else if self.lineage != leader.lineage {
            Some(format!("it follows another history of PostgreSQL at entry {index} than the leader"))
        } else if self.history != leader.history && self.history != 0 && leader.history != 0 {
            Some(format!("its log up to entry {index} is not the leader's"))
        } else if self.digest != leader.digest {
            Some(format!("its directories at entry {index} are not the leader's"))
        } else {
            None
        }
    }
}

impl From<Fingerprint> for peer::Fingerprint {
    fn from(f: Fingerprint) -> Self {
        Self { index: f.index, history: f.history, epoch: f.epoch, lineage: f.lineage, digest: f.digest }
    }
}

impl From<peer::Fingerprint> for Fingerprint {
    fn from(f: peer::Fingerprint) -> Self {
        Self { index: f.index, history: f.history, epoch: f.epoch, lineage: f.lineage, digest: f.digest }
    }
}

fn chain(hash: u64, word: u64) -> u64 {
    mix(mix(hash ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(word)).max(1)
}

/// The history after an entry, from the one before it. A rebuild begins a new history, because the state after it depends on no
/// entry before. An unknown history stays unknown until then.
pub fn history_after(
    history: u64,
    log_id: LogId,
    payload: &EntryPayload<Proposal, u64, openraft::BasicNode>,
    begins_rebuild: bool,
) -> u64 {
    if history == 0 && !begins_rebuild {
        return 0;
    }
    let before = if begins_rebuild { 0 } else { history };
    let content = match payload {
        EntryPayload::Normal(proposal) => proposal.checksum(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    let leader = log_id.committed_leader_id();
    [leader.term, leader.node_id, log_id.index, u64::from(content)].into_iter().fold(before, chain)
}

/// A replica's fingerprints after the last entries.
#[derive(Default)]
pub struct Fingerprints {
    last: Mutex<VecDeque<Fingerprint>>,
}

impl Fingerprints {
    /// Notes the fingerprint after an entry. One that does not follow the last (a snapshot) replaces all.
    pub fn note(&self, fingerprint: Fingerprint) {
        let mut last = self.last.lock();
        if last.back().is_some_and(|newest| newest.index + 1 != fingerprint.index) {
            last.clear();
        }
        if last.len() == REMEMBERED {
            last.pop_front();
        }
        last.push_back(fingerprint);
    }

    /// The fingerprint after the last applied entry.
    pub fn newest(&self) -> Option<Fingerprint> {
        self.last.lock().back().copied()
    }

    /// On the leader: compares a replica's fingerprint with its own at that entry. `committed`: everything that was committed
    /// when the replica sent it lies at or below this index.
    pub fn compare(&self, theirs: &Fingerprint, committed: u64) -> (Agreement, String) {
        if theirs.index > committed {
            let why = format!("it has applied entry {}, and the leader's log ends at {committed}", theirs.index);
            return (Agreement::Differs, why);
        }
        let own = {
            let last = self.last.lock();
            let first = last.front().map_or(0, |first| first.index);
            theirs.index.checked_sub(first).and_then(|at| last.get(at as usize)).copied()
        };
        match own.map(|own| theirs.difference(&own)) {
            None => (Agreement::Unknown, String::new()),
            Some(None) => (Agreement::Same, String::new()),
            Some(Some(difference)) => (Agreement::Differs, difference),
        }
    }
}

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId;

    use super::*;
    use crate::raft::types::CommittedLeaderId;

    fn at(index: u64) -> Fingerprint {
        Fingerprint { index, history: index + 1, epoch: 1, lineage: 2, digest: 3 }
    }

    fn remembering(entries: std::ops::Range<u64>) -> Fingerprints {
        let fingerprints = Fingerprints::default();
        entries.for_each(|index| fingerprints.note(at(index)));
        fingerprints
    }

    #[test]
    fn each_part_of_a_fingerprint_counts() {
        let leader = remembering(10..20);
        assert_eq!(leader.compare(&at(15), 19).0, Agreement::Same);
        for other in [
            Fingerprint { epoch: 2, ..at(15) },
            Fingerprint { lineage: 3, ..at(15) },
            Fingerprint { history: 1, ..at(15) },
            Fingerprint { digest: 4, ..at(15) },
        ] {
            let (agreement, difference) = leader.compare(&other, 19);
            assert_eq!(agreement, Agreement::Differs, "{other:?}");
            assert!(difference.contains("15"), "{difference}");
        }
        assert_eq!(leader.compare(&Fingerprint { history: 0, ..at(15) }, 19).0, Agreement::Same, "it is unknown");
    }

    #[test]
    fn an_entry_that_is_not_remembered_is_unknown_and_one_beyond_the_log_differs() {
        let leader = remembering(10..20);
        assert_eq!(leader.compare(&at(9), 19).0, Agreement::Unknown);
        assert_eq!(leader.compare(&at(20), 25).0, Agreement::Unknown, "the leader has not applied it yet");
        assert_eq!(leader.compare(&at(20), 19).0, Agreement::Differs);
        leader.note(at(40));
        assert_eq!(leader.compare(&at(15), 40).0, Agreement::Unknown, "a snapshot was installed");
        assert_eq!(remembering(0..9000).compare(&at(9000 - REMEMBERED as u64 - 1), 9000).0, Agreement::Unknown);
    }

    #[test]
    fn a_history_depends_on_every_entry_and_begins_with_a_rebuild() {
        let id = |term, index| LogId::new(CommittedLeaderId::new(term, 1), index);
        let after = |history, id, begins| history_after(history, id, &EntryPayload::Blank, begins);
        assert_eq!(after(0, id(1, 1), false), 0, "it stays unknown");
        let begun = after(0, id(1, 2), true);
        assert_eq!(begun, after(77, id(1, 2), true), "it does not depend on what was before");
        assert_ne!(after(begun, id(1, 3), false), after(begun, id(2, 3), false), "the term counts");
        assert_ne!(after(begun, id(1, 3), false), after(begun + 1, id(1, 3), false), "the past counts");
    }
}
