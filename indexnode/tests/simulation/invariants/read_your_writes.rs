//! Read your writes: an answer shows everything that anybody had been told to be visible before the question, and nothing
//! that was not committed when it came.

use super::Checked;
use crate::{history::Lookup, postgres::Postgres};

/// Number of transactions after which PostgreSQL's directories first gave a lookup's answer, from a number on.
pub fn first_state(lookup: &Lookup, from: usize, postgres: &Postgres) -> Option<usize> {
    (from..=lookup.committed).find(|at| postgres.tree_after(*at).walk(&lookup.path) == lookup.walk)
}

/// Checks the history.
pub fn at_end(lookups: &[Lookup], postgres: &Postgres) -> Checked {
    for lookup in lookups {
        if first_state(lookup, lookup.acknowledged, postgres).is_none() {
            let Lookup { acknowledged, committed, .. } = lookup;
            let expected = postgres.tree_after(*acknowledged).walk(&lookup.path);
            return Err(format!(
                "no state between transactions {acknowledged} and {committed} gives this answer (the first: {expected:?}): {lookup:?}"
            ));
        }
    }
    Ok(())
}
