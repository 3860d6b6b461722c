//! The one function that changes the index.

use mantle_types::{Epoch, Error, ErrorCode, Lsn, message::Cause};

use crate::failpoints::{self, Failpoint};

use super::{
    Effects, Index,
    command::{Applied, Command, Prepare, PreparedRename, SourceId, StreamTransaction},
    prepare,
    tree::Tree,
};

impl Index {
    /// Applies one entry of the Raft log. The outcome depends on the index and the command only.
    pub fn apply(&mut self, log_index: u64, command: Command, effects: &mut Effects) -> Applied {
        match command {
            Command::Stream { source, transactions, position } => {
                self.apply_stream(log_index, source, &transactions, position, effects);
            }
            Command::Prepare(prepare) => return Applied::Prepared(self.apply_prepare(log_index, &prepare)),
            Command::Release { request, attempt } => {
                if self.locks.get(&request).is_some_and(|lock| lock.attempt == attempt) {
                    self.locks.remove(&request);
                    effects.unlocked.push((request, attempt));
                }
            }
            Command::RebuildBegin { epoch, system_identifier, timeline } => {
                self.begin_rebuild(epoch, (system_identifier, timeline), effects);
            }
            Command::RebuildChunk { records } => {
                if let Some(tree) = &mut self.rebuild {
                    records.iter().for_each(|record| tree.put(record));
                }
            }
            Command::RebuildEnd { source, consistent_point } => self.end_rebuild(source, consistent_point),
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
    fn apply_stream(
        &mut self,
        log_index: u64,
        source: SourceId,
        transactions: &[StreamTransaction],
        position: Lsn,
        effects: &mut Effects,
    ) {
        let Some(tree) = &mut self.serving else { return };
        for transaction in transactions {
            // A new leader reads the slot again from its confirmed position: what was applied comes twice (rule 4).
            if transaction.commit_lsn <= tree.applied_lsn(source) && !failpoints::is_hit(Failpoint::ApplyTwice) {
                continue;
            }
            for op in &transaction.ops {
                tree.apply_op(log_index, op);
                if let Some(cause) = op.cause() {
                    // Also when the version lost: a newer record of the directory may have come from elsewhere first.
                    finish(&mut self.locks, cause, effects);
                }
            }
            tree.advance(source, transaction.commit_lsn);
        }
        tree.advance(source, just_below(position));
        tree.removed.forget(&tree.sources);
        if self.catch_up.is_some_and(|(source, lsn)| tree.applied_lsn(source) >= lsn) {
            self.catch_up = None;
        }
    }

    fn apply_prepare(&mut self, log_index: u64, prepare: &Prepare) -> Result<PreparedRename, Error> {
        let tree = match &self.serving {
            Some(tree) if self.catch_up.is_none() => tree,
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

    /// The epoch was raised, so no rename prepared before can commit: its lock is of no use any more. A tree of another
    /// system or timeline may hold what this PostgreSQL never had, so it stops serving (and its memory is free now).
    fn begin_rebuild(&mut self, epoch: Epoch, system: (u64, u32), effects: &mut Effects) {
        self.rebuild = None;
        if epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        effects.unlocked.extend(self.locks.drain().map(|lock| (lock.request, lock.attempt)));
        if self.serving.as_ref().is_some_and(|tree| tree.system != system) {
            self.serving = None;
            self.catch_up = None;
        }
        self.rebuild = Some(Tree::new(self.seed.clone(), system));
    }

    /// Swaps the copy in. It may be older than what was served and acknowledged until now; the stream that follows
    /// brings the difference, and lookups wait for it.
    fn end_rebuild(&mut self, source: SourceId, consistent_point: Lsn) {
        let Some(mut tree) = self.rebuild.take() else { return };
        tree.advance(source, just_below(consistent_point));
        if let Some(old) = self.serving.take() {
            let behind = self.catch_up.map_or(old.applied_lsn(source), |(_, lsn)| lsn.max(old.applied_lsn(source)));
            self.catch_up = (behind > tree.applied_lsn(source)).then_some((source, behind));
            // The other sources are still sources: what they send may be older than a removal.
            old.sources.into_keys().for_each(|source| tree.advance(source, Lsn::INVALID));
        }
        self.serving = Some(tree);
    }
}

/// The highest commit LSN below a position.
fn just_below(position: Lsn) -> Lsn {
    Lsn(position.0.saturating_sub(1))
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
