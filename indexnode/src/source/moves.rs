//! Namespaces that come from another group or go to one: the leader's part, the same for both groups. What PostgreSQL says
//! that the group is to have is compared with what it has; each difference has one next step. The new group's leader also takes
//! the move's steps in PostgreSQL.
//!
//! Invariants (P32, P33): the group counts as having all of a namespace ([`NamespaceState::Ready`]) only when every source is applied past a
//! position sampled after its copy; it prepares renames there only when it is applied past one sampled after PostgreSQL
//! ceased to accept the other group's. What gateways go by is changed again only after the last change is known to all of
//! them. A leader that knows less than its predecessor waits, and copies, anew.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use futures::future::try_join_all;
use mantle_types::{DirectoryId, ErrorCode, Lsn, NamespaceId, message::DirectoryRecord};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;

use super::continuity::Reason;
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

/// PostgreSQL is asked this often whether assignments have changed.
const LOOK: Duration = Duration::from_millis(250);
/// And this often while something is left to do.
const LOOK_BUSY: Duration = Duration::from_millis(50);
const CATCH_UP: Duration = Duration::from_secs(30);
const CHUNKS_AHEAD: usize = 4;
/// Directories in one entry that forgets some.
const FORGET_IDS: usize = 4096;

/// What is left to do after a look at everything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Something,
}

/// Looks after the group's namespaces for as long as the stream runs.
pub struct Moves {
    node: Arc<Node>,
    leadership: Leadership,
    database: Database,
    control: Session,
    sessions: Vec<(SourceId, Session)>,
    /// Since when this leader knows that a namespace's move is in a phase.
    since: HashMap<(NamespaceId, MovePhase), Instant>,
}

impl Moves {
    /// Of a leader with these sessions.
    pub fn new(
        node: &Arc<Node>,
        leadership: &Leadership,
        database: &Database,
        control: &Session,
        sessions: &[(SourceId, Session)],
    ) -> Self {
        Self {
            node: node.clone(),
            leadership: leadership.clone(),
            database: database.clone(),
            control: control.clone(),
            sessions: sessions.to_vec(),
            since: HashMap::new(),
        }
    }

    /// Never returns but with an error.
    pub async fn run(mut self) -> Result<Reason> {
        let (mut is_first, mut seen) = (true, None);
        loop {
            if self.node.state.positions().borrow().is_serving {
                let changes = self.control.assignment_changes().await?;
                if seen != Some(changes) {
                    // What is left to do now is looked at again.
                    seen = (self.pass(is_first).await? == Left::Nothing).then_some(changes);
                    is_first = false;
                }
            }
            sleep(if seen.is_some() { LOOK } else { LOOK_BUSY }).await;
        }
    }

    /// One step of everything that differs. `is_first`: of this stream.
    async fn pass(&mut self, is_first: bool) -> Result<Left> {
        if is_first {
            // Whoever copied it is gone, and what was copied may have been lost by PostgreSQL since.
            for (ns, _) in self.moving(NamespaceState::Copying) {
                self.stand(ns, NamespaceState::Copying, Some(NamespaceState::Leaving)).await?;
            }
        }
        let wanted: BTreeMap<NamespaceId, Assigned> =
            self.control.namespaces().await?.into_iter().map(|of| (of.ns, of)).collect();
        // What committed before these assignments is applied from here on: a namespace that was made a moment ago is known,
        // and nothing that the other group prepared is still to come.
        self.catch_up().await?;
        let mut left = Left::Nothing;
        for ns in self.unwanted(&wanted).await? {
            tracing::info!(%ns, "a namespace leaves this group");
            let standing = self.standing(ns);
            self.stand(ns, standing.unwrap_or(NamespaceState::Serving), Some(NamespaceState::Leaving)).await?;
        }
        self.sweep().await?;
        self.since.retain(|(ns, phase), _| wanted.get(ns).is_some_and(|of| of.phase == Some(*phase)));
        for of in wanted.values() {
            if self.standing(of.ns).is_none() {
                self.copy(of.ns).await?;
            }
            if self.advance(of).await? {
                left = Left::Something;
            }
        }
        Ok(left)
    }

    fn standing(&self, ns: NamespaceId) -> Option<NamespaceState> {
        self.node.state.read().index.namespace_state(ns)
    }

    fn moving(&self, standing: NamespaceState) -> Vec<(NamespaceId, NamespaceState)> {
        let mut moving = self.node.state.read().index.moving_namespaces();
        moving.retain(|(_, of)| *of == standing);
        moving
    }

    async fn propose(&self, command: &Command) -> Result<()> {
        self.node.propose_as(&self.leadership, command).await?;
        Ok(())
    }

    async fn stand(&self, ns: NamespaceId, from: NamespaceState, to: Option<NamespaceState>) -> Result<()> {
        self.propose(&Command::SetNamespaceState { ns, from, to, moves: 0 }).await
    }

    /// Namespaces of the group that another one has now, or that were removed while they moved. One that was served and was
    /// removed stays: the trash may hold some of it.
    async fn unwanted(&self, wanted: &BTreeMap<NamespaceId, Assigned>) -> Result<Vec<NamespaceId>> {
        let all = self.node.state.read().index.namespaces().unwrap_or_default();
        let is_left = |(ns, standing): &(NamespaceId, NamespaceState)| {
            *standing != NamespaceState::Leaving && !wanted.contains_key(ns)
        };
        let left: Vec<(NamespaceId, NamespaceState)> = all.into_iter().filter(is_left).collect();
        if left.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<NamespaceId> = left.iter().map(|(ns, _)| *ns).collect();
        let groups: HashMap<NamespaceId, u64> =
            self.control.assignments(&ids).await?.into_iter().map(|of| (of.ns, of.group)).collect();
        let is_unwanted = |(ns, standing): &(NamespaceId, NamespaceState)| match groups.get(ns) {
            Some(group) => *group != self.node.group,
            None => *standing != NamespaceState::Serving,
        };
        Ok(left.into_iter().filter(is_unwanted).map(|(ns, _)| ns).collect())
    }

    /// The next step of a namespace that is here. Is there another one to come?
    async fn advance(&mut self, of: &Assigned) -> Result<bool> {
        let ns = of.ns;
        if of.is_served && self.standing(ns) == Some(NamespaceState::Ready) {
            // `catch_up` has seen to it: no rename that the other group prepared is missing here.
            tracing::info!(%ns, "this group serves a namespace from now on");
            let (from, to) = (NamespaceState::Ready, Some(NamespaceState::Serving));
            self.propose(&Command::SetNamespaceState { ns, from, to, moves: of.moves }).await?;
        }
        let phase = match (of.phase, of.is_served) {
            (Some(phase @ (MovePhase::Copy | MovePhase::Both)), false) | (Some(phase @ MovePhase::Switched), true) => {
                phase
            }
            // It stays, or goes elsewhere; whoever gets it does the rest.
            _ => return Ok(false),
        };
        if !self.standing(ns).is_some_and(NamespaceState::answers) {
            return Ok(true);
        }
        let since = *self.since.entry((ns, phase)).or_insert_with(Instant::now);
        if phase != MovePhase::Copy && since.elapsed() < self.control.epoch_lease().await? {
            return Ok(true);
        }
        if phase == MovePhase::Both {
            // Acknowledged without us, by gateways that did not know of this phase: also that is here now.
            self.catch_up().await?;
        }
        let has_advanced = self.control.advance_move(ns, phase).await?;
        tracing::info!(%ns, from = ?phase, has_advanced, "a namespace moves to this group");
        Ok(true)
    }

    /// Waits until everything is applied that was committed when this was called.
    async fn catch_up(&self) -> Result<()> {
        for (source, lsn) in self.flushed().await? {
            loop {
                match waits::position(&self.node, source, lsn, CATCH_UP).await {
                    Ok(()) => break,
                    // A standby that is away may hold it up.
                    Err(e) if e.code() == ErrorCode::AwaitTimeout => {}
                    Err(e) => return Err(anyhow!("{e}")),
                }
            }
        }
        Ok(())
    }

    async fn flushed(&self) -> Result<Vec<(SourceId, Lsn)>> {
        let flushed =
            self.sessions.iter().map(|(id, session)| async move { anyhow::Ok((*id, session.flushed().await?)) });
        try_join_all(flushed).await
    }

    /// Copies a namespace beside those that are served.
    async fn copy(&self, ns: NamespaceId) -> Result<()> {
        let started = Instant::now();
        {
            // Nothing is proposed between the positions and the entry that names them.
            let _turn = self.node.stream.turn.lock().await;
            let copied = self.flushed().await?;
            self.propose(&Command::Track { ns, copied }).await?;
        }
        // What was left out as another group's is to be seen by the copy.
        for (_, session) in &self.sessions {
            session.cut().await?;
        }
        let session = self.database.connect().await?;
        let (chunks, queue) = mpsc::channel(CHUNKS_AHEAD);
        let reading = async move { session.copy_namespace(ns, chunks, &RebuildProgress::default()).await };
        let mut reader = AbortOnDropHandle::new(tokio::spawn(reading));
        let directories = async { (&mut reader).await.context("the copy panicked")? };
        let (directories, ()) = tokio::try_join!(directories, self.propose_chunks(ns, queue))?;
        // Past everything that the copy may show: the standbys have it, and it was not removed before.
        self.catch_up().await?;
        self.stand(ns, NamespaceState::Copying, Some(NamespaceState::Ready)).await?;
        let elapsed_ms = started.elapsed().as_millis() as u64;
        tracing::info!(%ns, directories, elapsed_ms, "a namespace was copied into this group");
        Ok(())
    }

    async fn propose_chunks(&self, ns: NamespaceId, mut queue: mpsc::Receiver<Vec<DirectoryRecord>>) -> Result<()> {
        while let Some(records) = queue.recv().await {
            self.propose(&Command::CopyChunk { ns, records }).await?;
        }
        Ok(())
    }

    /// Forgets the directories of namespaces that leave, and then the namespaces.
    async fn sweep(&self) -> Result<()> {
        let mut leaving: BTreeSet<NamespaceId> =
            self.moving(NamespaceState::Leaving).into_iter().map(|(ns, _)| ns).collect();
        while !leaving.is_empty() {
            let found = self.directories_of(&leaving).await?;
            for (ns, ids) in &found {
                for ids in ids.chunks(FORGET_IDS) {
                    self.propose(&Command::Forget { ns: *ns, ids: ids.to_vec() }).await?;
                }
            }
            if found.len() < leaving.len() {
                // What hung nowhere and was not in PostgreSQL any more: its removal is applied then.
                self.catch_up().await?;
            }
            for ns in leaving.iter().filter(|ns| !found.contains_key(ns)) {
                self.stand(*ns, NamespaceState::Leaving, None).await?;
                tracing::info!(%ns, "a namespace has left this group");
            }
            leaving.retain(|ns| found.contains_key(ns));
        }
        Ok(())
    }

    /// By what is above each in the index; of what hangs nowhere, such as what is in the trash, PostgreSQL knows.
    async fn directories_of(&self, leaving: &BTreeSet<NamespaceId>) -> Result<HashMap<NamespaceId, Vec<DirectoryId>>> {
        let mut found: HashMap<NamespaceId, Vec<DirectoryId>> = HashMap::new();
        let mut hanging = Vec::new();
        for slice in 0..SLICES {
            let state = self.node.state.read();
            for id in state.index.slice(slice) {
                let top = NamespaceId(state.index.topmost_ancestor(id).0);
                if leaving.contains(&top) {
                    found.entry(top).or_default().push(id);
                } else if state.index.namespace_state(top).is_none() {
                    hanging.push(id);
                }
            }
        }
        for ids in hanging.chunks(FORGET_IDS) {
            for (row, ns) in self.control.directories(ids).await? {
                if leaving.contains(&ns) {
                    found.entry(ns).or_default().push(row.id);
                }
            }
        }
        Ok(found)
    }
}
