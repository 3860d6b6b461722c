//! Monotonic reads: a question that is asked after an answer arrived gets no older answer, on any replica. Lookups are
//! linearizable, so this holds between clients too.

use super::{CheckResult, read_your_writes::first_state};
use crate::{history::Lookup, postgres::Postgres};

/// Checks the history. Assumes for each answer the oldest possible state, which restricts later answers least.
pub fn at_end(lookups: &[Lookup], postgres: &Postgres) -> CheckResult {
    let asked = lookups.iter().enumerate().map(|(at, lookup)| (lookup.asked, at, false));
    let answered = lookups.iter().enumerate().map(|(at, lookup)| (lookup.answered, at, true));
    let mut events: Vec<_> = asked.chain(answered).collect();
    events.sort_unstable();
    // Number of transactions, their timeline, and the lookup that saw them.
    let mut newest = (0, 1, None);
    let mut bounds = vec![(0, 1, None); lookups.len()];
    for (_, at, is_answer) in events {
        if !is_answer {
            bounds[at] = newest;
            continue;
        }
        let (lookup, (seen, timeline, before)) = (&lookups[at], bounds[at]);
        // Without a synchronous standby, a failover may undo what was seen.
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
