//! Read your writes: an answer shows everything that anybody had been told to be visible before the question, and nothing
//! that was not committed when it came.

use super::Checked;
use crate::{history::Lookup, postgres::Postgres};

/// Number of transactions after which PostgreSQL's directories first gave a lookup's answer, from a number on. Both count
/// those of the lookup's timeline.
pub fn first_state(lookup: &Lookup, from: usize, postgres: &Postgres) -> Option<usize> {
    let tree = |at: usize| postgres.timelines.tree_after(lookup.timeline, at);
    let is_seen = |at: &usize| tree(*at).walk(&lookup.path, &lookup.caller) == lookup.walk;
    (from..=lookup.committed).find(is_seen)
}

/// Checks the history.
pub fn at_end(lookups: &[Lookup], postgres: &Postgres) -> Checked {
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
