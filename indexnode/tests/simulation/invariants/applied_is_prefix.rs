//! Applied is a prefix: a replica's index equals PostgreSQL's directories at its applied position and timeline. If the next
//! transaction is a large one, the index may have a part of it. Replicas that have applied the same entry of a cluster's log
//! are equal.

use std::{collections::BTreeMap, ops::Bound};

use mantle_indexnode::{
    index::{LockInfo, command::Source},
    raft::types::LogId,
};
use mantle_types::{Epoch, message::DirectoryRecord};

use super::{CheckResult, Sample};
use crate::{network::HostId, postgres::Postgres, tree::Tree};

#[derive(PartialEq, Eq)]
struct State {
    applied: LogId,
    epoch: Epoch,
    source: Option<Source>,
    digest: u64,
    locks: Vec<LockInfo>,
    /// Number of the timeline's operations that are applied.
    operations: Option<usize>,
}

/// The states seen so far.
#[derive(Default)]
pub struct AppliedIsPrefix {
    /// By cluster and log index: the first host with that entry, and its state.
    seen: BTreeMap<(String, u64), (HostId, State)>,
}

/// Checks that an index never goes back within the stream that follows one copy.
fn never_back(
    ((cluster, index), old): (&(String, u64), &State),
    ((other, next), new): (&(String, u64), &State),
) -> CheckResult {
    let stream = |state: &State| state.source.map(|source| (source.lineage.timeline, source.copied));
    if cluster == other && stream(old) == stream(new) && old.operations > new.operations {
        let (was, is) = (old.operations, new.operations);
        return Err(format!("an index went back from {was:?} operations at entry {index} to {is:?} at entry {next}"));
    }
    Ok(())
}

fn is_same(tree: &Tree, records: &[DirectoryRecord]) -> bool {
    tree.records().len() == records.len()
        && tree.records().zip(records).all(|(theirs, ours)| {
            (theirs.id, theirs.pid, &theirs.name, theirs.version, theirs.permission)
                == (ours.id, ours.pid, &ours.name, ours.version, ours.permission)
        })
}

impl AppliedIsPrefix {
    /// `has_gone_back`: a folder went back, so the log may have two histories for a moment, and replicas differ until they find
    /// out. Each still has to be a prefix of PostgreSQL's changes.
    pub fn check(&mut self, sample: &Sample, postgres: &Postgres, has_gone_back: bool) -> CheckResult {
        let Sample { host, applied, .. } = sample;
        let mut operations = None;
        if let Some(source) = sample.source {
            let timeline = source.lineage.timeline;
            let applied = postgres.timelines.committed_through(timeline, source.applied);
            let begun = postgres.timelines.committed_through(timeline, sample.reached);
            let tree = |operations| postgres.timelines.tree_after(timeline, operations);
            operations = (applied..=begun).find(|operations| is_same(tree(*operations), &sample.records));
            if operations.is_none() {
                let theirs: Vec<_> = tree(applied).records().collect();
                let ours = &sample.records;
                return Err(format!(
                    "host {host} has applied {source:?} (entry {applied}); its index {ours:?} is not PostgreSQL's {theirs:?}"
                ));
            }
        }
        let state = State {
            applied: *applied,
            epoch: sample.epoch,
            source: sample.source,
            digest: sample.digest,
            locks: sample.locks.clone(),
            operations,
        };
        if has_gone_back {
            return Ok(());
        }
        let key = (sample.cluster_id.clone(), applied.index);
        let before = self.seen.range(..&key).next_back().map(|(key, (_, state))| (key, state));
        let after =
            self.seen.range((Bound::Excluded(&key), Bound::Unbounded)).next().map(|(key, (_, state))| (key, state));
        let here = (&key, &state);
        for (old, new) in [(before, Some(here)), (Some(here), after)] {
            if let (Some(old), Some(new)) = (old, new) {
                never_back(old, new)?;
            }
        }
        match self.seen.get(&key) {
            Some((other, seen)) if *seen != state => Err(format!(
                "hosts {other} and {host} have applied entry {}, and differ: terms {} and {}, positions {:?} and {:?}, locks {:?} and {:?}",
                applied.index, seen.applied, applied, seen.source, state.source, seen.locks, state.locks
            )),
            Some(_) => Ok(()),
            None => {
                self.seen.insert(key, (*host, state));
                Ok(())
            }
        }
    }

    /// Number of entries whose states were seen.
    pub fn len(&self) -> usize {
        self.seen.len()
    }
}
