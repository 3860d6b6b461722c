//! Applied survives: if PostgreSQL has a synchronous standby, a replica applies only what the standby has flushed. So a
//! failover never undoes a change that a lookup may have shown. Without one, a replica that applied lost changes is rebuilt;
//! `no_lost_entry` checks that at the end.

use super::{CheckResult, Sample};
use crate::postgres::Postgres;

pub fn check(sample: &Sample, postgres: &Postgres) -> CheckResult {
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
