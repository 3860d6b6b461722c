//! Other services on this machine: external programs in a folder that the caller names, each started and stopped by a
//! script of its own there. A peer runs during its own turns alone, and its data ends with each.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

use crate::{cpu::Servers, signed_s3::Credentials};

/// What the peers' own settings leave to be filled in.
const PLACEHOLDER: &str = "PEERS_FOLDER";

/// A peer, and what a peers' folder must have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: &'static str,
    /// What an acknowledgement of it means.
    pub promise: &'static str,
    /// In the peers' folder.
    folder: &'static str,
    /// Arguments of its `run.sh`.
    arguments: &'static [&'static str],
    /// Paths in the peers' folder without which it cannot be measured.
    needs: &'static [&'static str],
    /// Files that must have no placeholder left.
    filled_in: &'static [&'static str],
    /// Its processes: the name to show, and the file in `run/` that has the pid.
    processes: &'static [(&'static str, &'static str)],
}

pub const MINIO: Peer = Peer {
    name: "MinIO",
    promise: "the object is written with O_SYNC; one drive, one copy",
    folder: "minio",
    arguments: &[],
    needs: &["bench/stoppid.sh", "minio/run.sh", "minio/minio"],
    filled_in: &[],
    processes: &[("minio", "pid")],
};
pub const GARAGE: Peer = Peer {
    name: "Garage",
    promise: "bytes and metadata are flushed (`data_fsync`, `metadata_fsync`); one node, one copy",
    folder: "garage",
    arguments: &[],
    needs: &["bench/stoppid.sh", "garage/run.sh", "garage/bin/garage"],
    filled_in: &[],
    processes: &[("garage", "pid")],
};
pub const HDFS: Peer = Peer {
    name: "HDFS",
    promise: "two of three JournalNodes have flushed the change; a NameNode without a standby",
    folder: "hdfs",
    arguments: &["qjm"],
    needs: &[
        "bench/stoppid.sh",
        "hdfs/run.sh",
        "hdfs/lib",
        "bench/fsjava/hdfs/FsBench.class",
        "bench/fsjava/run-hdfs.sh",
    ],
    filled_in: &["hdfs/conf-qjm/core-site.xml", "hdfs/conf-qjm/hdfs-site.xml"],
    processes: &[("namenode", "nn.pid"), ("journal-1", "jn1.pid"), ("journal-2", "jn2.pid"), ("journal-3", "jn3.pid")],
};

/// Reads `export S3_URL=… S3_KEY=… S3_SECRET=…`.
fn credentials(text: &str) -> Result<Credentials> {
    let value = |name: &str| {
        let found = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned).with_context(|| format!("no {name} in {text:?}"))
    };
    Ok(Credentials { url: value("S3_URL")?, access_key: value("S3_KEY")?, secret_key: value("S3_SECRET")? })
}

/// A peer in a folder of peers.
#[derive(Clone, Debug)]
pub struct Installed {
    pub peer: Peer,
    pub peers: PathBuf,
}

impl Installed {
    /// Looks for a peer; an error tells what is missing.
    pub fn find(peers: &Path, peer: Peer) -> Result<Self> {
        for path in peer.needs {
            ensure!(peers.join(path).exists(), "{path} is not there");
        }
        for path in peer.filled_in {
            let file = peers.join(path);
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            ensure!(!text.contains(PLACEHOLDER), "{path} still says {PLACEHOLDER}");
        }
        Ok(Self { peer, peers: peers.to_owned() })
    }

    fn folder(&self) -> PathBuf {
        self.peers.join(self.peer.folder)
    }

    async fn script(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.folder().join(name));
        // Services that a script leaves running must not hold the bench's input and output.
        command.args(arguments).env("PEERS", &self.peers).stdin(Stdio::null()).stdout(Stdio::null());
        let status =
            command.stderr(Stdio::null()).status().await.with_context(|| format!("{}: {name}", self.peer.name))?;
        ensure!(status.success(), "{}: {name} ended with {status}", self.peer.name);
        Ok(())
    }

    /// Starts it with new data; answers its processes.
    pub async fn start(&self) -> Result<Servers> {
        self.stop().await?;
        self.script("run.sh", self.peer.arguments).await?;
        let mut processes = Vec::new();
        for (name, file) in self.peer.processes {
            let file = self.folder().join("run").join(file);
            let pid = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
            processes.push(format!("{name}={}", pid.trim()));
        }
        let servers = Servers::parse(&processes)?;
        match servers.used() {
            Ok(_) => Ok(servers),
            Err(_) => bail!("{} ended after its start; see {}", self.peer.name, self.folder().join("run").display()),
        }
    }

    /// Stops it, if it runs, and removes its data.
    pub async fn stop(&self) -> Result<()> {
        self.script("stop.sh", &["clean"]).await
    }

    /// Where it speaks S3, and by which keys; known once it runs.
    pub fn credentials(&self) -> Result<Credentials> {
        let file = self.folder().join("run/s3.env");
        credentials(&fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_the_peers_file() {
        let found = credentials("export S3_URL=http://127.0.0.1:1 S3_KEY=k S3_SECRET=s=\n").unwrap();
        let [url, access_key, secret_key] = ["http://127.0.0.1:1", "k", "s="].map(str::to_owned);
        assert_eq!(found, Credentials { url, access_key, secret_key });
        assert!(credentials("export S3_URL=x S3_KEY=k").unwrap_err().to_string().contains("S3_SECRET"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let peers = tempfile::tempdir().unwrap();
        let error = |peer| Installed::find(peers.path(), peer).unwrap_err().to_string();
        assert!(error(MINIO).ends_with("bench/stoppid.sh is not there"), "{}", error(MINIO));
        for path in HDFS.needs.iter().chain(HDFS.filled_in) {
            let path = peers.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, PLACEHOLDER).unwrap();
        }
        assert!(error(HDFS).ends_with("core-site.xml still says PEERS_FOLDER"), "{}", error(HDFS));
    }

    /// A peer of two scripts: the processes of its pid files are found, and its data ends with it.
    #[tokio::test]
    async fn a_peer_is_started_and_stopped_by_its_scripts() {
        use std::os::unix::fs::PermissionsExt;

        let peers = tempfile::tempdir().unwrap();
        let folder = peers.path().join("minio");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(peers.path().join("bench")).unwrap();
        fs::write(peers.path().join("bench/stoppid.sh"), "").unwrap();
        let script = |name: &str, text: &str| {
            fs::write(folder.join(name), format!("#!/bin/sh\ncd \"$(dirname \"$0\")\"\n{text}\n")).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        script("run.sh", "mkdir -p run data\nsleep 60 & echo $! > run/pid");
        script(
            "stop.sh",
            "[ -f run/pid ] && kill $(cat run/pid) && rm run/pid\n[ \"$1\" = clean ] && rm -rf data\nexit 0",
        );
        fs::write(folder.join("minio"), "").unwrap();
        let installed = Installed::find(peers.path(), MINIO).unwrap();
        let servers = installed.start().await.unwrap();
        assert_eq!(servers.names().collect::<Vec<_>>(), ["minio"]);
        servers.used().unwrap();
        assert!(folder.join("data").exists());
        installed.stop().await.unwrap();
        assert!(!folder.join("data").exists() && !folder.join("run/pid").exists());
    }
}
