//! Who this log folder is (PROTOCOLS 22): a random node id, and the Raft cluster it belongs to.
//!
//! Invariant: the id lives and dies with the log. A wiped folder gets a new id, so nobody votes under an id whose promises
//! were lost with its log.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{NodeId, durable};

const FILE: &str = "identity";
const LOCK_FILE: &str = "lock";

/// The folder's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random; 0 never.
    pub node_id: NodeId,
    /// The cluster, once this replica has chosen to join one or founded it.
    pub cluster_id: Option<String>,
    /// This replica founded the cluster: it initializes the Raft log alone.
    pub is_founder: bool,
}

/// A data folder, held by this process alone.
pub struct DataFolder {
    path: PathBuf,
    _lock: fs::File,
}

impl DataFolder {
    /// Creates the folder when missing and locks it against another process.
    pub fn open(path: &Path) -> io::Result<Self> {
        durable::create_folder(path)?;
        let lock = fs::File::create(path.join(LOCK_FILE))?;
        lock.try_lock().map_err(|e| match e {
            fs::TryLockError::WouldBlock => io::Error::other("another process uses this folder"),
            fs::TryLockError::Error(e) => e,
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder's identity; a folder without one gets a new one.
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
        let identity = Identity { node_id: rand::random_range(1..=u64::MAX), cluster_id: None, is_founder: false };
        self.save_identity(&identity)?;
        Ok(identity)
    }

    /// Records the identity, durably.
    pub fn save_identity(&self, identity: &Identity) -> io::Result<()> {
        durable::write(&self.path.join(FILE), identity)
    }

    /// Folder of the Raft log and the snapshots.
    pub fn raft_path(&self) -> PathBuf {
        self.path.join("raft")
    }

    /// Forgets everything, id included. The log goes first: a crash in between leaves an identity without a log, which
    /// is still in a cluster where it has promised things, so the identity file is replaced before.
    pub fn reset(&self) -> io::Result<()> {
        let identity = Identity { node_id: rand::random_range(1..=u64::MAX), cluster_id: None, is_founder: false };
        self.save_identity(&identity)?;
        match fs::remove_dir_all(self.raft_path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => durable::sync_parent(&self.raft_path()),
        }
    }

    /// Removes a log that a reset left behind when it was cut short: an identity without a cluster has none.
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
        let first = DataFolder::open(folder.path()).unwrap().identity().unwrap();
        assert_eq!(DataFolder::open(folder.path()).unwrap().identity().unwrap(), first);
        fs::remove_file(folder.path().join(FILE)).unwrap();
        assert_ne!(DataFolder::open(folder.path()).unwrap().identity().unwrap().node_id, first.node_id);
    }

    #[test]
    fn a_log_without_identity_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        fs::create_dir(data.raft_path()).unwrap();
        assert!(data.identity().is_err());
    }

    #[test]
    fn a_reset_changes_the_id_and_removes_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
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

    #[test]
    fn a_folder_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _held = DataFolder::open(folder.path()).unwrap();
        assert!(DataFolder::open(folder.path()).is_err());
    }
}
