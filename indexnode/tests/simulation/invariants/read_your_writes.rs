//! Read your writes: an answer shows everything that was acknowledged to any client before the question, and nothing that was
//! not committed when it arrived.

use super::CheckResult;
use crate::{history::Lookup, postgres::Postgres};

/// The lowest number of transactions, at least `from`, after which PostgreSQL's directories gave a lookup's answer. Counts
/// transactions of the lookup's timeline.
pub fn first_state(lookup: &Lookup, from: usize, postgres: &Postgres) -> Option<usize> {
    let tree = |at: usize| postgres.timelines.tree_after(lookup.timeline, at);
    let is_seen = |at: &usize| tree(*at).walk(&lookup.path, &lookup.caller) == lookup.walk;
    (from..=lookup.committed).find(is_seen)
}

pub fn at_end(lookups: &[Lookup], postgres: &Postgres) -> CheckResult {
    for lookup in lookups {
        if first_state(lookup, lookup.acknowledged, postgres).is_none() {
            let Lookup { timeline, acknowledged, committed, .. } = lookup;
            let expected = postgres.timelines.tree_after(*timeline, *acknowledged).walk(&lookup.path, &lookup.caller);
            return Err(format!(
                "no state between transactions {acknowledged} and {committed} gives this answer (the first: {expected:?}): {lookup:?}"
            ));
        }
    }
    Ok(())
}
