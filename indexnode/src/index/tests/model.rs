//! A model of the index, as simple as possible: a list of rows and a list of locks, searched linearly. One source, whose
//! transactions arrive in commit order.

use std::collections::BTreeMap;

use mantle_types::{ErrorCode, permission::Access};

use super::*;
use crate::index::{
    Resolution,
    command::{Prepare, PreparedRename},
};

pub(crate) type Place = (u64, String);

#[derive(Clone)]
pub(crate) struct ModelLock {
    pub request: RequestKey,
    pub attempt: u64,
    pub source_id: u64,
    pub places: [Place; 2],
}

#[derive(Clone, Default)]
pub(crate) struct Model {
    pub rows: BTreeMap<u64, DirectoryRecord>,
    pub locks: Vec<ModelLock>,
    pub epoch: u64,
    /// If set, the answer to every prepare and lookup.
    pub refusal: Option<ErrorCode>,
}

/// A walk: the directories on it, the root first, and the component that stopped it.
struct Walk<'a> {
    passed: Vec<&'a DirectoryRecord>,
    stop: Option<(ErrorCode, Place)>,
}

impl Model {
    pub fn at(&self, pid: u64, name: &str) -> Option<&DirectoryRecord> {
        self.rows.values().find(|r| r.pid.0 == pid && r.name == name)
    }

    /// The directories from the namespace's root to this one.
    ///
    /// # Panics
    /// If the ancestors do not end at the root: the tree has a cycle.
    pub fn chain(&self, id: u64) -> Vec<u64> {
        let (mut chain, mut here) = (vec![id], id);
        while here != NS.0 {
            here = self.rows[&here].pid.0;
            chain.push(here);
            assert!(chain.len() <= self.rows.len(), "{id} lies on or below a cycle");
        }
        chain.reverse();
        chain
    }

    pub fn path(&self, id: u64) -> Vec<String> {
        self.chain(id)[1..].iter().map(|id| self.rows[id].name.clone()).collect()
    }

    fn is_touched(&self, place: &Place) -> bool {
        let occupant = self.at(place.0, &place.1).map(|r| r.id.0);
        self.locks.iter().any(|lock| lock.places.contains(place) || Some(lock.source_id) == occupant)
    }

    fn walk(&self, path: &[String], caller: &Caller) -> Walk<'_> {
        let mut passed = vec![&self.rows[&NS.0]];
        for name in path {
            let here = passed[passed.len() - 1];
            let place = (here.id.0, name.clone());
            if !here.permission.allows(caller, Access::Search) {
                return Walk { passed, stop: Some((ErrorCode::AccessDenied, place)) };
            }
            match self.at(here.id.0, name) {
                None => return Walk { passed, stop: Some((ErrorCode::NotFound, place)) },
                Some(next) => passed.push(next),
            }
        }
        Walk { passed, stop: None }
    }

    fn is_crossed(&self, walk: &Walk<'_>) -> bool {
        let missing = walk.stop.iter().filter(|(code, _)| *code == ErrorCode::NotFound).map(|(_, place)| place.clone());
        let passed = walk.passed[1..].iter().map(|r| (r.pid.0, r.name.clone()));
        passed.chain(missing).any(|place| self.is_touched(&place))
    }

    pub fn resolve(&self, path: &[String], caller: &Caller) -> Result<Resolution, ErrorCode> {
        if let Some(code) = self.refusal.filter(|code| *code == ErrorCode::IndexUnavailable) {
            return Err(code);
        }
        let walk = self.walk(path, caller);
        let end = walk.passed[walk.passed.len() - 1];
        Ok(Resolution {
            outcome: walk.stop.as_ref().map_or(Ok(()), |(code, _)| Err(*code)),
            ns: NS,
            id: end.id,
            depth: walk.passed.len() - 1,
            parent_id: DirectoryId(end.pid.0),
            permission: end.permission,
            version: end.version,
            crossed_lock: self.is_crossed(&walk),
        })
    }

    /// Checks a prepare, and takes its lock.
    pub fn prepare(&mut self, attempt: u64, rule: u32, prepare: &Prepare) -> Result<PreparedRename, ErrorCode> {
        if let Some(code) = self.refusal {
            return Err(code);
        }
        let caller = &prepare.caller;
        let (name, parents) = prepare.destination.split_last().ok_or(ErrorCode::InvalidArgument)?;
        let (source_name, _) = prepare.source.split_last().ok_or(ErrorCode::InvalidArgument)?;
        let walks = [self.walk(&prepare.source, caller), self.walk(parents, caller)];
        for walk in &walks {
            match walk.stop {
                Some((ErrorCode::NotFound, _)) if self.is_crossed(walk) => return Err(ErrorCode::Locked),
                Some((code, _)) => return Err(code),
                None => {}
            }
        }
        let [source, into] = [&walks[0], &walks[1]].map(|walk| walk.passed[walk.passed.len() - 1]);
        let from = &self.rows[&source.pid.0];
        let may = |r: &DirectoryRecord, access| r.permission.allows(caller, access);
        if !(may(from, Access::Write) && may(into, Access::Write) && may(into, Access::Search)) {
            return Err(ErrorCode::AccessDenied);
        }
        let owns = |r: &DirectoryRecord| caller.uid == 0 || caller.uid == r.permission.owner;
        let sticks = |parent: &DirectoryRecord, r: &DirectoryRecord| {
            rule > 0 && parent.permission.mode & 0o1000 != 0 && !owns(parent) && !owns(r)
        };
        let is_kept = rule > 0 && from.id != into.id && !owns(source) && !may(source, Access::Write);
        if sticks(from, source) || is_kept {
            return Err(ErrorCode::AccessDenied);
        }
        let place = (into.id.0, name.clone());
        let request = RequestKey { ns: NS, ..prepare.request };
        if self.locks.iter().any(|lock| lock.request == request)
            || walks.iter().any(|walk| self.is_crossed(walk))
            || self.is_touched(&place)
        {
            return Err(ErrorCode::Locked);
        }
        let occupant = self.at(place.0, name);
        if self.chain(into.id.0).contains(&source.id.0) || occupant.is_some_and(|r| r.id == source.id) {
            return Err(ErrorCode::RenameLoop);
        }
        if occupant.is_some_and(|o| !prepare.overwrite || self.rows.values().any(|r| r.pid.0 == o.id.0)) {
            return Err(ErrorCode::AlreadyExists);
        }
        if occupant.is_some_and(|o| sticks(into, o)) {
            return Err(ErrorCode::AccessDenied);
        }
        let prepared = PreparedRename {
            attempt,
            epoch: Epoch(self.epoch),
            ns: NS,
            source_pid: source.pid,
            source_id: source.id,
            source_version: source.version,
            destination_pid: PartitionId(into.id.0),
            replaced: occupant.map(|o| o.id),
            source_parent: from.permission,
            destination_parent: Some(into.permission),
        };
        let places = [(source.pid.0, source_name.clone()), place];
        self.locks.push(ModelLock { request, attempt, source_id: prepared.source_id.0, places });
        Ok(prepared)
    }

    /// Applies one transaction. Returns what it finished, unlocked and modified.
    pub fn apply(&mut self, ops: &[DirectoryOp]) -> Effects {
        let mut effects = Effects::default();
        for op in ops {
            match op {
                DirectoryOp::Put { record, .. } => {
                    let meaning = |r: &DirectoryRecord| (r.pid, r.name.clone(), r.permission);
                    let old = self.rows.insert(record.id.0, record.clone());
                    effects.modified.extend(old.filter(|old| meaning(old) != meaning(record)).map(|old| old.id));
                }
                DirectoryOp::Remove { record, .. } => {
                    effects.modified.extend(self.rows.remove(&record.id.0).map(|old| old.id));
                }
                DirectoryOp::Done { .. } | DirectoryOp::PartDone { .. } => {}
            }
            if let Some(cause) = op.cause() {
                effects.finished.push(cause.request);
                let at = self.locks.iter().position(|lock| lock.request == cause.request);
                effects.unlocked.extend(at.map(|at| self.locks.remove(at)).map(|lock| (lock.request, lock.attempt)));
            }
        }
        effects
    }
}
