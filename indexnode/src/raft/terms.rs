//! Bounds the terms that other replicas name, in their messages, in their answers, and in the promises that these repeat.
//!
//! A replica adopts the highest term that it receives. Elections raise terms one by one, so a term far ahead is forged
//! or damaged. After the highest possible number no election could follow: the group would stop permanently.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::log::LogStore;
use crate::failpoints::{self, Failpoint};

/// A term this far ahead is logged and counted: so many failed elections are rare. A replica without a vote is new, and any term
/// is far ahead of it.
const JUMP_NOTICED: u64 = 100;
/// A term this far ahead is refused.
const JUMP_MAX: u64 = 1 << 32;

/// The terms that this replica may accept, beginning at the one in its log. Clones share the count.
#[derive(Clone)]
pub struct TermCheck {
    log: LogStore,
    jumps: Arc<AtomicU64>,
}

impl TermCheck {
    pub fn new(log: LogStore) -> Self {
        Self { log, jumps: Arc::default() }
    }

    /// Checks a term that another replica names.
    ///
    /// # Errors
    /// The term is too far ahead to be genuine; the text says so.
    pub fn check(&self, term: u64) -> Result<(), String> {
        let known = self.known();
        self.bounded(term, known, if known.is_some() { JUMP_NOTICED } else { JUMP_MAX })
    }

    /// Checks a term that a member is said to have promised. Messages repeat promises, so only what is refused is counted.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_promised(&self, term: u64) -> Result<(), String> {
        self.bounded(term, self.known(), JUMP_MAX)
    }

    /// The term of the vote in this replica's log.
    fn known(&self) -> Option<u64> {
        self.log.last_and_vote().1.map(|vote| vote.leader_id.term)
    }

    fn bounded(&self, term: u64, known: Option<u64>, noticed: u64) -> Result<(), String> {
        let known = known.unwrap_or(0);
        let jump = term.saturating_sub(known);
        if jump > noticed {
            self.jumps.fetch_add(1, Ordering::Relaxed);
            tracing::error!(term, known, "another replica names a term far ahead of this replica's");
        }
        if jump > JUMP_MAX && !failpoints::is_hit(Failpoint::AnyTerm) {
            return Err(format!("term {term} is too far ahead of {known} to be one"));
        }
        Ok(())
    }

    /// How many terms were far ahead.
    pub fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use openraft::storage::RaftLogStorage;

    use super::*;
    use crate::raft::types::Vote;

    #[tokio::test]
    async fn only_a_replica_that_has_voted_notices_a_jump() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogStore::open(folder.path()).unwrap();
        let terms = TermCheck::new(log.clone());
        terms.check(JUMP_NOTICED + 1).unwrap();
        assert_eq!(terms.jumps(), 0, "a new replica joins a group of many elections");
        terms.check(JUMP_MAX + 1).unwrap_err();
        assert_eq!(terms.jumps(), 1, "but not of so many");
        log.save_vote(&Vote::new(5, 1)).await.unwrap();
        terms.check(5 + JUMP_NOTICED).unwrap();
        assert_eq!(terms.jumps(), 1);
        terms.check(6 + JUMP_NOTICED).unwrap();
        assert_eq!(terms.jumps(), 2);
        terms.check_promised(5 + JUMP_MAX).unwrap();
        assert_eq!(terms.jumps(), 2, "messages repeat promises");
        terms.check_promised(6 + JUMP_MAX).unwrap_err();
        assert_eq!(terms.jumps(), 3);
    }
}
