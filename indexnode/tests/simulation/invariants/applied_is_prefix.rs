//! Applied is a prefix: a replica's index is what PostgreSQL's WAL up to its applied position, on the timeline of that
//! position, amounts to; and replicas that have applied the same entry of a cluster's log are the same.

use std::collections::BTreeMap;

use mantle_indexnode::{
    index::{LockInfo, command::Source},
    raft::types::LogId,
};
use mantle_types::Epoch;

use super::{Checked, Sample};
use crate::{network::HostId, postgres::Postgres};

#[derive(PartialEq, Eq)]
struct State {
    applied: LogId,
    epoch: Epoch,
    source: Option<Source>,
    digest: u64,
    locks: Vec<LockInfo>,
}

/// What was seen so far.
#[derive(Default)]
pub struct AppliedIsPrefix {
    /// By cluster and log index: who was there first, and in which state.
    seen: BTreeMap<(String, u64), (HostId, State)>,
}

impl AppliedIsPrefix {
    /// Checks a state.
    pub fn check(&mut self, sample: &Sample, postgres: &Postgres) -> Checked {
        let Sample { host, applied, .. } = sample;
        if let Some(source) = sample.source {
            let timeline = source.lineage.timeline;
            let transactions = postgres.timelines.committed_through(timeline, source.applied);
            let tree = postgres.timelines.tree_after(timeline, transactions);
            let is_same = tree.records().len() == sample.records.len()
                && tree.records().zip(&sample.records).all(|(theirs, ours)| {
                    (theirs.id, theirs.pid, &theirs.name, theirs.version, theirs.permission)
                        == (ours.id, ours.pid, &ours.name, ours.version, ours.permission)
                });
            if !is_same {
                let theirs: Vec<_> = tree.records().collect();
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
        };
        let key = (sample.cluster_id.clone(), applied.index);
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

    /// How many entries' states were seen.
    pub fn len(&self) -> usize {
        self.seen.len()
    }
}
