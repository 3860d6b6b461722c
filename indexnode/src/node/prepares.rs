//! Prepares of renames that reach the leader together become one entry of the log. An entry costs a flush and a message to each
//! replica, a prepare little more than its checks.
//!
//! One entry is in flight at a time. What arrives meanwhile goes into the next one, so a prepare never waits for others to arrive.

use std::{collections::VecDeque, mem, sync::Arc};

use mantle_types::{Error, ErrorCode, Result, limits::CHECKED_DIRECTORIES_MAX};
use tokio::sync::oneshot;

use super::{Leadership, Node};
use crate::index::command::{Applied, Command, FIRST_RULE, GROUP_RULE, PrepareByRule, PreparedRename};

/// Most prepares of an entry; with the longest paths they take a quarter of a megabyte.
const PREPARES_MAX: usize = 128;

type Answer = Result<PreparedRename>;

/// A prepare of a term of this replica.
struct Waiting {
    leadership: Leadership,
    by: PrepareByRule,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
pub(super) struct PrepareQueue {
    waiting: VecDeque<Waiting>,
    /// A task proposes what waits.
    is_served: bool,
}

impl PrepareQueue {
    /// The prepares of the next entry. Empty, and the queue is not served any more, if none waits.
    fn take(&mut self) -> Vec<Waiting> {
        let mut group: Vec<Waiting> = Vec::new();
        let mut below = 0;
        while let Some(next) = self.waiting.front() {
            below += next.by.below.len();
            let joins = |first: &Waiting| {
                first.leadership == next.leadership
                    && first.by.rule.min(next.by.rule) >= GROUP_RULE
                    && below <= CHECKED_DIRECTORIES_MAX
            };
            if group.len() == PREPARES_MAX || !group.first().is_none_or(joins) {
                break;
            }
            group.extend(self.waiting.pop_front());
        }
        self.is_served = !group.is_empty();
        group
    }
}

impl Node {
    /// Proposes a prepare in a term of this replica; returns its answer when it is applied here. The prepare may still be
    /// applied after other errors than those of its checks.
    pub async fn propose_prepare(self: &Arc<Self>, leadership: Leadership, by: PrepareByRule) -> Answer {
        let (answer, answered) = oneshot::channel();
        let was_served = {
            let mut queue = self.prepares.lock();
            queue.waiting.push_back(Waiting { leadership, by, answer });
            mem::replace(&mut queue.is_served, true)
        };
        if !was_served {
            // In a task of its own: the request may be dropped, and others may wait for its entry.
            tokio::spawn(self.clone().serve_prepares());
        }
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorCode::IndexUnavailable, "this replica is stopping")))
    }

    async fn serve_prepares(self: Arc<Self>) {
        loop {
            let group = self.prepares.lock().take();
            if group.is_empty() {
                return;
            }
            self.propose_together(group).await;
        }
    }

    async fn propose_together(&self, group: Vec<Waiting>) {
        let Some(leadership) = group.first().map(|first| first.leadership.clone()) else { return };
        let (mut prepares, answers): (Vec<_>, Vec<_>) =
            group.into_iter().map(|waiting| (waiting.by, waiting.answer)).unzip();
        let command = match prepares.pop() {
            Some(by) if prepares.is_empty() && by.rule == FIRST_RULE => Command::Prepare(by.prepare),
            Some(by) if prepares.is_empty() => Command::PrepareByRule(by),
            last => {
                prepares.extend(last);
                tracing::debug!(prepares = prepares.len(), "prepares go together");
                Command::Prepares(prepares)
            }
        };
        let applied = match self.propose_as(&leadership, &command).await {
            Ok(Applied::Prepared(one)) => vec![one],
            Ok(Applied::AllPrepared(all)) => all,
            Ok(Applied::Done) => {
                vec![Err(Error::new(ErrorCode::Internal, "a prepare was applied without an answer")); answers.len()]
            }
            Err(e) => vec![Err(e); answers.len()],
        };
        for (waiting, answer) in answers.into_iter().zip(applied) {
            // The request may have been dropped.
            let _ = waiting.send(answer);
        }
    }
}
