//! Monotonic reads: whoever asks after an answer came, on whichever replica, gets no older one. As lookups are
//! linearizable, that holds between clients too.

use super::{Checked, read_your_writes::first_state};
use crate::{history::Lookup, postgres::Postgres};

/// Checks the history. Each answer is given the oldest state that it can be of, which binds later ones the least.
pub fn at_end(lookups: &[Lookup], postgres: &Postgres) -> Checked {
    let asked = lookups.iter().enumerate().map(|(at, lookup)| (lookup.asked, at, false));
    let answered = lookups.iter().enumerate().map(|(at, lookup)| (lookup.answered, at, true));
    let mut events: Vec<_> = asked.chain(answered).collect();
    events.sort_unstable();
    let mut newest = (0, None);
    let mut bounds = vec![(0, None); lookups.len()];
    for (_, at, is_answer) in events {
        if !is_answer {
            bounds[at] = newest;
            continue;
        }
        let (lookup, (bound, before)) = (&lookups[at], bounds[at]);
        let Some(state) = first_state(lookup, bound.max(lookup.acknowledged), postgres) else {
            let before: Option<&Lookup> = before.map(|before: usize| &lookups[before]);
            return Err(format!("{lookup:?} is older than transaction {bound}, which {before:?} had seen"));
        };
        if state > newest.0 {
            newest = (state, Some(at));
        }
    }
    Ok(())
}
