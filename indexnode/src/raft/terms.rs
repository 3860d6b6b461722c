//! Bounds the terms that other replicas name, in their messages and in their answers.
//!
//! A replica adopts the highest term that it receives. Elections raise terms one by one, so a term far ahead is forged
//! or damaged. After the highest possible number no election could follow: the group would stop permanently.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::log::LogStore;
use crate::failpoints::{self, Failpoint};

/// A term this far ahead is logged and counted: so many failed elections are rare.
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
        let (_, vote) = self.log.last_and_vote();
        let known = vote.map_or(0, |vote| vote.leader_id.term);
        let jump = term.saturating_sub(known);
        if jump > JUMP_NOTICED {
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
