//! The identity of a replica's data directory (P22): a random node id, and the Raft cluster it belongs to.
//!
//! Invariant: the id exists as long as the log. A wiped directory gets a new id, so no replica votes under an id whose promises
//! were lost with its log.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mantle_types::GroupId;
use serde::{Deserialize, Serialize};

use super::{NodeId, durable};

const FILE: &str = "identity";
const LOCK_FILE: &str = "lock";
const RAFT_FOLDER: &str = "raft";

/// The identity of a data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random, never 0.
    pub node_id: NodeId,
    /// The cluster, once this replica has decided to join one or has founded it.
    pub cluster_id: Option<String>,
    /// True if this replica founded the cluster and so initializes its Raft log.
    pub is_founder: bool,
}

/// A data directory, locked by this process.
pub struct DataDir {
    path: PathBuf,
    _lock: fs::File,
}

impl DataDir {
    /// Creates the directory if missing, and locks it against other processes.
    pub fn open(path: &Path) -> io::Result<Self> {
        durable::create_dir(path)?;
        let lock = fs::File::create(path.join(LOCK_FILE))?;
        lock.try_lock().map_err(|e| match e {
            fs::TryLockError::WouldBlock => io::Error::other("another process uses this directory"),
            fs::TryLockError::Error(e) => e,
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The subdirectory of a group. An older version had one group, and its data in the process's own directory: the group `heir`
    /// takes that over.
    pub fn of_group(&self, group: GroupId, heir: GroupId) -> io::Result<Self> {
        let folder = self.path.join(format!("group-{group}"));
        if group == heir {
            self.take_over(&folder)?;
        }
        Self::open(&folder)
    }

    /// Moves log and identity of an older version. The identity moves last: while it is here, the move is not finished.
    fn take_over(&self, folder: &Path) -> io::Result<()> {
        let old = self.path.join(FILE);
        if !old.exists() {
            return Ok(());
        }
        if folder.join(FILE).exists() {
            let why = "there is an identity, of an older version of this program, beside the one in";
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{why} {}", folder.display())));
        }
        durable::create_dir(folder)?;
        for name in [RAFT_FOLDER, FILE] {
            let (from, to) = (self.path.join(name), folder.join(name));
            if from.exists() {
                fs::rename(&from, &to)?;
                durable::sync_parent(&to)?;
                durable::sync_parent(&from)?;
            }
        }
        tracing::info!(folder = %folder.display(), "took over the data of an older version");
        Ok(())
    }

    /// The identity of the directory; one without an identity gets a new one.
    pub fn identity(&self) -> io::Result<Identity> {
        if let Some(identity) = durable::read(&self.path.join(FILE))? {
            return Ok(identity);
        }
        if self.raft_path().exists() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "there is a Raft log but no identity file; delete the folder to let this replica join anew",
            ));
        }
        self.new_identity()
    }

    fn new_identity(&self) -> io::Result<Identity> {
        let identity = Identity { node_id: rand::random_range(1..=u64::MAX), cluster_id: None, is_founder: false };
        self.save_identity(&identity)?;
        Ok(identity)
    }

    /// Records the identity, durably.
    pub fn save_identity(&self, identity: &Identity) -> io::Result<()> {
        durable::write(&self.path.join(FILE), identity)
    }

    /// The directory of the Raft log and the snapshots.
    pub fn raft_path(&self) -> PathBuf {
        self.path.join(RAFT_FOLDER)
    }

    /// Deletes everything and takes a new id. The new identity is written before the log is removed: a crash in between must not
    /// leave the old id, which has made promises in its cluster, without its log.
    pub fn reset(&self) -> io::Result<()> {
        self.finish_reset(&self.new_identity()?)
    }

    /// Removes a log that an interrupted reset left behind: an identity without a cluster has no log.
    pub fn finish_reset(&self, identity: &Identity) -> io::Result<()> {
        if identity.cluster_id.is_some() || !self.raft_path().exists() {
            return Ok(());
        }
        fs::remove_dir_all(self.raft_path())?;
        durable::sync_parent(&self.raft_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_folder_gets_a_new_id_and_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDir::open(folder.path()).unwrap().identity().unwrap();
        assert_eq!(DataDir::open(folder.path()).unwrap().identity().unwrap(), first);
        fs::remove_file(folder.path().join(FILE)).unwrap();
        assert_ne!(DataDir::open(folder.path()).unwrap().identity().unwrap().node_id, first.node_id);
    }

    fn open() -> (tempfile::TempDir, DataDir) {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        (folder, data)
    }

    #[test]
    fn a_log_without_identity_is_refused() {
        let (_folder, data) = open();
        fs::create_dir(data.raft_path()).unwrap();
        assert!(data.identity().is_err());
    }

    #[test]
    fn a_reset_changes_the_id_and_removes_the_log() {
        let (_folder, data) = open();
        let before = data.identity().unwrap();
        fs::create_dir(data.raft_path()).unwrap();
        data.reset().unwrap();
        let after = data.identity().unwrap();
        assert_ne!(before.node_id, after.node_id);
        assert_eq!(after.cluster_id, None);
        assert!(!data.raft_path().exists());
        // A crash between the two steps.
        fs::create_dir(data.raft_path()).unwrap();
        data.finish_reset(&after).unwrap();
        assert!(!data.raft_path().exists());
    }

    /// Data of version 0.2, and a crash at each step of the move.
    #[test]
    fn the_folder_of_an_older_version_becomes_the_heirs() {
        for moved_before_the_crash in [&[][..], &[RAFT_FOLDER][..]] {
            let (folder, process) = open();
            let old = process.identity().unwrap();
            fs::create_dir(process.raft_path()).unwrap();
            fs::write(process.raft_path().join("log"), "entries").unwrap();
            for name in moved_before_the_crash {
                fs::create_dir_all(folder.path().join("group-1")).unwrap();
                fs::rename(folder.path().join(name), folder.path().join("group-1").join(name)).unwrap();
            }
            let other = process.of_group(GroupId(2), GroupId(1)).unwrap();
            assert_ne!(other.identity().unwrap().node_id, old.node_id);
            let heir = process.of_group(GroupId(1), GroupId(1)).unwrap();
            assert_eq!(heir.identity().unwrap(), old);
            assert_eq!(fs::read(heir.raft_path().join("log")).unwrap(), b"entries");
            assert!(!folder.path().join(FILE).exists() && !process.raft_path().exists());
            drop(heir);
            assert_eq!(process.of_group(GroupId(1), GroupId(1)).unwrap().identity().unwrap(), old, "once more");
        }
    }

    #[test]
    fn two_identities_are_refused() {
        let (_folder, process) = open();
        process.of_group(GroupId(1), GroupId(1)).unwrap().identity().unwrap();
        process.identity().unwrap();
        assert!(process.of_group(GroupId(1), GroupId(1)).is_err());
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let (folder, _held) = open();
        assert!(DataDir::open(folder.path()).is_err());
    }
}
