//! openraft's state machine: hands committed entries to the [`IndexState`], and builds and installs snapshots.

use std::{io, sync::Arc, time::Duration};

use futures::{Stream, TryStreamExt};
use openraft::{
    OptionalSend,
    storage::{EntryResponder, RaftStateMachine},
};

use super::{
    TypeConfig,
    disk_executor::DiskExecutor,
    snapshot::{SnapshotFile, SnapshotStore},
    state::IndexState,
    types::{LogId, Snapshot, SnapshotMeta, StoredMembership},
};
use crate::failpoints::{self, Failpoint};

/// The state machine of one replica; it also builds the snapshots (`builder.rs`). Clones share it.
#[derive(Clone)]
pub struct Machine {
    pub(super) state: Arc<IndexState>,
    pub(super) snapshots: SnapshotStore,
    pub(super) disk: DiskExecutor,
}

impl Machine {
    /// A state machine over a shared state.
    pub fn new(state: Arc<IndexState>, snapshots: SnapshotStore, disk: DiskExecutor) -> Self {
        Self { state, snapshots, disk }
    }

    /// See [`Failpoint::PublishBeforeInstall`].
    async fn publish_too_early(&self, meta: &SnapshotMeta) {
        let applied_end = meta.last_log_id.map_or(0, |id| id.index + 1);
        self.state.positions.send_modify(|positions| positions.applied_end = applied_end);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let replicated = self.state.read();
        Ok((replicated.applied, replicated.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let applied = self.state.apply(entry.log_id, entry.payload).await?;
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        let snapshots = self.snapshots.clone();
        if failpoints::is_hit(Failpoint::PublishBeforeInstall) {
            self.publish_too_early(meta).await;
        }
        // Check before the served index is dropped: a damaged snapshot is refused without loss.
        let checking = snapshots.clone();
        let snapshot = self.disk.run(move || checking.check(&snapshot).map(|()| snapshot)).await?;
        let old = self.state.begin_install();
        let install = move || {
            drop(old);
            snapshots.install(snapshot)
        };
        let (head, index) = self.disk.run(install).await?;
        self.state.end_install(head, index);
        tracing::info!(last = ?meta.last_log_id, "snapshot installed");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.snapshots.current()?.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}
