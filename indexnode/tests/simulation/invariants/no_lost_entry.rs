//! No lost entry: when everything is quiet, every replica has every directory that PostgreSQL has, as it is there, and no
//! other.

use super::{Checked, Sample};
use crate::postgres::Postgres;

/// Checks a replica at the end.
pub fn at_end(sample: &Sample, postgres: &Postgres) -> Checked {
    let last = postgres.wal.last().map_or(sample.applied_lsn, |transaction| transaction.commit_lsn);
    if sample.applied_lsn < last {
        return Err(format!("host {} has applied {}, PostgreSQL committed {last}", sample.host, sample.applied_lsn));
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
