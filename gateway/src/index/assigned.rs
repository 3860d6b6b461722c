//! Which group is asked about a namespace. An assignment is remembered as long as PostgreSQL says that none of its group's
//! has changed; that is part of the group's terms, and so known to be true at most one lease ago.

use std::{collections::HashMap, sync::Arc, time::Instant};

use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;

use super::group::Group;
use crate::store::{Assignment, Moment, Terms};

/// Most assignments remembered; then all are forgotten.
const ASSIGNMENTS_MAX: usize = 65_536;
/// An assignment is read again so often while others change.
const READS_MAX: u32 = 8;

/// Assignments by the namespace's name.
#[derive(Default)]
pub struct Assignments {
    known: Mutex<HashMap<String, Assignment>>,
}

/// A namespace's group, and the terms under which the assignment holds.
#[derive(Clone)]
pub struct Assigned {
    /// The group that answers lookups and prepares renames.
    pub group: Arc<Group>,
    /// Its terms.
    pub terms: Arc<Terms>,
    /// The groups that have to have applied a change before it is acknowledged.
    pub acknowledging: Vec<Arc<Group>>,
}

impl Assigned {
    /// Now, for what is about to be resolved.
    pub fn moment(&self) -> Moment {
        Moment::now(self.terms.clone())
    }
}

impl Assignments {
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
    pub async fn assigned(&self, namespace: &str) -> Result<Assigned> {
        for _ in 0..READS_MAX {
            let started = Instant::now();
            let known = self.assignments.known.lock().get(namespace).copied();
            let assignment = match known {
                Some(assignment) => assignment,
                None => self.read_assignment(namespace).await?,
            };
            let group = self.group(assignment.group);
            let mut terms = group.terms().await?;
            if terms.changes < assignment.changes {
                terms = group.refresh(started).await?;
            }
            if terms.changes == assignment.changes {
                let others = assignment.also.map(|also| self.group(also));
                let acknowledging = std::iter::once(group.clone()).chain(others).collect();
                return Ok(Assigned { group, terms, acknowledging });
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
