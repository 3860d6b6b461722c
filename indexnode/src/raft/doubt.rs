//! Whether a leader may lack committed entries (P48).
//!
//! A voter whose folder was put back from a copy has forgotten entries and votes. If the only replicas that remember them are
//! down, nothing shows it: the voter, and one that was behind, elect a leader without entries that lookups have shown. So a
//! voter that has restarted is *unconfirmed* until it has caught up with a leader that is not in doubt, and says so with its
//! vote. A leader that an unconfirmed vote elected, its own included, is *in doubt*: it answers no lookup and prepares no rename
//! until it has recovered from PostgreSQL (`Command::Recover`, or a rebuild).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::failpoints::{self, Failpoint};

/// What one replica knows; shared by its tasks.
#[derive(Debug)]
pub struct Doubt {
    is_confirmed: AtomicBool,
    /// The highest term in which an unconfirmed voter granted this replica its vote.
    doubtful_term: AtomicU64,
    /// The highest term of this replica's leadership in which it has recovered.
    recovered_term: AtomicU64,
}

impl Doubt {
    /// `is_confirmed`: this replica has promised nothing yet that it could have forgotten.
    pub fn new(is_confirmed: bool) -> Self {
        Self {
            is_confirmed: AtomicBool::new(is_confirmed),
            doubtful_term: AtomicU64::new(0),
            recovered_term: AtomicU64::new(0),
        }
    }

    /// True once this replica has had everything that was committed at some moment after its start.
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::SeqCst)
    }

    /// This replica, which follows, has caught up with a leader that is not in doubt.
    pub fn confirm(&self) {
        self.is_confirmed.store(true, Ordering::SeqCst);
    }

    /// An unconfirmed voter granted this replica its vote.
    pub fn note_doubtful_vote(&self, term: u64) {
        self.doubtful_term.fetch_max(term, Ordering::SeqCst);
    }

    /// This replica, which leads in that term, has recovered.
    pub fn note_recovered(&self, term: u64) {
        self.recovered_term.fetch_max(term, Ordering::SeqCst);
        self.confirm();
    }

    /// Tells whether the leadership of this replica in that term is in doubt.
    pub fn covers(&self, term: u64) -> bool {
        if failpoints::is_hit(Failpoint::TrustEveryVoter) || self.recovered_term.load(Ordering::SeqCst) >= term {
            return false;
        }
        !self.is_confirmed() || self.doubtful_term.load(Ordering::SeqCst) >= term
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leadership_is_in_doubt_until_it_has_recovered() {
        let doubt = Doubt::new(true);
        assert!(!doubt.covers(1));
        doubt.note_doubtful_vote(3);
        assert!(doubt.covers(3) && !doubt.covers(4), "a later election is another one");
        doubt.note_recovered(3);
        assert!(!doubt.covers(3));
    }

    #[test]
    fn a_restarted_replica_leads_in_doubt_until_it_is_confirmed() {
        let doubt = Doubt::new(false);
        assert!(doubt.covers(5));
        doubt.confirm();
        assert!(!doubt.covers(5));
    }
}
