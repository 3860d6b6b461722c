//! The one function that changes the index.

use mantle_types::{
    Epoch, Error, ErrorCode,
    message::{Cause, DirectoryOp},
};

use super::{
    Effects, Index,
    command::{Applied, Command, Prepare, PreparedRename, SourceBatch, SourceStart},
    prepare,
    tree::{Tree, just_below},
};

impl Index {
    /// Applies one entry of the Raft log. The outcome depends on the index and the command only.
    pub fn apply(&mut self, log_index: u64, command: Command, effects: &mut Effects) -> Applied {
        match command {
            Command::Stream(batches) => self.apply_stream(log_index, &batches, effects),
            Command::Prepare(prepare) => return Applied::Prepared(self.apply_prepare(log_index, &prepare)),
            Command::Release { request, attempt } => {
                if self.locks.get(&request).is_some_and(|lock| lock.attempt == attempt) {
                    self.locks.remove(&request);
                    effects.unlocked.push((request, attempt));
                }
            }
            Command::RebuildBegin { epoch, is_diverged } => self.begin_rebuild(epoch, is_diverged, effects),
            Command::RebuildChunk { records } => {
                if let Some(tree) = &mut self.rebuild {
                    records.iter().for_each(|record| tree.put(record));
                }
            }
            Command::RebuildEnd { sources } => self.end_rebuild(&sources),
            Command::FollowTimeline { source, timeline } => {
                if let Some(source) = self.serving.as_mut().and_then(|tree| tree.sources.get_mut(&source)) {
                    source.lineage.timeline = timeline;
                }
            }
            Command::Horizon { after, positions } => {
                if let Some(tree) = &mut self.serving {
                    tree.set_horizon(after, positions);
                    tree.removed.forget(&tree.sources);
                }
            }
        }
        Applied::Done
    }

    /// Without a served tree there is nothing to apply to: the copy that is being made, or will be, holds these
    /// transactions, or its stream brings them again. Nobody's change is called finished then.
    fn apply_stream(&mut self, log_index: u64, batches: &[SourceBatch], effects: &mut Effects) {
        let Some(tree) = &mut self.serving else { return };
        for batch in batches {
            // Of a source that the copy in `tree` was not made with: its slot was not there yet.
            let Some(copied) = tree.sources.get(&batch.source).map(|source| source.copied) else { continue };
            for transaction in &batch.transactions {
                // A new leader reads the slot again from its confirmed position: what was applied comes twice (rule 4).
                if transaction.commit_lsn <= tree.applied_lsn(batch.source) {
                    continue;
                }
                let is_copied = transaction.commit_lsn < copied;
                for op in &transaction.ops {
                    if !is_copied || matches!(op, DirectoryOp::Remove { .. }) {
                        tree.apply_op(log_index, op);
                    }
                    if let Some(cause) = op.cause() {
                        // Also when the version lost: a newer record of the directory may have come from elsewhere first.
                        finish(&mut self.locks, cause, effects);
                    }
                    if let DirectoryOp::Half { pid, cause } = op
                        && self.locks.apply_half(&cause.request, *pid)
                    {
                        finish(&mut self.locks, cause, effects);
                    }
                }
                tree.advance(batch.source, transaction.commit_lsn);
            }
            tree.advance(batch.source, just_below(batch.position));
        }
        tree.removed.forget(&tree.sources);
        self.catch_up.retain(|source, lsn| tree.applied_lsn(*source) < *lsn);
    }

    fn apply_prepare(&mut self, log_index: u64, prepare: &Prepare) -> Result<PreparedRename, Error> {
        let tree = match &self.serving {
            Some(tree) if self.catch_up.is_empty() => tree,
            _ => return Err(ErrorCode::IndexUnavailable.into()),
        };
        if self.rebuild.is_some() {
            return Err(Error::new(ErrorCode::StaleEpoch, "the index is being rebuilt"));
        }
        let (prepared, lock) = prepare::check(&tree.table, &self.locks, self.epoch, log_index, prepare)?;
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
            let served = old.sources.into_iter().map(|(id, source)| (id, source.applied));
            for (id, lsn) in served {
                let behind = self.catch_up.entry(id).or_insert(lsn);
                *behind = lsn.max(*behind);
            }
            self.catch_up.retain(|id, lsn| tree.sources.contains_key(id) && tree.applied_lsn(*id) < *lsn);
        }
        self.serving = Some(tree);
    }
}

/// A committed change names its request. PostgreSQL keeps one answer a request key, so no attempt of it, older or newer,
/// can commit any more: whatever lock it holds is given back.
fn finish(locks: &mut super::Locks, cause: &Cause, effects: &mut Effects) {
    if let Some(lock) = locks.remove(&cause.request) {
        effects.unlocked.push((lock.request, lock.attempt));
    }
    if effects.finished.last() != Some(&cause.request) {
        effects.finished.push(cause.request);
    }
}
