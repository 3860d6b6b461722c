//! What each member has promised, as far as this replica knows: its vote, and the entries on its disk (P48).
//!
//! A member whose folder is put back from a copy has forgotten promises, and nothing in the folder says so. Others remember
//! them: the leader sees every acknowledgement, a candidate every vote, and a leader tells what it knows with every message. So
//! the member learns what it has promised before it votes, and sees that its log went back.
//!
//! The file is written now and then, and not flushed: it serves a replica that restarts, and a loss of power may cost it a
//! moment's promises.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    NodeId, durable,
    types::{CommittedLeaderId, LogId, Vote},
};
use crate::proto::peer;

const FILE: &str = "promises";
/// More members than any group has; replicas that were replaced leave the table with the others' restarts.
const MEMBERS_MAX: usize = 64;

/// The promises of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// It has voted in this term, or followed its leader: it does not vote in an earlier one.
    pub term: u64,
    /// The candidate or leader of that vote. In one term a vote for a greater id replaces one for a lesser, so a term may have
    /// two leaders, one after the other; 0: an older release did not say it.
    pub voted_for: NodeId,
    /// It has the log up to this entry on its disk.
    pub log: Option<LogId>,
}

impl Promise {
    fn include(&mut self, other: Self) -> bool {
        let before = *self;
        (self.term, self.voted_for) = self.vote().max(other.vote());
        self.log = self.log.max(other.log);
        *self != before
    }

    /// What was promised to a leader or candidate, in the order of votes.
    fn vote(&self) -> (u64, NodeId) {
        (self.term, self.voted_for)
    }

    /// The highest term that it names.
    pub fn highest_term(&self) -> u64 {
        self.log.map_or(self.term, |log| self.term.max(log.committed_leader_id().term))
    }

    /// The promise of a vote.
    pub fn of_vote(vote: Option<&Vote>, log: Option<LogId>) -> Self {
        vote.map_or(Self { log, ..Self::default() }, |vote| Self {
            term: vote.leader_id.term,
            voted_for: vote.leader_id.node_id,
            log,
        })
    }

    /// Tells why a replica with this vote and last entry has lost what it promised, if it has.
    ///
    /// A later leader may have removed entries, so a promise of entries counts only while no later vote is known.
    pub fn broken_by(&self, vote: Option<Vote>, last: Option<LogId>) -> Option<String> {
        let known = Self::of_vote(vote.as_ref(), last);
        if self.vote() > known.vote() {
            let (promised, known) = (self.vote(), known.vote());
            return Some(format!(
                "it voted in term {} for {}, and its folder knows term {} and {}",
                promised.0, promised.1, known.0, known.1
            ));
        }
        let leader = |log: &LogId| (log.committed_leader_id().term, log.committed_leader_id().node_id);
        let log = self.log.filter(|log| self.log > last && leader(log) >= known.vote())?;
        let last = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
        Some(format!("it acknowledged entry {log}, and the last entry of its log is {last}"))
    }

    /// As in messages.
    pub fn to_message(self, node_id: NodeId) -> peer::Promise {
        let position = |log: LogId| peer::LogPosition {
            term: log.committed_leader_id().term,
            leader_id: log.committed_leader_id().node_id,
            index: log.index,
        };
        peer::Promise { node_id, term: self.term, voted_for: self.voted_for, log: self.log.map(position) }
    }

    /// Of a message.
    pub fn of_message(message: &peer::Promise) -> Self {
        let log_id = |p: &peer::LogPosition| LogId::new(CommittedLeaderId::new(p.term, p.leader_id), p.index);
        Self { term: message.term, voted_for: message.voted_for, log: message.log.as_ref().map(log_id) }
    }
}

/// The known promises of all members.
pub struct Promises {
    own: NodeId,
    of: Mutex<BTreeMap<NodeId, Promise>>,
    is_changed: AtomicBool,
    path: PathBuf,
}

impl Promises {
    /// Reads the promises that the file in this directory has. A file that a loss of power damaged counts as none.
    pub fn open(own: NodeId, folder: &Path) -> Self {
        let path = folder.join(FILE);
        let of = durable::read(&path).unwrap_or_else(|e| {
            tracing::info!(error = %e, "the file of the other members' promises is not used");
            None
        });
        Self { own, of: Mutex::new(of.unwrap_or_default()), is_changed: AtomicBool::new(false), path }
    }

    /// Notes what another member has promised.
    pub fn note(&self, node_id: NodeId, promise: Promise) {
        if node_id == self.own {
            return;
        }
        let mut of = self.of.lock();
        if of.len() >= MEMBERS_MAX && !of.contains_key(&node_id) {
            of.clear();
        }
        if of.entry(node_id).or_default().include(promise) {
            self.is_changed.store(true, Ordering::Relaxed);
        }
    }

    /// What a member has promised.
    pub fn of(&self, node_id: NodeId) -> Promise {
        self.of.lock().get(&node_id).copied().unwrap_or_default()
    }

    /// All known promises, as in messages; `own` are this replica's.
    pub fn to_messages(&self, own: Promise) -> Vec<peer::Promise> {
        let of = self.of.lock();
        of.iter().map(|(id, promise)| promise.to_message(*id)).chain([own.to_message(self.own)]).collect()
    }

    /// Writes the file if something is new. It is not flushed.
    pub fn save(&self) -> io::Result<()> {
        if !self.is_changed.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let of = self.of.lock().clone();
        let temporary = self.path.with_extension("tmp");
        fs::write(&temporary, durable::encode(&of)?)?;
        fs::rename(&temporary, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_id(term: u64, index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(term, 1), index)
    }

    #[test]
    fn a_folder_that_went_back_breaks_a_promise() {
        let promise = Promise { term: 5, voted_for: 1, log: Some(log_id(5, 600)) };
        let broken = |term, last| promise.broken_by(Some(Vote::new(term, 1)), last).is_some();
        assert!(
            !broken(5, Some(log_id(5, 600))) && !broken(5, Some(log_id(5, 601))) && !broken(6, Some(log_id(6, 550)))
        );
        assert!(broken(5, Some(log_id(5, 599))) && broken(5, None), "the log went back");
        assert!(broken(4, Some(log_id(5, 600))), "the vote went back");
        assert!(promise.broken_by(None, None).is_some(), "both are gone");
        // The leader of term 6 removed entries, and the replica stopped before it appended the leader's.
        assert!(!broken(6, Some(log_id(5, 550))));
    }

    /// Leader 1 of term 5 wrote entry 600. Then the voters followed leader 2 of the same term, which did not have it.
    #[test]
    fn a_later_leader_of_the_same_term_may_remove_entries() {
        let promise = Promise { term: 5, voted_for: 1, log: Some(log_id(5, 600)) };
        let before = Some(log_id(4, 599));
        assert_eq!(promise.broken_by(Some(Vote::new(5, 2)), before), None);
        assert!(promise.broken_by(Some(Vote::new(5, 1)), before).is_some(), "no other leader removed it");
        let promise = Promise { term: 5, voted_for: 2, log: None };
        assert!(promise.broken_by(Some(Vote::new(5, 1)), before).is_some(), "the vote for 2 is lost");
        let of_older_release = Promise { term: 5, voted_for: 0, log: None };
        assert_eq!(of_older_release.broken_by(Some(Vote::new(5, 1)), before), None);
    }

    #[test]
    fn promises_only_grow_and_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let promises = Promises::open(1, folder.path());
        promises.note(2, Promise { term: 3, voted_for: 1, log: Some(log_id(3, 7)) });
        promises.note(2, Promise { term: 2, voted_for: 9, log: Some(log_id(2, 9)) });
        promises.note(1, Promise { term: 9, voted_for: 1, log: None });
        promises.save().unwrap();
        let again = Promises::open(1, folder.path());
        assert_eq!(again.of(2), Promise { term: 3, voted_for: 1, log: Some(log_id(3, 7)) });
        assert_eq!(again.of(1), Promise::default(), "its own are in its log");
        fs::write(folder.path().join(FILE), "damaged").unwrap();
        assert_eq!(Promises::open(1, folder.path()).of(2), Promise::default());
    }

    #[test]
    fn messages_keep_promises() {
        for promise in [Promise::default(), Promise { term: 3, voted_for: 8, log: Some(log_id(2, 7)) }] {
            assert_eq!(Promise::of_message(&promise.to_message(4)), promise);
        }
    }
}
