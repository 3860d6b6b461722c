//! Applied survives: where PostgreSQL has a synchronous standby, a replica has applied nothing that the standby has not
//! flushed, so a failover never takes a change back that a lookup may have shown. Where it has none, a replica that applied
//! what was lost is rebuilt: that is what `no_lost_entry` finds in the end.

use super::{Checked, Sample};
use crate::postgres::Postgres;

/// Checks a state.
pub fn check(sample: &Sample, postgres: &Postgres) -> Checked {
    let Some(source) = sample.source.filter(|_| postgres.standby.is_required) else { return Ok(()) };
    let timeline = source.lineage.timeline;
    let applied = postgres.timelines.committed_through(timeline, sample.reached);
    let survives = postgres.visible_on(timeline);
    if applied > survives {
        let lost = &postgres.timelines.of(timeline)[survives];
        return Err(format!(
            "host {} (entry {}) has applied {} of timeline {timeline}; the standby does not have what committed at {}",
            sample.host, sample.applied, sample.reached, lost.commit_lsn
        ));
    }
    Ok(())
}
