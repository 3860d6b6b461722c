//! No lost entry: when everything is quiet, every replica has exactly the directories that PostgreSQL has.

use super::{CheckResult, Sample};
use crate::postgres::Postgres;

pub fn at_end(sample: &Sample, postgres: &Postgres) -> CheckResult {
    let applied = sample.applied_lsn();
    if let Some(last) = postgres.timelines.wal().last().filter(|last| last.commit_lsn > applied) {
        return Err(format!("host {} has applied {applied}, PostgreSQL committed {}", sample.host, last.commit_lsn));
    }
    let tree = postgres.tree();
    for record in tree.records() {
        let found = sample.records.iter().find(|r| r.id == record.id);
        let is_same = found.is_some_and(|r| {
            (r.pid, &r.name, r.version, r.permission) == (record.pid, &record.name, record.version, record.permission)
        });
        if !is_same {
            return Err(format!("host {} has {found:?} of {record:?}", sample.host));
        }
    }
    match sample.records.iter().find(|r| tree.get(r.id).is_none()) {
        Some(record) => Err(format!("host {} has {record:?}, which was removed", sample.host)),
        None => Ok(()),
    }
}
