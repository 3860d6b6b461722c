//! Builds snapshots while entries are applied and lookups are answered: part by part, each as short as the application of a
//! few entries.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use openraft::RaftSnapshotBuilder;
use tokio::time::sleep;

use super::{
    TypeConfig,
    machine::Machine,
    snapshot::{SnapshotFile, UnfinishedSnapshot},
    state::IndexState,
    types::Snapshot,
};
use crate::index::{Part, SnapshotWriter};

/// Directories read under one read guard of the index, roughly.
const DIRECTORIES_PER_PART: usize = 256;
/// Interval between two checks whether the installation of a received snapshot has ended.
const INSTALL_POLL: Duration = Duration::from_millis(20);

struct Build {
    writer: SnapshotWriter,
    file: UnfinishedSnapshot,
    /// One encoded part; it is written to the file without the index's guard.
    bytes: Vec<u8>,
}

impl Build {
    fn write_part(&mut self, state: &IndexState) -> io::Result<Part> {
        let part = {
            let replicated = state.read();
            self.writer.write_part(&replicated.index, DIRECTORIES_PER_PART, &mut self.bytes)?
        };
        self.file.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(part)
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let started = Instant::now();
        let build = loop {
            if let Some(build) = self.try_build().await? {
                break build;
            }
        };
        let snapshots = self.snapshots.clone();
        self.disk
            .run(move || {
                snapshots.finish(build.file)?;
                let (meta, snapshot) = snapshots.current()?.ok_or_else(|| io::Error::other("the snapshot vanished"))?;
                let elapsed_ms = started.elapsed().as_millis() as u64;
                tracing::info!(last = ?meta.last_log_id, bytes = snapshot.bytes, elapsed_ms, "snapshot built");
                Ok(Snapshot { meta, snapshot })
            })
            .await
    }
}

impl Machine {
    /// `None` if the index was replaced meanwhile, or is being replaced.
    async fn try_build(&self) -> io::Result<Option<Build>> {
        let Some((head, writer)) = self.state.begin_snapshot().await? else {
            sleep(INSTALL_POLL).await;
            return Ok(None);
        };
        let snapshots = self.snapshots.clone();
        let file = self.disk.run(move || snapshots.begin(&head)).await?;
        let mut build = Build { writer, file, bytes: Vec::new() };
        loop {
            let state = self.state.clone();
            let part;
            (build, part) = self
                .disk
                .run(move || {
                    let part = build.write_part(&state)?;
                    Ok((build, part))
                })
                .await?;
            match part {
                Part::Written => tokio::task::yield_now().await,
                Part::Last => return Ok(Some(build)),
                Part::Superseded => return Ok(None),
            }
        }
    }
}
