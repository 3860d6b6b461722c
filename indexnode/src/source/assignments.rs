//! Which namespaces the group has: the leader reads the assignments from PostgreSQL and proposes them before any change that
//! depends on them (P34). It asks when a namespace first appears in the change stream. By then its creation is committed: its
//! own record, or a directory below it, has arrived.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use anyhow::Result;
use mantle_types::NamespaceId;
use tokio::time::timeout;

use crate::{
    index::command::Command,
    node::{Leadership, Node},
    postgres::upstream::{Assignment, Statements},
};

/// A transaction takes at most this long to end once the primary and the standby have flushed its commit record.
const COMMIT_MAX: Duration = Duration::from_secs(1);

/// Namespaces of other groups that have appeared in the change stream. The index learns of one that moves here.
#[derive(Default)]
pub struct ForeignNamespaces {
    known: HashSet<NamespaceId>,
}

impl ForeignNamespaces {
    /// Decides about the namespaces that appear for the first time in a command about to be proposed.
    pub async fn decide(
        &mut self,
        node: &Node,
        leadership: &Leadership,
        control: &dyn Statements,
        command: &Command,
    ) -> Result<()> {
        let new = self.undecided(node, command);
        if new.is_empty() {
            return Ok(());
        }
        let mut assignments = control.assignments(&new).await?;
        if assignments.len() < new.len() {
            // The message of a commit may arrive before the commit is visible: wait for the transactions under way. Or the
            // namespace is gone; then the limit matters, because a writing transaction may take hours.
            match timeout(COMMIT_MAX, control.cut()).await {
                Ok(cut) => drop(cut?),
                Err(_) => tracing::debug!("a transaction is open for long; what committed is visible by now"),
            }
            assignments = control.assignments(&new).await?;
        }
        // A namespace that has moved here has to be copied (`moves.rs`).
        let is_new = |of: &Assignment| of.group == node.group && !of.has_moved;
        let ours: Vec<NamespaceId> = assignments.into_iter().filter(is_new).map(|of| of.ns).collect();
        self.known.extend(new.iter().filter(|ns| !ours.contains(ns)));
        if !ours.is_empty() {
            tracing::info!(namespaces = ?ours, "new namespaces in this group");
            node.propose_as(leadership, &Command::Admit { namespaces: ours }).await?;
        }
        Ok(())
    }

    fn undecided(&self, node: &Node, command: &Command) -> Vec<NamespaceId> {
        let state = node.state.read();
        if state.index.has_all_namespaces() {
            return Vec::new();
        }
        let mut last = None;
        let mut new = BTreeSet::new();
        for op in command.stream_operations() {
            let ns = op.namespace();
            if last.replace(ns) != Some(ns) && state.index.namespace_state(ns).is_none() && !self.known.contains(&ns) {
                new.insert(ns);
            }
        }
        new.into_iter().collect()
    }
}

/// Restricts the index of an older version, which has all namespaces, to those of the group.
pub async fn restrict(node: &Node, leadership: &Leadership, control: &dyn Statements) -> Result<()> {
    let is_restricted = {
        let state = node.state.read();
        !state.index.is_built() || !state.index.has_all_namespaces()
    };
    if is_restricted {
        return Ok(());
    }
    let assigned = control.namespaces().await?.into_iter().map(|of| of.ns);
    // The removals of directories in the trash are still to come.
    let trash = control.trash_namespaces().await?;
    let namespaces: BTreeSet<NamespaceId> = assigned.chain(trash).collect();
    tracing::info!(namespaces = namespaces.len(), "this group had all namespaces, and has its own from now on");
    node.propose_as(leadership, &Command::Restrict { namespaces: namespaces.into_iter().collect() }).await?;
    Ok(())
}
