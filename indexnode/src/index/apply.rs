//! The one function that changes the index.

use mantle_types::{
    DirectoryId, Epoch, Error, ErrorCode, Lsn,
    message::{Cause, DirectoryOp, DirectoryRecord},
};

use crate::failpoints::{self, Failpoint};

use super::{
    Effects, Index,
    command::{
        Applied, Command, NamespaceState, Prepare, PreparedRename, SourceBatch, SourceId, SourceStart, StreamPiece,
        StreamTransaction,
    },
    locks::Locks,
    namespaces::Namespaces,
    prepare,
    tree::{Tree, just_below},
};

/// Of so many records what they need is loaded at once: more would push each other out of the processor's first cache.
const PREFETCHED_RECORDS_MAX: usize = 64;

impl Index {
    /// Applies one entry of the Raft log. The outcome depends on the index and the command only.
    pub fn apply(&mut self, log_index: u64, command: Command, effects: &mut Effects) -> Applied {
        let mut entry = LogEntry::new(log_index, command);
        loop {
            if let Some(applied) = self.apply_part(&mut entry, usize::MAX, effects) {
                return applied;
            }
        }
    }

    /// Applies the next `operations_max` operations of an entry; its answer when none is left. In between lookups may
    /// be answered: they find a prefix of what each source committed, at most with a transaction larger than that cut in
    /// two. The state after the last part does not depend on where the parts end. Other entries wait.
    pub fn apply_part(
        &mut self,
        entry: &mut LogEntry,
        operations_max: usize,
        effects: &mut Effects,
    ) -> Option<Applied> {
        let tree = if matches!(entry.command, Command::RebuildChunk { .. }) { &self.rebuild } else { &self.serving };
        if let Some(tree) = tree {
            tree.table.prefetch_records(entry.next_records(operations_max));
        }
        let LogEntry { log_index, command, cursor } = entry;
        let is_done = match command {
            Command::Stream(batches) => {
                self.apply_operations(*log_index, batches, cursor, operations_max.max(1), effects)
            }
            Command::StreamPiece(piece) => self.apply_piece(*log_index, piece, cursor, operations_max.max(1), effects),
            Command::RebuildChunk { records } => {
                cursor.apply_next(records, operations_max, self.rebuild.as_mut(), |tree, record| tree.put(record))
            }
            Command::CopyChunk { ns, records } => {
                let tree =
                    self.serving.as_mut().filter(|tree| tree.namespace_state(*ns) == Some(NamespaceState::Copying));
                cursor.apply_next(records, operations_max, tree, |tree, record| tree.put(record))
            }
            Command::Forget { ns, ids } => {
                let tree =
                    self.serving.as_mut().filter(|tree| tree.namespace_state(*ns) == Some(NamespaceState::Leaving));
                cursor.apply_next(ids, operations_max, tree, |tree, id| tree.table.remove(*id))
            }
            _ => true,
        };
        if let Some(tree) = &mut self.serving {
            effects.modified.append(&mut tree.table.take_modified());
            self.catch_up.retain(|source, lsn| tree.applied_lsn(*source) < *lsn);
        }
        if !is_done {
            return None;
        }
        let command = std::mem::replace(command, Command::RebuildChunk { records: Vec::new() });
        Some(self.finish_entry(*log_index, command, effects))
    }

    /// What an entry does besides its operations.
    fn finish_entry(&mut self, log_index: u64, command: Command, effects: &mut Effects) -> Applied {
        match command {
            Command::Stream(_) => self.finish_stream(),
            Command::Prepare(prepare) => return Applied::Prepared(self.apply_prepare(log_index, &prepare)),
            Command::Release { request, attempt } => {
                if self.locks.get(&request).is_some_and(|lock| lock.attempt == attempt) {
                    self.locks.remove(&request);
                    effects.unlocked.push((request, attempt));
                }
            }
            Command::RebuildBegin { epoch, is_diverged } => self.begin_rebuild(epoch, is_diverged, effects),
            // The transaction goes on: nothing is to be forgotten yet.
            Command::StreamPiece(_) | Command::RebuildChunk { .. } => {}
            Command::RebuildEnd { sources } => {
                self.end_rebuild(&sources);
                effects.modified.push(DirectoryId::SUPER_ROOT);
            }
            Command::FollowTimeline { source, timeline } => {
                if let Some(source) = self.serving.as_mut().and_then(|tree| tree.sources.get_mut(&source)) {
                    source.lineage.timeline = timeline;
                }
            }
            Command::Horizon { after, positions } => {
                if let Some(tree) = &mut self.serving {
                    tree.set_horizon(after, positions);
                    tree.forget_removals();
                }
            }
            Command::RebuildNamespaces { .. }
            | Command::Restrict { .. }
            | Command::Admit { .. }
            | Command::Track { .. }
            | Command::SetNamespaceState { .. }
            | Command::CopyChunk { .. }
            | Command::Forget { .. } => self.apply_to_namespaces(command),
        }
        Applied::Done
    }

    /// Without a served tree there is nothing to apply to: the copy that is being made, or will be, holds these
    /// transactions, or its stream brings them again. Nobody's change is called finished then.
    ///
    /// Applies whole transactions as long as they fit into the part, or a piece of one that never would.
    fn apply_operations(
        &mut self,
        log_index: u64,
        batches: &[SourceBatch],
        cursor: &mut Cursor,
        operations_max: usize,
        effects: &mut Effects,
    ) -> bool {
        let Some(tree) = &mut self.serving else { return true };
        let mut left = operations_max;
        while let Some(batch) = batches.get(cursor.batch) {
            // Of a source that the copy in `tree` was not made with: its slot was not there yet.
            let Some(copied) = tree.sources.get(&batch.source).map(|source| source.copied) else {
                cursor.next_batch();
                continue;
            };
            let Some(transaction) = batch.transactions.get(cursor.transaction) else {
                tree.advance(batch.source, just_below(batch.position));
                cursor.next_batch();
                continue;
            };
            // A new leader reads the slot again from its confirmed position: what was applied comes twice (P4).
            if transaction.commit_lsn <= tree.applied_lsn(batch.source) && !failpoints::is_hit(Failpoint::ApplyTwice) {
                cursor.next_transaction();
                continue;
            }
            let rest = &transaction.ops[cursor.operation..];
            if rest.len() > left && (left < operations_max || left == 0) {
                return false;
            }
            let part = &rest[..rest.len().min(left)];
            let is_copied = transaction.commit_lsn < copied;
            let commit = Commit { log_index, source: batch.source, commit_lsn: transaction.commit_lsn, is_copied };
            for op in part {
                apply_operation(tree, &mut self.locks, &commit, op, effects);
            }
            if part.len() < rest.len() {
                cursor.operation += part.len();
                return false;
            }
            left -= part.len();
            tree.advance(batch.source, transaction.commit_lsn);
            cursor.next_transaction();
        }
        true
    }

    /// Of a transaction that is applied already, or that the copy's slot does not send, nothing is applied.
    fn apply_piece(
        &mut self,
        log_index: u64,
        piece: &StreamPiece,
        cursor: &mut Cursor,
        operations_max: usize,
        effects: &mut Effects,
    ) -> bool {
        let StreamPiece { source, commit_lsn, ops } = piece;
        let Some(tree) = &mut self.serving else { return true };
        let Some(copied) = tree.sources.get(source).map(|source| source.copied) else { return true };
        if *commit_lsn <= tree.applied_lsn(*source) && !failpoints::is_hit(Failpoint::ApplyTwice) {
            return true;
        }
        tree.mark_partial(*source, *commit_lsn);
        let commit = Commit { log_index, source: *source, commit_lsn: *commit_lsn, is_copied: *commit_lsn < copied };
        let end = ops.len().min(cursor.operation.saturating_add(operations_max));
        for op in &ops[cursor.operation..end] {
            apply_operation(tree, &mut self.locks, &commit, op, effects);
        }
        cursor.operation = end;
        end == ops.len()
    }

    fn finish_stream(&mut self) {
        let Some(tree) = &mut self.serving else { return };
        tree.forget_removals();
    }

    /// Which namespaces the group has.
    fn apply_to_namespaces(&mut self, command: Command) {
        if let Command::RebuildNamespaces { namespaces } = command {
            let of = self.rebuild.as_mut().map(|tree| tree.namespaces.insert(Namespaces::default()));
            if let Some(all) = of {
                namespaces.into_iter().for_each(|(ns, state, moves)| all.put(ns, state, moves));
            }
            return;
        }
        let Some(tree) = &mut self.serving else { return };
        match (command, &mut tree.namespaces) {
            (Command::Restrict { namespaces }, all @ None) => {
                let all = all.insert(Namespaces::default());
                namespaces.into_iter().for_each(|ns| all.serve(ns, 0));
            }
            (Command::Admit { namespaces }, Some(all)) => {
                for ns in namespaces.into_iter().filter(|ns| all.state(*ns).is_none()).collect::<Vec<_>>() {
                    all.serve(ns, 0);
                }
            }
            (Command::Track { ns, copied }, Some(all)) if all.state(ns).is_none() => {
                all.set(ns, Some(NamespaceState::Copying), copied);
            }
            (Command::SetNamespaceState { ns, from, to, moves }, Some(all)) if all.state(ns) == Some(from) => {
                match to {
                    Some(to) => all.put(ns, to, moves),
                    None => all.set(ns, None, Vec::new()),
                }
            }
            _ => {}
        }
    }

    fn apply_prepare(&mut self, log_index: u64, prepare: &Prepare) -> Result<PreparedRename, Error> {
        let tree = match &self.serving {
            Some(tree) if self.catch_up.is_empty() => tree,
            _ => return Err(ErrorCode::IndexUnavailable.into()),
        };
        if self.rebuild.is_some() {
            return Err(Error::new(ErrorCode::StaleEpoch, "the index is being rebuilt"));
        }
        let (mut prepared, mut lock) = prepare::check(&tree.table, &self.locks, self.epoch, log_index, prepare)?;
        if let Some(namespaces) = &tree.namespaces {
            prepared.attempt = namespaces.attempt(prepared.ns, log_index);
            lock.attempt = prepared.attempt;
        }
        if tree.namespace_state(prepared.ns) != Some(NamespaceState::Serving) {
            return Err(ErrorCode::NotServed.into());
        }
        if !self.locks.insert(lock) {
            return Err(ErrorCode::Locked.into());
        }
        Ok(prepared)
    }

    /// The epoch was raised, so no rename prepared before can commit: its lock is of no use any more. A tree that may hold
    /// what this PostgreSQL never had stops serving (and its memory is free now).
    fn begin_rebuild(&mut self, epoch: Epoch, is_diverged: bool, effects: &mut Effects) {
        self.rebuild = None;
        if epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        effects.unlocked.extend(self.locks.drain().map(|lock| (lock.request, lock.attempt)));
        if is_diverged {
            effects.modified.push(DirectoryId::SUPER_ROOT);
            self.serving = None;
            self.catch_up.clear();
        }
        self.rebuild = Some(Tree::new(self.seed.clone()));
    }

    /// Swaps the copy in. It may be older than what was served and acknowledged until now; the streams that follow bring the
    /// difference, and lookups wait for it.
    fn end_rebuild(&mut self, sources: &[SourceStart]) {
        let Some(mut tree) = self.rebuild.take() else { return };
        tree.begin_streams(sources);
        if let Some(old) = self.serving.take() {
            let served = old.sources.keys().map(|id| (*id, old.reached_lsn(*id)));
            for (id, lsn) in served {
                let behind = self.catch_up.entry(id).or_insert(lsn);
                *behind = lsn.max(*behind);
            }
            self.catch_up.retain(|id, lsn| tree.sources.contains_key(id) && tree.applied_lsn(*id) < *lsn);
        }
        // What the copy replaced while it was made, nobody has seen.
        tree.table.take_modified();
        self.serving = Some(tree);
    }
}

/// An entry of the Raft log on its way into the index.
#[derive(Debug)]
pub struct LogEntry {
    log_index: u64,
    command: Command,
    cursor: Cursor,
}

/// What of an entry is applied next.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    batch: usize,
    transaction: usize,
    operation: usize,
}

impl Cursor {
    fn next_transaction(&mut self) {
        *self = Self { transaction: self.transaction + 1, operation: 0, ..*self };
    }

    /// Does the next of the items to a tree, if there is one. Were those the last?
    fn apply_next<T>(
        &mut self,
        items: &[T],
        operations_max: usize,
        tree: Option<&mut Tree>,
        apply: impl Fn(&mut Tree, &T),
    ) -> bool {
        let end = items.len().min(self.operation.saturating_add(operations_max.max(1)));
        if let Some(tree) = tree {
            items[self.operation..end].iter().for_each(|item| apply(tree, item));
        }
        self.operation = end;
        end == items.len()
    }

    /// What is left of the transaction, of the batch after it, and of the batches after that.
    fn remaining<'b>(
        &self,
        batches: &'b [SourceBatch],
    ) -> (&'b [DirectoryOp], &'b [StreamTransaction], &'b [SourceBatch]) {
        let Some((batch, batches)) = batches.get(self.batch..).and_then(<[_]>::split_first) else {
            return Default::default();
        };
        match batch.transactions.get(self.transaction..).and_then(<[_]>::split_first) {
            Some((transaction, rest)) => (&transaction.ops[self.operation..], rest, batches),
            None => (&[], &[], batches),
        }
    }

    fn next_batch(&mut self) {
        *self = Self { batch: self.batch + 1, transaction: 0, operation: 0 };
    }
}

impl LogEntry {
    /// An entry of which nothing is applied yet.
    pub fn new(log_index: u64, command: Command) -> Self {
        Self { log_index, command, cursor: Cursor::default() }
    }

    /// Those that the next part is about, as far as can be told without the index, and no more than [`PREFETCHED_RECORDS_MAX`].
    pub(super) fn next_records(&self, operations_max: usize) -> impl Iterator<Item = &DirectoryRecord> + Clone {
        let (records, (ops, transactions, batches)): (&[_], _) = match &self.command {
            Command::RebuildChunk { records } | Command::CopyChunk { records, .. } => {
                (&records[self.cursor.operation..], Default::default())
            }
            Command::StreamPiece(piece) => {
                (&[], (&piece.ops[self.cursor.operation..], Default::default(), Default::default()))
            }
            Command::Stream(batches) => (&[], self.cursor.remaining(batches)),
            _ => Default::default(),
        };
        let transactions = transactions.iter().chain(batches.iter().flat_map(|batch| &batch.transactions));
        let count = operations_max.min(PREFETCHED_RECORDS_MAX);
        // Most operations may be without a record.
        let ops = ops.iter().chain(transactions.flat_map(|transaction| &transaction.ops)).take(count);
        records.iter().take(count).chain(ops.filter_map(DirectoryOp::record))
    }
}

/// Where an operation comes from.
struct Commit {
    log_index: u64,
    source: SourceId,
    commit_lsn: Lsn,
    /// The copy that is served has what the source committed then, but perhaps of a directory that another removed.
    is_copied: bool,
}

/// An operation of another group's namespace is none of ours: nobody waits for it here, and no lock is held for it.
fn apply_operation(tree: &mut Tree, locks: &mut Locks, commit: &Commit, op: &DirectoryOp, effects: &mut Effects) {
    let ns = op.namespace();
    let Some(state) = tree.namespace_state(ns) else { return };
    let copied = |all: &Namespaces| all.is_copied(ns, commit.source, commit.commit_lsn);
    let is_copied = commit.is_copied || tree.namespaces.as_ref().is_some_and(copied);
    tree.apply_op(commit.log_index, op, is_copied, state);
    if let Some(cause) = op.cause() {
        // Also when the version lost: a newer record of the directory may have come from elsewhere first.
        finish(locks, cause, effects);
    }
    if let DirectoryOp::Half { pid, cause } = op
        && locks.apply_part(&cause.request, *pid)
    {
        finish(locks, cause, effects);
    }
}

/// A committed change names its request. PostgreSQL keeps one answer a request key, so no attempt of it, older or newer,
/// can commit any more: whatever lock it holds is given back.
fn finish(locks: &mut Locks, cause: &Cause, effects: &mut Effects) {
    if let Some(lock) = locks.remove(&cause.request) {
        effects.unlocked.push((lock.request, lock.attempt));
    }
    if effects.finished.last() != Some(&cause.request) {
        effects.finished.push(cause.request);
    }
}
