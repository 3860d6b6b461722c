//! Moves of namespaces between groups: the leader's part, the same in both groups. It compares the namespaces that the group
//! has with those that PostgreSQL assigns to it; each difference has one next step. The new group's leader also takes the
//! steps of the move in PostgreSQL.
//!
//! P32 and P33 have the invariants. A leader that knows less than its predecessor waits, and copies, again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use mantle_types::{DirectoryId, ErrorCode, GroupId, NamespaceId};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;

use super::{continuity::RebuildReason, flushed};
use crate::{
    index::{
        SLICES,
        command::{Command, NamespaceState, SourceId},
    },
    node::{Leadership, Node},
    postgres::upstream::{Assigned, Database, MovePhase, Session},
    progress::RebuildProgress,
    waits,
};

/// Interval between two checks for changed assignments.
const CHECK: Duration = Duration::from_millis(250);
/// The same while steps are left to do.
const CHECK_BUSY: Duration = Duration::from_millis(50);
const CATCH_UP: Duration = Duration::from_secs(30);
const CHUNKS_AHEAD: usize = 4;
const FORGET_IDS: usize = 4096;

pub struct Moves {
    pub node: Arc<Node>,
    pub leadership: Leadership,
    pub database: Database,
    /// A session with the coordinator.
    pub control: Session,
    pub sessions: Vec<(SourceId, Session)>,
    /// When this leader learned of a phase of a namespace's move.
    pub since: HashMap<(NamespaceId, MovePhase), Instant>,
}

impl Moves {
    /// Returns only with an error.
    pub async fn run(mut self) -> Result<RebuildReason> {
        let (mut is_first, mut seen) = (true, None);
        loop {
            if self.node.state.is_serving() {
                let changes = self.control.assignment_changes().await?;
                if seen != Some(changes) {
                    // Steps that are left are taken in the next pass.
                    seen = self.pass(is_first).await?.then_some(changes);
                    is_first = false;
                }
            }
            sleep(if seen.is_some() { CHECK } else { CHECK_BUSY }).await;
        }
    }

    /// Takes one step for each namespace that differs. Returns whether no step is left. `is_first`: the first pass of this session.
    async fn pass(&mut self, is_first: bool) -> Result<bool> {
        if is_first {
            // The copy's session is gone, and PostgreSQL may have lost since then what the copy showed.
            for ns in self.namespaces_in(NamespaceState::Copying) {
                self.set_state(ns, NamespaceState::Copying, Some(NamespaceState::Leaving)).await?;
            }
        }
        let wanted: BTreeMap<NamespaceId, Assigned> =
            self.control.namespaces().await?.into_iter().map(|of| (of.ns, of)).collect();
        // After this, everything is applied that committed before these assignments: a namespace that was just created is known,
        // and no rename that the other group prepared is missing.
        self.catch_up().await?;
        for ns in self.unwanted(&wanted).await? {
            tracing::info!(%ns, "a namespace leaves this group");
            let state = self.namespace_state(ns).unwrap_or(NamespaceState::Serving);
            self.set_state(ns, state, Some(NamespaceState::Leaving)).await?;
        }
        self.sweep().await?;
        self.since.retain(|(ns, phase), _| wanted.get(ns).is_some_and(|of| of.phase == Some(*phase)));
        let mut is_done = true;
        for of in wanted.values() {
            if self.namespace_state(of.ns).is_none() {
                self.copy(of.ns).await?;
            }
            is_done &= !self.advance(of).await?;
        }
        Ok(is_done)
    }

    fn namespace_state(&self, ns: NamespaceId) -> Option<NamespaceState> {
        self.node.state.read().index.namespace_state(ns)
    }

    fn namespaces_in(&self, state: NamespaceState) -> Vec<NamespaceId> {
        let unserved = self.node.state.read().index.unserved_namespaces();
        unserved.into_iter().filter(|(_, of)| *of == state).map(|(ns, _)| ns).collect()
    }

    async fn propose(&self, command: &Command) -> Result<()> {
        self.node.propose_as(&self.leadership, command).await?;
        Ok(())
    }

    async fn set_state(&self, ns: NamespaceId, from: NamespaceState, to: Option<NamespaceState>) -> Result<()> {
        self.propose(&Command::SetNamespaceState { ns, from, to, moves: 0 }).await
    }

    /// Namespaces in the index that another group has now, or that were removed while they moved. A served one that was removed
    /// stays: some of its directories may be in the trash.
    async fn unwanted(&self, wanted: &BTreeMap<NamespaceId, Assigned>) -> Result<Vec<NamespaceId>> {
        let mut extra = self.node.state.read().index.namespaces().unwrap_or_default();
        extra.retain(|(ns, state)| *state != NamespaceState::Leaving && !wanted.contains_key(ns));
        if extra.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<NamespaceId> = extra.iter().map(|(ns, _)| *ns).collect();
        let groups: HashMap<NamespaceId, GroupId> =
            self.control.assignments(&ids).await?.into_iter().map(|of| (of.ns, of.group)).collect();
        extra.retain(|(ns, state)| match groups.get(ns) {
            Some(group) => *group != self.node.group,
            None => *state != NamespaceState::Serving,
        });
        Ok(extra.into_iter().map(|(ns, _)| ns).collect())
    }

    /// Takes the next step of a namespace that is in the index. Returns whether another one follows.
    async fn advance(&mut self, of: &Assigned) -> Result<bool> {
        let ns = of.ns;
        if of.is_served && self.namespace_state(ns) == Some(NamespaceState::Ready) {
            // After `catch_up`, no rename that the other group prepared is missing here.
            tracing::info!(%ns, "this group serves a namespace from now on");
            let (from, to) = (NamespaceState::Ready, Some(NamespaceState::Serving));
            self.propose(&Command::SetNamespaceState { ns, from, to, moves: of.moves }).await?;
        }
        // A namespace that moves here is served by this group from `Switched` on, and not before.
        let moves_here = |phase: &MovePhase| of.is_served == (*phase == MovePhase::Switched);
        let Some(phase) = of.phase.filter(moves_here) else {
            // It stays, or it moves away; then the other group's leader takes the steps.
            return Ok(false);
        };
        if !self.namespace_state(ns).is_some_and(NamespaceState::answers) {
            return Ok(true);
        }
        let since = *self.since.entry((ns, phase)).or_insert_with(Instant::now);
        if phase != MovePhase::Copy && since.elapsed() < self.control.epoch_lease().await? {
            return Ok(true);
        }
        if phase == MovePhase::Both {
            // Apply also the changes that gateways acknowledged without us, because they did not know of this phase.
            self.catch_up().await?;
        }
        let has_advanced = self.control.advance_move(ns, phase).await?;
        tracing::info!(%ns, from = ?phase, has_advanced, "a namespace moves to this group");
        Ok(true)
    }

    /// Waits until everything is applied that was committed when this was called.
    async fn catch_up(&self) -> Result<()> {
        for (source, lsn) in flushed(&self.sessions).await? {
            loop {
                match waits::position(&self.node, source, lsn, CATCH_UP).await {
                    Ok(()) => break,
                    // An unreachable standby may delay it.
                    Err(e) if e.code() == ErrorCode::AwaitTimeout => {}
                    Err(e) => return Err(anyhow!("{e}")),
                }
            }
        }
        Ok(())
    }

    async fn copy(&self, ns: NamespaceId) -> Result<()> {
        let started = Instant::now();
        {
            // No other entry may be proposed between reading the positions and proposing them.
            let _order = self.node.stream.proposal_lock.lock().await;
            let copied = flushed(&self.sessions).await?;
            self.propose(&Command::Track { ns, copied }).await?;
        }
        // The copy has to show the changes that were skipped as another group's.
        for (_, session) in &self.sessions {
            session.cut().await?;
        }
        let session = self.database.connect().await?;
        let (chunks, mut queue) = mpsc::channel(CHUNKS_AHEAD);
        let reading = async move { session.copy_namespace(ns, chunks, &RebuildProgress::default()).await };
        let mut reader = AbortOnDropHandle::new(tokio::spawn(reading));
        let directories = async { (&mut reader).await.context("the copy panicked")? };
        let proposals = async {
            while let Some(records) = queue.recv().await {
                self.propose(&Command::CopyChunk { ns, records }).await?;
            }
            Ok(())
        };
        let (directories, ()) = tokio::try_join!(directories, proposals)?;
        // Apply everything that the copy may show: then the standbys have it, and removals in between are applied.
        self.catch_up().await?;
        self.set_state(ns, NamespaceState::Copying, Some(NamespaceState::Ready)).await?;
        let elapsed_ms = started.elapsed().as_millis() as u64;
        tracing::info!(%ns, directories, elapsed_ms, "a namespace was copied into this group");
        Ok(())
    }

    /// Removes the directories of namespaces that leave, and then the namespaces.
    async fn sweep(&self) -> Result<()> {
        let mut leaving = BTreeSet::from_iter(self.namespaces_in(NamespaceState::Leaving));
        while !leaving.is_empty() {
            let found = self.directories_of(&leaving).await?;
            for (ns, ids) in &found {
                for ids in ids.chunks(FORGET_IDS) {
                    self.propose(&Command::Forget { ns: *ns, ids: ids.to_vec() }).await?;
                }
            }
            if found.len() < leaving.len() {
                // Directories without a parent, not in PostgreSQL any more: `catch_up` applies their removals.
                self.catch_up().await?;
            }
            for ns in leaving.iter().filter(|ns| !found.contains_key(ns)) {
                self.set_state(*ns, NamespaceState::Leaving, None).await?;
                tracing::info!(%ns, "a namespace has left this group");
            }
            leaving.retain(|ns| found.contains_key(ns));
        }
        Ok(())
    }

    /// The directories of each leaving namespace, by their ancestors in the index. PostgreSQL knows the namespace of those without
    /// a parent there, such as directories in the trash.
    async fn directories_of(&self, leaving: &BTreeSet<NamespaceId>) -> Result<HashMap<NamespaceId, Vec<DirectoryId>>> {
        let mut found: HashMap<NamespaceId, Vec<DirectoryId>> = HashMap::new();
        let mut detached = Vec::new();
        for slice in 0..SLICES {
            let state = self.node.state.read();
            for id in state.index.slice(slice) {
                let top = NamespaceId(state.index.topmost_ancestor(id).0);
                if leaving.contains(&top) {
                    found.entry(top).or_default().push(id);
                } else if state.index.namespace_state(top).is_none() {
                    detached.push(id);
                }
            }
        }
        for ids in detached.chunks(FORGET_IDS) {
            for (row, ns) in self.control.directories(ids).await? {
                if leaving.contains(&ns) {
                    found.entry(ns).or_default().push(row.id);
                }
            }
        }
        Ok(found)
    }
}
