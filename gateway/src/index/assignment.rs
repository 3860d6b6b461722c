//! Which group is asked about a namespace. An assignment is remembered as long as PostgreSQL says that none of its group's
//! has changed; that is part of the group's context, and so known to be true at most one lease ago.

use std::{collections::HashMap, sync::Arc, time::Instant};

use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;

use super::group::Group;
use crate::store::{Assignment, ResolutionContext, ResolutionStart};

/// Most assignments remembered; then all are forgotten.
const ASSIGNMENTS_MAX: usize = 65_536;
/// An assignment is read again so often while others change.
const READS_MAX: u32 = 8;

/// Assignments by the namespace's name.
#[derive(Default)]
pub struct AssignmentCache {
    known: Mutex<HashMap<String, Assignment>>,
}

/// A namespace's group, and the context under which the assignment holds.
#[derive(Clone)]
pub struct AssignedGroup {
    /// The group that answers lookups and prepares renames.
    pub group: Arc<Group>,
    /// Its context.
    pub context: Arc<ResolutionContext>,
    /// The groups that have to have applied a change before it is acknowledged.
    pub acknowledging: Vec<Arc<Group>>,
}

impl AssignedGroup {
    /// Now, for what is about to be resolved.
    pub fn resolution_start(&self) -> ResolutionStart {
        ResolutionStart::now(self.context.clone())
    }
}

impl AssignmentCache {
    /// What was read is not true.
    pub fn forget(&self, namespace: &str) {
        self.known.lock().remove(namespace);
    }

    fn remember(&self, namespace: &str, assignment: Assignment) {
        let mut known = self.known.lock();
        if known.len() >= ASSIGNMENTS_MAX {
            known.clear();
        }
        known.insert(namespace.to_owned(), assignment);
    }
}

impl super::Index {
    /// The group of a namespace, as PostgreSQL said at most one lease ago.
    pub async fn assigned(&self, namespace: &str) -> Result<AssignedGroup> {
        for _ in 0..READS_MAX {
            let started = Instant::now();
            let known = self.assignments.known.lock().get(namespace).copied();
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
        let found = self.store.assignment(namespace).await?;
        let missing = || Error::new(ErrorCode::NamespaceNotFound, format!("there is no namespace `{namespace}`"));
        let assignment = found.ok_or_else(missing)?;
        self.assignments.remember(namespace, assignment);
        Ok(assignment)
    }
}
