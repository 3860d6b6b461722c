//! Finds the index group of a namespace. An assignment is cached while the group's counter of changed assignments stays
//! the same. The counter is part of the group's resolution context, so a cached assignment was true at most one lease
//! ago.

use std::{collections::HashMap, sync::Arc, time::Instant};

use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;

use super::group::Group;
use crate::store::{Assignment, ResolutionContext, ResolutionStart, no_namespace};

/// Most cached assignments; then the cache is cleared.
const ASSIGNMENTS_MAX: usize = 65_536;
/// How often an assignment is read again because the group's assignments change.
const READS_MAX: u32 = 8;

/// Assignments by the namespace's name.
#[derive(Default)]
pub struct AssignmentCache(Mutex<HashMap<String, Assignment>>);

/// A namespace's group, and the resolution context in which the assignment holds.
#[derive(Clone)]
pub struct AssignedGroup {
    pub group: Arc<Group>,
    pub context: Arc<ResolutionContext>,
    /// The groups that must have applied a change before it is acknowledged.
    pub acknowledging: Vec<Arc<Group>>,
}

impl AssignedGroup {
    pub fn resolution_start(&self) -> ResolutionStart {
        ResolutionStart::now(self.context.clone())
    }
}

impl AssignmentCache {
    /// Drops an assignment that proved wrong.
    pub fn forget(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }

    fn remember(&self, namespace: &str, assignment: Assignment) {
        let mut known = self.0.lock();
        if known.len() >= ASSIGNMENTS_MAX {
            known.clear();
        }
        known.insert(namespace.to_owned(), assignment);
    }
}

impl super::Index {
    /// The group of a namespace, as PostgreSQL had it at most one lease ago.
    pub async fn assigned(&self, namespace: &str) -> Result<AssignedGroup> {
        for _ in 0..READS_MAX {
            let started = Instant::now();
            let known = self.assignments.0.lock().get(namespace).copied();
            let assignment = match known {
                Some(assignment) => assignment,
                None => self.read_assignment(namespace).await?,
            };
            let group = self.group(assignment.group);
            let mut context = group.context().await?;
            if context.changes < assignment.changes {
                context = group.refresh(started).await?;
            }
            if context.changes == assignment.changes {
                let others = assignment.also.map(|also| self.group(also));
                let acknowledging = std::iter::once(group.clone()).chain(others).collect();
                return Ok(AssignedGroup { group, context, acknowledging });
            }
            self.assignments.forget(namespace);
        }
        Err(Error::new(ErrorCode::IndexUnavailable, "the assignments of namespaces to index groups change too fast"))
    }

    async fn read_assignment(&self, namespace: &str) -> Result<Assignment> {
        let assignment = self.store.assignment(namespace).await?.ok_or_else(|| no_namespace(namespace))?;
        self.assignments.remember(namespace, assignment);
        Ok(assignment)
    }
}
