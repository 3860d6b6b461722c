//! Applies the entries of the Raft log. Nothing else changes the index.

use mantle_types::{
    DirectoryId, Epoch, Error, ErrorCode, Lsn, NamespaceId,
    message::{Cause, DirectoryOp},
};

use crate::failpoints::{self, Failpoint};

use super::{
    Effects, Index,
    command::{
        Applied, Command, FIRST_RULE, NamespaceState, PrepareByRule, PreparedRename, SourceBatch, SourceId,
        SourceStart, TransactionPiece,
    },
    locks::Locks,
    log_entry::{Cursor, LogEntry},
    namespaces::Namespaces,
    prepare::Check,
    removals::Horizon,
    tree::{Tree, just_below},
};

impl Index {
    /// Applies one entry of the Raft log. The result depends on the index and the command only.
    pub fn apply(&mut self, log_index: u64, command: Command, effects: &mut Effects) -> Applied {
        let mut entry = LogEntry::new(log_index, command);
        loop {
            if let Some(applied) = self.apply_part(&mut entry, usize::MAX, effects) {
                return applied;
            }
        }
    }

    /// Applies the next `operations_max` operations of an entry. Returns its answer once none is left.
    ///
    /// Lookups may run between two parts; other entries may not. Lookups then see a prefix of what each source committed. Only
    /// a transaction with more operations than `operations_max` can be visible in part. The final state does not depend on
    /// where the parts end.
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
            Command::TransactionPiece(piece) => {
                self.apply_piece(*log_index, piece, cursor, operations_max.max(1), effects)
            }
            Command::RebuildChunk { records } => {
                cursor.apply_next(records, operations_max, self.rebuild.as_mut(), |tree, record| tree.put(record))
            }
            Command::CopyChunk { ns, records } => {
                let tree = self.served_if(*ns, NamespaceState::Copying);
                cursor.apply_next(records, operations_max, tree, |tree, record| tree.put(record))
            }
            Command::Forget { ns, ids } => {
                let tree = self.served_if(*ns, NamespaceState::Leaving);
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

    fn served_if(&mut self, ns: NamespaceId, state: NamespaceState) -> Option<&mut Tree> {
        self.serving.as_mut().filter(|tree| tree.namespace_state(ns) == Some(state))
    }

    /// The effects of an entry besides its operations.
    fn finish_entry(&mut self, log_index: u64, command: Command, effects: &mut Effects) -> Applied {
        match command {
            Command::Stream(_) => self.serving.iter_mut().for_each(Tree::forget_removals),
            Command::Prepare(prepare) => {
                let by = PrepareByRule { prepare, rule: FIRST_RULE, below: Vec::new() };
                return Applied::Prepared(self.apply_prepare(log_index, &by, effects));
            }
            Command::PrepareByRule(by) => return Applied::Prepared(self.apply_prepare(log_index, &by, effects)),
            Command::Prepares(all) => {
                let answers = all.iter().map(|by| self.apply_prepare(log_index, by, effects));
                return Applied::AllPrepared(answers.collect());
            }
            Command::Release { request, attempt } => {
                if self.locks.get(&request).is_some_and(|lock| lock.attempt == attempt) {
                    self.locks.remove(&request);
                    effects.unlocked.push((request, attempt));
                }
            }
            Command::RebuildBegin { epoch, is_diverged } => self.begin_rebuild(epoch, is_diverged, effects),
            // Forgets no removals: the transaction is not complete.
            Command::TransactionPiece(_) | Command::RebuildChunk { .. } => {}
            Command::Recover { epoch, positions } => self.recover(epoch, &positions, effects),
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
                    tree.removals.horizons.push_back(Horizon { after, positions });
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

    /// Applies whole transactions while they fit into this part, or a part of a transaction that is larger than any.
    ///
    /// Without a served tree it applies nothing and finishes no request: the next copy has these transactions, or its stream
    /// brings them again.
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
            // The copy in `tree` was made before this source's slot existed.
            let Some(copied) = tree.sources.get(&batch.source).map(|source| source.copied) else {
                cursor.next_batch();
                continue;
            };
            let Some(transaction) = batch.transactions.get(cursor.transaction) else {
                tree.advance(batch.source, just_below(batch.position));
                cursor.next_batch();
                continue;
            };
            // A new leader reads the slot from its confirmed position, so applied transactions arrive again (P4).
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
            if cursor.transaction + 1 == batch.transactions.len() {
                tree.see(batch.source, transaction);
            }
            tree.advance(batch.source, transaction.commit_lsn);
            cursor.next_transaction();
        }
        true
    }

    /// Applies nothing of a transaction at or below the source's applied LSN, or of a source that the copy does not have.
    fn apply_piece(
        &mut self,
        log_index: u64,
        piece: &TransactionPiece,
        cursor: &mut Cursor,
        operations_max: usize,
        effects: &mut Effects,
    ) -> bool {
        let TransactionPiece { source, commit_lsn, ops } = piece;
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

    fn apply_to_namespaces(&mut self, command: Command) {
        if let Command::RebuildNamespaces { namespaces } = command {
            let of = self.rebuild.as_mut().map(|tree| tree.namespaces.insert(Namespaces::default()));
            if let Some(all) = of {
                namespaces.into_iter().for_each(|(ns, state, moves)| all.set(ns, Some(state), moves, Vec::new()));
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
                all.set(ns, Some(NamespaceState::Copying), 0, copied);
            }
            (Command::SetNamespaceState { ns, from, to, moves }, Some(all)) if all.state(ns) == Some(from) => {
                all.set(ns, to, moves, Vec::new());
            }
            _ => {}
        }
    }

    fn apply_prepare(
        &mut self,
        log_index: u64,
        by: &PrepareByRule,
        effects: &mut Effects,
    ) -> Result<PreparedRename, Error> {
        let tree = self.served().ok_or(ErrorCode::IndexUnavailable)?;
        if self.rebuild.is_some() {
            return Err(Error::new(ErrorCode::StaleEpoch, "the index is being rebuilt"));
        }
        let check = Check { table: &tree.table, locks: &self.locks, epoch: self.epoch, attempt: log_index, by };
        let (mut prepared, mut lock) = check.run()?;
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
        // The locked places have no other occupants. So no cached prefix crosses a lock, and a lookup that finds one need not
        // compare it with the locks.
        effects.modified.extend([prepared.source_id].into_iter().chain(prepared.replaced));
        Ok(prepared)
    }

    /// Drops all locks: the epoch was raised, so no rename prepared before can commit. A tree that may show changes that
    /// PostgreSQL does not have stops serving, which also frees its memory.
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

    /// Lets lookups wait until the tree has what may have been in entries that the log lost. Drops all locks: the epoch was
    /// raised, so no rename prepared before can commit.
    fn recover(&mut self, epoch: Epoch, positions: &[(SourceId, Lsn)], effects: &mut Effects) {
        if epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        self.rebuild = None;
        effects.unlocked.extend(self.locks.drain().map(|lock| (lock.request, lock.attempt)));
        let Some(tree) = &self.serving else { return };
        for (source, position) in positions {
            let lsn = just_below(*position);
            if tree.sources.contains_key(source) && tree.applied_lsn(*source) < lsn {
                let behind = self.catch_up.entry(*source).or_insert(lsn);
                *behind = lsn.max(*behind);
            }
        }
    }

    /// Serves the copy. It may be older than the tree that was served until now. The streams bring the difference, and lookups
    /// wait for it.
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
        // No lookup has seen what the copy replaced while it was filled.
        tree.table.take_modified();
        self.serving = Some(tree);
    }
}

struct Commit {
    log_index: u64,
    source: SourceId,
    commit_lsn: Lsn,
    /// The served copy has what the source committed then; another source may have removed the directory since.
    is_copied: bool,
}

/// Skips an operation in another group's namespace: this group has no waiter and no lock for it.
fn apply_operation(tree: &mut Tree, locks: &mut Locks, commit: &Commit, op: &DirectoryOp, effects: &mut Effects) {
    let ns = op.namespace();
    let Some(state) = tree.namespace_state(ns) else { return };
    let copied = |all: &Namespaces| all.is_copied(ns, commit.source, commit.commit_lsn);
    let is_copied = commit.is_copied || tree.namespaces.as_ref().is_some_and(copied);
    tree.apply_op(commit.log_index, op, is_copied, state);
    let finished = match op {
        DirectoryOp::PartDone { pid, cause } => locks.apply_part(&cause.request, *pid).then_some(cause),
        // Also if the version lost: another source may have sent a newer record of the directory first (P2).
        _ => op.cause(),
    };
    if let Some(cause) = finished {
        finish(locks, cause, effects);
    }
}

/// Finishes the request of a committed change and releases its lock, whatever the attempt. PostgreSQL keeps one answer for each
/// request key, so no other attempt can commit any more.
fn finish(locks: &mut Locks, cause: &Cause, effects: &mut Effects) {
    if let Some(lock) = locks.remove(&cause.request) {
        effects.unlocked.push((lock.request, lock.attempt));
    }
    if effects.finished.last() != Some(&cause.request) {
        effects.finished.push(cause.request);
    }
}
