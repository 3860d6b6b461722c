//! A model of the group's PostgreSQL node: directories, request ids, abort records, the epoch, WAL, a slot, and a standby that
//! may be promoted.
//!
//! Invariant: the model knows and checks what the SQL functions do, no more. It does not refuse a transaction that forms a
//! cycle, because PostgreSQL does not see it either. Everything is ordered by the WAL, and a failover loses everything above
//! what the standby has flushed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mantle_types::{
    DirectoryId, Epoch, Lineage, Lsn, NamespaceId, Permission, RequestKey,
    message::{Cause, DirectoryOp, DirectoryRecord},
};
use rand::{Rng, rngs::StdRng};
use tokio::sync::Notify;

use crate::{
    answers::{Answer, Committed, Position, Prepared, Refusal},
    standby::Standby,
    timelines::{Timelines, Transaction},
    tree::Tree,
};

/// The namespace's root, which is also its id.
pub const ROOT: DirectoryId = DirectoryId(16);
pub const NAMESPACE: &str = "ns";
pub const SLOT: &str = "mantle_1";
pub const SYSTEM: u64 = 7_000_000_000;
/// A promotion skips this many ids: the new primary may not know of blocks that were given out.
const IDS_SKIPPED: u64 = 1000;
const FIRST_LSN: u64 = 0x100_0000;
const ATTRIBUTES: Permission = Permission { owner: 0, group: 0, mode: 0o755 };

/// A committed rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedAttempt {
    pub request: RequestKey,
    /// The log index of its prepare.
    pub attempt: u64,
    /// The epoch of its prepare and its commit.
    pub epoch: Epoch,
    /// Start of its commit record.
    pub commit_lsn: Lsn,
}

pub struct SlotState {
    /// Transactions below are not sent again.
    pub confirmed: Lsn,
    /// The confirmed position after a crash.
    pub persisted: Lsn,
    /// The session that reads it.
    pub active_pid: Option<i32>,
}

/// What a promoted standby has of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotAfter {
    /// The slot as it was persisted, up to where the standby is.
    Kept,
    /// A new slot that begins there.
    MadeAnew,
    Gone,
}

pub struct Postgres {
    /// The committed transactions of all timelines.
    pub timelines: Timelines,
    pub standby: Standby,
    insert: u64,
    /// The group's row after each raise: where in the WAL, the epoch, and the cluster that raised it.
    raises: Vec<(Lsn, Epoch, Option<String>)>,
    pub slot: Option<SlotState>,
    pub snapshots: BTreeMap<String, Arc<Tree>>,
    /// Number of times that all sessions ended.
    pub restarts: u64,
    /// Wakes the walsenders when there is new WAL.
    pub wake: Arc<Notify>,
    pub attempts: Vec<CommittedAttempt>,
    /// By committed request, the end of its transaction.
    answers: BTreeMap<RequestKey, Lsn>,
    /// Aborted attempts, with the position of the abort record.
    aborted: BTreeMap<(RequestKey, u64), Lsn>,
    terminated: BTreeSet<i32>,
    next_id: u64,
    next_pid: i32,
}

impl Postgres {
    /// A node with one empty namespace. `is_protected`: a commit waits for the standby.
    pub fn new(is_protected: bool) -> Self {
        let root = DirectoryRecord {
            ns: NamespaceId(ROOT.0),
            pid: DirectoryId::SUPER_ROOT.sole_partition(),
            name: NAMESPACE.to_owned(),
            id: ROOT,
            version: 1,
            permission: ATTRIBUTES,
        };
        let mut tree = Tree::default();
        tree.put(root);
        Self {
            timelines: Timelines::new(tree),
            standby: Standby::new(is_protected, Lsn(FIRST_LSN)),
            insert: FIRST_LSN,
            raises: vec![(Lsn::INVALID, Epoch(0), None)],
            slot: None,
            snapshots: BTreeMap::new(),
            restarts: 0,
            wake: Arc::default(),
            attempts: Vec::new(),
            answers: BTreeMap::new(),
            aborted: BTreeMap::new(),
            terminated: BTreeSet::new(),
            next_id: ROOT.0 + 1,
            next_pid: 100,
        }
    }

    pub fn lineage(&self) -> Lineage {
        Lineage { system_identifier: SYSTEM, timeline: self.timelines.now }
    }

    /// The group's epoch, and the cluster that raised it last.
    pub fn group(&self) -> (Epoch, Option<String>) {
        let (_, epoch, cluster_id) = self.raises.last().expect("the first is never lost");
        (*epoch, cluster_id.clone())
    }

    /// All directories now.
    pub fn tree(&self) -> &Arc<Tree> {
        self.timelines.tree_after(self.timelines.now, self.timelines.wal().len())
    }

    /// How many transactions of a timeline an index may show now. If commits wait for the standby: those that it has.
    pub fn visible_on(&self, timeline: u32) -> usize {
        let wal = self.timelines.of(timeline);
        if !self.standby.is_required {
            return wal.len();
        }
        let flushed = self.timelines.switch_of(timeline).unwrap_or(self.standby.flushed());
        wal.partition_point(|transaction| transaction.end_lsn <= flushed)
    }

    /// How many transactions of a timeline everybody sees. If commits wait for the standby: those that have returned.
    pub fn shown_on(&self, timeline: u32) -> usize {
        let wal = self.timelines.of(timeline);
        if !self.standby.is_required {
            return wal.len();
        }
        let flushed = self.timelines.switch_of(timeline).unwrap_or(self.standby.last_reported());
        wal.partition_point(|transaction| transaction.end_lsn <= flushed)
    }

    /// Where the next record is written.
    pub fn insert_lsn(&self) -> Lsn {
        Lsn(self.insert)
    }

    pub fn position(&self) -> Position {
        Position { timeline: self.timelines.now, lsn: self.insert_lsn() }
    }

    /// Writes WAL that has nothing to do with directories.
    pub fn write_other(&mut self, bytes: u64) {
        self.insert += bytes;
        self.wake.notify_waiters();
    }

    fn commit(&mut self, request: RequestKey, after: Tree, ops: Vec<DirectoryOp>) -> Lsn {
        self.commit_steps(request, vec![(after, ops)])
    }

    /// Commits a transaction that an index may show step by step. Each step has its operations and all directories after it.
    fn commit_steps(&mut self, request: RequestKey, steps: Vec<(Tree, Vec<DirectoryOp>)>) -> Lsn {
        let commit_lsn = Lsn(self.insert + 64);
        let end_lsn = Lsn(self.insert + 96);
        self.insert = end_lsn.0;
        for (after, ops) in steps {
            self.timelines.push(Transaction { commit_lsn, end_lsn, ops, after: Arc::new(after) });
        }
        self.answers.insert(request, end_lsn);
        self.wake.notify_waiters();
        commit_lsn
    }

    /// The answer to a request that is already committed (await everything up to now), or that was resolved before a promotion.
    fn answer(&self, request: &RequestKey, timeline: u32) -> Option<Answer> {
        if self.is_committed(request) {
            return Some(Ok(Committed { position: self.position(), is_repeat: true }));
        }
        (timeline != self.timelines.now).then_some(Err(Refusal::StaleLease))
    }

    /// Tells whether the request's change is committed.
    pub fn is_committed(&self, request: &RequestKey) -> bool {
        self.answers.contains_key(request)
    }

    pub fn mkdir(&mut self, request: RequestKey, timeline: u32, parent: DirectoryId, name: &str) -> Answer {
        if let Some(answer) = self.answer(&request, timeline) {
            return answer;
        }
        let mut tree = Tree::clone(self.tree());
        tree.get(parent).ok_or(Refusal::NotFound)?;
        if tree.lookup(parent.sole_partition(), name).is_some() {
            return Err(Refusal::InTheWay);
        }
        let record = DirectoryRecord {
            ns: request.ns,
            pid: parent.sole_partition(),
            name: name.to_owned(),
            id: DirectoryId(self.next_id),
            version: 1,
            permission: ATTRIBUTES,
        };
        self.next_id += 1;
        tree.put(record.clone());
        let ops = vec![DirectoryOp::Put { record, cause: Some(Cause { request, attempt: 0 }) }];
        self.commit(request, tree, ops);
        Ok(Committed { position: self.position(), is_repeat: false })
    }

    /// Makes directories for those names that are free, in one transaction. It changes the mode of the first, removes the
    /// second, then makes the others.
    pub fn mkdirs(
        &mut self,
        request: RequestKey,
        timeline: u32,
        parent: DirectoryId,
        names: &[&str],
        mode: u16,
    ) -> Answer {
        if let Some(answer) = self.answer(&request, timeline) {
            return answer;
        }
        let mut tree = Tree::clone(self.tree());
        tree.get(parent).ok_or(Refusal::NotFound)?;
        let pid = parent.sole_partition();
        let free: Vec<&str> = names.iter().copied().filter(|name| tree.lookup(pid, name).is_none()).collect();
        let mut records: Vec<DirectoryRecord> = Vec::new();
        for name in free {
            let (id, name, permission) = (DirectoryId(self.next_id), name.to_owned(), ATTRIBUTES);
            self.next_id += 1;
            records.push(DirectoryRecord { ns: request.ns, pid, name, id, version: 1, permission });
        }
        let [first, second, others @ ..] = &records[..] else { return Err(Refusal::InTheWay) };
        let mut changed = DirectoryRecord { version: 2, ..first.clone() };
        changed.permission.mode = mode;
        let removed = DirectoryRecord { version: 2, ..second.clone() };
        let put = |record: &DirectoryRecord| DirectoryOp::Put { record: record.clone(), cause: None };
        let mut ops = vec![put(first), put(second), put(&changed)];
        ops.push(DirectoryOp::Remove { record: removed, cause: Some(Cause { request, attempt: 0 }) });
        ops.extend(others.iter().map(put));
        let mut steps = Vec::new();
        for op in ops {
            match &op {
                DirectoryOp::Put { record, .. } => tree.put(record.clone()),
                DirectoryOp::Remove { record, .. } => tree.remove(record.id),
                DirectoryOp::Done { .. } | DirectoryOp::PartDone { .. } => {}
            }
            steps.push((tree.clone(), vec![op]));
        }
        self.commit_steps(request, steps);
        Ok(Committed { position: self.position(), is_repeat: false })
    }

    pub fn rmdir(&mut self, request: RequestKey, timeline: u32, parent: DirectoryId, name: &str) -> Answer {
        if let Some(answer) = self.answer(&request, timeline) {
            return answer;
        }
        let mut tree = Tree::clone(self.tree());
        let mut record = tree.lookup(parent.sole_partition(), name).ok_or(Refusal::NotFound)?.clone();
        if tree.has_children(record.id) {
            return Err(Refusal::InTheWay);
        }
        tree.remove(record.id);
        record.version += 1;
        let ops = vec![DirectoryOp::Remove { record, cause: Some(Cause { request, attempt: 0 }) }];
        self.commit(request, tree, ops);
        Ok(Committed { position: self.position(), is_repeat: false })
    }

    /// Changes the mode.
    pub fn setattr(&mut self, request: RequestKey, timeline: u32, id: DirectoryId, mode: u16) -> Answer {
        if let Some(answer) = self.answer(&request, timeline) {
            return answer;
        }
        let mut tree = Tree::clone(self.tree());
        let mut record = tree.get(id).ok_or(Refusal::NotFound)?.clone();
        record.version += 1;
        record.permission.mode = mode;
        tree.put(record.clone());
        let ops = vec![DirectoryOp::Put { record, cause: Some(Cause { request, attempt: 0 }) }];
        self.commit(request, tree, ops);
        Ok(Committed { position: self.position(), is_repeat: false })
    }

    /// The transaction of a prepared rename.
    pub fn rename(&mut self, request: RequestKey, prepared: &Prepared) -> Answer {
        let timeline = prepared.timeline;
        if let Some(answer) = self.answer(&request, timeline) {
            return answer;
        }
        if self.group().0 != prepared.epoch {
            return Err(Refusal::StaleEpoch);
        }
        if self.aborted.contains_key(&(request, prepared.attempt)) {
            return Err(Refusal::Aborted);
        }
        let mut tree = Tree::clone(self.tree());
        let from = tree.lookup(prepared.source_parent.sole_partition(), &prepared.source_name);
        let mut record = from.filter(|found| found.id == prepared.source).ok_or(Refusal::NotFound)?.clone();
        tree.get(prepared.destination_parent).ok_or(Refusal::NotFound)?;
        let pid = prepared.destination_parent.sole_partition();
        if tree.lookup(pid, &prepared.destination_name).is_some() {
            return Err(Refusal::InTheWay);
        }
        (record.pid, record.name) = (pid, prepared.destination_name.clone());
        record.version += 1;
        tree.put(record.clone());
        let cause = Cause { request, attempt: prepared.attempt };
        let commit_lsn = self.commit(request, tree, vec![DirectoryOp::Put { record, cause: Some(cause) }]);
        let (attempt, epoch) = (prepared.attempt, prepared.epoch);
        self.attempts.push(CommittedAttempt { request, attempt, epoch, commit_lsn });
        Ok(Committed { position: self.position(), is_repeat: false })
    }

    /// Writes the abort record. `false`: the request is committed.
    pub fn abort_rename(&mut self, request: &RequestKey, attempt: u64) -> bool {
        let may_abort = !self.is_committed(request);
        if may_abort {
            self.insert += 48;
            self.aborted.entry((*request, attempt)).or_insert(Lsn(self.insert));
            self.wake.notify_waiters();
        }
        may_abort
    }

    /// Raises the epoch by compare-and-set.
    pub fn raise_epoch(&mut self, expected: Epoch, cluster_id: &str) -> Option<Epoch> {
        if self.group().0 != expected {
            return None;
        }
        let raised = Epoch(expected.0 + 1);
        self.insert += 48;
        self.raises.push((self.insert_lsn(), raised, Some(cluster_id.to_owned())));
        self.wake.notify_waiters();
        Some(raised)
    }

    pub fn new_pid(&mut self) -> i32 {
        self.next_pid += 1;
        self.next_pid
    }

    /// Ends a session.
    pub fn terminate(&mut self, pid: i32) {
        self.terminated.insert(pid);
        if let Some(slot) = &mut self.slot
            && slot.active_pid == Some(pid)
        {
            slot.active_pid = None;
        }
        self.wake.notify_waiters();
    }

    /// Tells whether this session was ended.
    pub fn is_terminated(&self, pid: i32) -> bool {
        self.terminated.contains(&pid)
    }

    /// Creates the slot. Returns its consistent point and the snapshot's name.
    pub fn create_slot(&mut self) -> Option<(Lsn, String)> {
        if self.slot.is_some() {
            return None;
        }
        let point = self.insert_lsn();
        self.insert += 32;
        self.slot = Some(SlotState { confirmed: point, persisted: point, active_pid: None });
        let name = format!("snapshot-{point}");
        self.snapshots.insert(name.clone(), self.tree().clone());
        Some((point, name))
    }

    /// A crash and a restart: all sessions end, and the slot returns to its persisted state.
    pub fn restart(&mut self) {
        self.restarts += 1;
        self.snapshots.clear();
        if let Some(slot) = &mut self.slot {
            slot.active_pid = None;
            slot.confirmed = slot.persisted;
        }
        self.wake.notify_waiters();
    }

    /// Promotes the standby. Returns where it left the timeline. `slot`: what it has of the slot.
    pub fn fail_over(&mut self, slot: SlotAfter, rng: &mut StdRng) -> Lsn {
        let switch = self.standby.flushed();
        self.restart();
        self.timelines.fork(switch);
        self.answers.retain(|_, end| *end <= switch);
        self.attempts.retain(|attempt| self.answers.contains_key(&attempt.request));
        self.aborted.retain(|_, end| *end <= switch);
        self.raises.retain(|(end, ..)| *end <= switch);
        self.next_id += IDS_SKIPPED;
        // The end of recovery writes WAL.
        self.insert = switch.0 + rng.random_range(64..1000);
        self.slot = match (slot, self.slot.take()) {
            (SlotAfter::Kept, Some(kept)) => {
                let confirmed = kept.persisted.min(switch);
                Some(SlotState { confirmed, persisted: confirmed, active_pid: None })
            }
            (SlotAfter::MadeAnew, _) => {
                let confirmed = self.insert_lsn();
                Some(SlotState { confirmed, persisted: confirmed, active_pid: None })
            }
            _ => None,
        };
        self.standby.replace(self.insert_lsn(), rng);
        switch
    }

    /// Advances the standby by one millisecond.
    pub fn tick(&mut self, rng: &mut StdRng) {
        self.standby.tick(Lsn(self.insert), rng);
    }

    /// Whether a commit up to a position returns now. `None`: not yet; `false`: it is lost.
    pub fn is_durable(&self, position: Position) -> Option<bool> {
        match self.timelines.switch_of(position.timeline) {
            Some(switch) => Some(position.lsn <= switch),
            None => (!self.standby.is_required || position.lsn <= self.standby.reported()?).then_some(true),
        }
    }
}
