//! A model of the group's PostgreSQL node: directories, request ids, abort records, the epoch, WAL, and a slot.
//!
//! Invariant: it knows what the SQL functions know and checks what they check, no more: a transaction that would close a
//! cycle is not refused here, because PostgreSQL does not see it either. Everything happens in the order of the WAL.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mantle_types::{
    DirectoryId, Epoch, Lsn, NamespaceId, Permission, RequestKey,
    message::{Cause, DirectoryOp, DirectoryRecord},
};
use tokio::sync::Notify;

use crate::tree::Tree;

/// The namespace's root, and so its id.
pub const ROOT: DirectoryId = DirectoryId(16);
/// The namespace's name.
pub const NAMESPACE: &str = "ns";
/// The slot's name.
pub const SLOT: &str = "mantle_1";
/// The system that the model is.
pub const SYSTEM: (u64, u32) = (7_000_000_000, 1);
const ATTRIBUTES: Permission = Permission { owner: 0, group: 0, mode: 0o755 };

/// A committed transaction that changed directories.
pub struct Transaction {
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// One past it.
    pub end_lsn: Lsn,
    /// What it did.
    pub ops: Vec<DirectoryOp>,
    /// All directories after it.
    pub after: Arc<Tree>,
}

/// A rename that committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedAttempt {
    /// Whose.
    pub request: RequestKey,
    /// The log index of its prepare.
    pub attempt: u64,
    /// The epoch it was prepared and committed under.
    pub epoch: Epoch,
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
}

/// A logical slot.
pub struct SlotState {
    /// Transactions below are not sent again.
    pub confirmed: Lsn,
    /// What a crash goes back to.
    pub persisted: Lsn,
    /// Who reads it.
    pub active_pid: Option<i32>,
}

/// Why a statement was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Something named does not exist, or is not where it was.
    NotFound,
    /// The place is taken, or the directory not empty.
    InTheWay,
    /// The index has forgotten the lock.
    StaleEpoch,
    /// The attempt has an abort record.
    Aborted,
}

/// What a statement answers: the position to await.
pub type Answer = Result<Lsn, Refusal>;

/// The model.
pub struct Postgres {
    /// The first state, and what followed.
    pub wal: Vec<Transaction>,
    first: Arc<Tree>,
    insert: u64,
    /// Bounds of the group's row.
    pub epoch: Epoch,
    /// The cluster that raised it last.
    pub cluster_id: Option<String>,
    /// The slot.
    pub slot: Option<SlotState>,
    /// Exported snapshots, by name.
    pub snapshots: BTreeMap<String, Arc<Tree>>,
    /// Ends of all sessions so far.
    pub restarts: u64,
    /// Tells the walsenders of new WAL.
    pub wake: Arc<Notify>,
    /// Renames that committed.
    pub attempts: Vec<CommittedAttempt>,
    answers: BTreeMap<RequestKey, Lsn>,
    aborted: BTreeSet<(RequestKey, u64)>,
    terminated: BTreeSet<i32>,
    next_id: u64,
    next_pid: i32,
}

impl Postgres {
    /// One namespace, empty; some WAL.
    pub fn new() -> Self {
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
            wal: Vec::new(),
            first: Arc::new(tree),
            insert: 0x100_0000,
            epoch: Epoch(0),
            cluster_id: None,
            slot: None,
            snapshots: BTreeMap::new(),
            restarts: 0,
            wake: Arc::default(),
            attempts: Vec::new(),
            answers: BTreeMap::new(),
            aborted: BTreeSet::new(),
            terminated: BTreeSet::new(),
            next_id: ROOT.0 + 1,
            next_pid: 100,
        }
    }

    /// All directories now.
    pub fn tree(&self) -> &Arc<Tree> {
        self.wal.last().map_or(&self.first, |transaction| &transaction.after)
    }

    /// How many transactions committed at or below a position.
    pub fn committed_through(&self, lsn: Lsn) -> usize {
        self.wal.partition_point(|transaction| transaction.commit_lsn <= lsn)
    }

    /// All directories after that many transactions.
    pub fn tree_after(&self, transactions: usize) -> &Arc<Tree> {
        transactions.checked_sub(1).map_or(&self.first, |at| &self.wal[at].after)
    }

    /// Where the next record will be written.
    pub fn insert_lsn(&self) -> Lsn {
        Lsn(self.insert)
    }

    /// WAL that has nothing to do with directories.
    pub fn write_other(&mut self, bytes: u64) {
        self.insert += bytes;
        self.wake.notify_waiters();
    }

    fn commit(&mut self, request: RequestKey, after: Tree, ops: Vec<DirectoryOp>) -> Lsn {
        let commit_lsn = Lsn(self.insert + 64);
        let end_lsn = Lsn(self.insert + 96);
        self.insert = end_lsn.0;
        self.wal.push(Transaction { commit_lsn, end_lsn, ops, after: Arc::new(after) });
        self.answers.insert(request, end_lsn);
        self.wake.notify_waiters();
        commit_lsn
    }

    /// The answer of a request that is committed already: everything up to now is to be awaited.
    fn repeated(&self, request: &RequestKey) -> Option<Lsn> {
        self.answers.get(request).map(|_| self.insert_lsn())
    }

    /// Has the request's change committed?
    pub fn is_committed(&self, request: &RequestKey) -> bool {
        self.answers.contains_key(request)
    }

    /// A new directory.
    pub fn mkdir(&mut self, request: RequestKey, parent: DirectoryId, name: &str) -> Answer {
        if let Some(lsn) = self.repeated(&request) {
            return Ok(lsn);
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
        Ok(self.insert_lsn())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, request: RequestKey, parent: DirectoryId, name: &str) -> Answer {
        if let Some(lsn) = self.repeated(&request) {
            return Ok(lsn);
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
        Ok(self.insert_lsn())
    }

    /// Another mode.
    pub fn setattr(&mut self, request: RequestKey, id: DirectoryId, mode: u16) -> Answer {
        if let Some(lsn) = self.repeated(&request) {
            return Ok(lsn);
        }
        let mut tree = Tree::clone(self.tree());
        let mut record = tree.get(id).ok_or(Refusal::NotFound)?.clone();
        record.version += 1;
        record.permission.mode = mode;
        tree.put(record.clone());
        let ops = vec![DirectoryOp::Put { record, cause: Some(Cause { request, attempt: 0 }) }];
        self.commit(request, tree, ops);
        Ok(self.insert_lsn())
    }

    /// The transaction of a prepared rename.
    pub fn rename(&mut self, request: RequestKey, prepared: &Prepared) -> Answer {
        if let Some(lsn) = self.repeated(&request) {
            return Ok(lsn);
        }
        if self.epoch != prepared.epoch {
            return Err(Refusal::StaleEpoch);
        }
        if self.aborted.contains(&(request, prepared.attempt)) {
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
        Ok(self.insert_lsn())
    }

    /// The abort record. `false`: the request is committed.
    pub fn abort_rename(&mut self, request: &RequestKey, attempt: u64) -> bool {
        let may_abort = !self.is_committed(request);
        if may_abort {
            self.aborted.insert((*request, attempt));
        }
        may_abort
    }

    /// Compare and set of the epoch.
    pub fn raise_epoch(&mut self, expected: Epoch, cluster_id: &str) -> Option<Epoch> {
        if self.epoch != expected {
            return None;
        }
        self.epoch = Epoch(expected.0 + 1);
        self.cluster_id = Some(cluster_id.to_owned());
        Some(self.epoch)
    }

    /// A new session's process id.
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

    /// Was this session ended?
    pub fn is_terminated(&self, pid: i32) -> bool {
        self.terminated.contains(&pid)
    }

    /// Creates the slot; its consistent point and the snapshot's name.
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

    /// A crash and a restart: sessions end, and the slot goes back to what was on disk.
    pub fn restart(&mut self) {
        self.restarts += 1;
        self.snapshots.clear();
        if let Some(slot) = &mut self.slot {
            slot.active_pid = None;
            slot.confirmed = slot.persisted;
        }
        self.wake.notify_waiters();
    }
}

/// What a prepare granted.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Log index of the prepare.
    pub attempt: u64,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The locked directory.
    pub source: DirectoryId,
    /// Where it is.
    pub source_parent: DirectoryId,
    /// Under which name.
    pub source_name: String,
    /// Where it goes.
    pub destination_parent: DirectoryId,
    /// Under which name.
    pub destination_name: String,
}
