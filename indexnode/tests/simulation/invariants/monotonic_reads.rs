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
    // Transactions of a timeline, and who saw them.
    let mut newest = (0, 1, None);
    let mut bounds = vec![(0, 1, None); lookups.len()];
    for (_, at, is_answer) in events {
        if !is_answer {
            bounds[at] = newest;
            continue;
        }
        let (lookup, (seen, timeline, before)) = (&lookups[at], bounds[at]);
        // What a failover took back without a synchronous standby nobody has to see again.
        let bound = postgres.timelines.count_on(lookup.timeline, timeline, seen);
        let Some(state) = first_state(lookup, bound.max(lookup.acknowledged), postgres) else {
            let before: Option<&Lookup> = before.map(|before: usize| &lookups[before]);
            return Err(format!("{lookup:?} is older than transaction {bound}, which {before:?} had seen"));
        };
        if state > postgres.timelines.count_on(lookup.timeline, newest.1, newest.0) {
            newest = (state, lookup.timeline, Some(at));
        }
    }
    Ok(())
}
