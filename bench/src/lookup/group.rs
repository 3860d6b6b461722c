//! The measuring process's handle of a process with replicas (see `serve`).

use std::{net::TcpListener, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use mantle_tls::{
    Phase, Tls,
    testing::{Authority, Files},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

use super::tree::Tree;

/// Folder of the replicas' certificates, below the group's.
pub const REPLICAS: &str = "replicas-tls";

pub struct Group {
    /// The replicas' addresses; the first replica leads.
    pub addresses: Vec<String>,
    pub tree: Tree,
    /// What its clients connect with.
    pub tls: Option<Tls>,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _folder: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub directories: u64,
    pub replicas: usize,
    /// The path cache's k; 0 turns it off.
    pub cache_levels: usize,
    /// `raft.log_batching`.
    pub log_batching: bool,
    /// `lookup.invalidation = "all"`: a modification empties the whole cache.
    pub invalidates_all: bool,
    /// Certificates at both ends of every connection.
    pub has_tls: bool,
}

/// Makes certificates for replicas, in files, and for their callers.
fn certify(folder: &Path) -> Result<Tls> {
    let authority = Authority::default();
    Files::new(&folder.join(REPLICAS), &[&authority], &authority, ("mantle-peer", "127.0.0.1"));
    let callers = Files::new(&folder.join("callers-tls"), &[&authority], &authority, ("mantle-gateway", "127.0.0.1"));
    Tls::load(callers.settings(Phase::Strict))
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            directories: 0,
            replicas: 1,
            cache_levels: 3,
            log_batching: true,
            invalidates_all: false,
            has_tls: false,
        }
    }
}

impl Group {
    /// Starts a process with replicas, and waits until they hold the tree.
    pub async fn start(directories: u64, replicas: usize, cache_levels: usize) -> Result<Self> {
        Self::start_with(&Setup { directories, replicas, cache_levels, ..Setup::default() }).await
    }

    /// The same with all settings.
    pub async fn start_with(setup: &Setup) -> Result<Self> {
        let Setup { directories, replicas, cache_levels, log_batching, invalidates_all, has_tls } = *setup;
        let folder = tempfile::tempdir()?;
        // All are bound before any is released, so that the kernel gives different ports.
        let sockets: Vec<_> = (0..replicas).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        let addresses: Vec<_> =
            sockets.iter().map(|socket| Ok(socket.local_addr()?.to_string())).collect::<std::io::Result<_>>()?;
        drop(sockets);
        let tls = has_tls.then(|| certify(folder.path())).transpose()?;
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .arg("index-replicas")
            .args(["--directories", &directories.to_string(), "--addresses", &addresses.join(",")])
            .args(["--log-batching", &log_batching.to_string(), "--invalidates-all", &invalidates_all.to_string()])
            .args(["--has-tls", &has_tls.to_string()])
            .args(["--cache-levels", &cache_levels.to_string(), "--folder"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let tree = Tree::of(directories);
        let mut group = Self { addresses, tree, tls, child, input, output, _folder: folder };
        let answer = group.answer().await?;
        ensure!(answer == "ready", "the replicas answered `{answer}` instead of `ready`");
        Ok(group)
    }

    async fn answer(&mut self) -> Result<String> {
        self.output.next_line().await?.context("the replicas' process ended")
    }

    async fn ask(&mut self, line: &str) -> Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        self.answer().await
    }

    /// Processor time of the process, in seconds.
    pub async fn cpu(&mut self) -> Result<f64> {
        Ok(self.ask("cpu").await?.parse()?)
    }

    /// Sets how many operations a second are applied from now on; answers how many were applied so far.
    pub async fn write(&mut self, per_second: u64) -> Result<u64> {
        Ok(self.ask(&format!("write {per_second}")).await?.parse()?)
    }

    /// Starts or stops the building of snapshots; answers how many were built so far.
    pub async fn snapshots(&mut self, are_wanted: bool) -> Result<u64> {
        Ok(self.ask(&format!("snapshots {are_wanted}")).await?.parse()?)
    }

    /// Lets `clients` make directories one by one for `period`; answers the directories and the log entries.
    pub async fn make(&mut self, clients: usize, period: Duration) -> Result<[u64; 2]> {
        let [directories, entries] = self.numbers(&format!("make {clients} {}", period.as_secs_f64())).await?;
        Ok([directories as u64, entries as u64])
    }

    /// Does `count` lookups inside the process; answers lookups per second of processor time.
    pub async fn look_up(&mut self, count: u64) -> Result<u64> {
        let [per_second] = self.numbers(&format!("look_up {count}")).await?;
        Ok(per_second as u64)
    }

    /// Cached prefixes, the cache's bytes, and the index's bytes.
    pub async fn size(&mut self) -> Result<[usize; 3]> {
        self.numbers("size").await
    }

    async fn numbers<const N: usize>(&mut self, line: &str) -> Result<[usize; N]> {
        let answer = self.ask(line).await?;
        let numbers: Vec<usize> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| anyhow::anyhow!("`{line}` was answered `{answer}`"))
    }

    pub async fn stop_all(groups: impl IntoIterator<Item = Self>) -> Result<()> {
        for group in groups {
            group.stop().await?;
        }
        Ok(())
    }

    /// Closes its standard input and waits until it has ended.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.input);
        self.child.wait().await?;
        Ok(())
    }
}
