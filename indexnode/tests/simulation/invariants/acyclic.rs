//! Acyclic: every directory's ancestors lead to the namespace's root, in PostgreSQL and in every replica's index.

use std::collections::BTreeMap;

use mantle_types::{DirectoryId, message::DirectoryRecord};

use super::CheckResult;
use crate::postgres::ROOT;

/// Checks a tree of PostgreSQL or of a replica.
pub fn check<'a>(whose: &str, records: impl Iterator<Item = &'a DirectoryRecord>) -> CheckResult {
    let parents: BTreeMap<DirectoryId, DirectoryId> =
        records.map(|record| (record.id, DirectoryId(record.pid.0))).collect();
    for start in parents.keys() {
        let mut here = *start;
        for _ in 0..=parents.len() {
            if here == ROOT {
                break;
            }
            here = *parents.get(&here).ok_or_else(|| format!("{whose}: {here}, an ancestor of {start}, is missing"))?;
        }
        if here != ROOT {
            return Err(format!("{whose}: the ancestors of {start} are a cycle"));
        }
    }
    Ok(())
}
