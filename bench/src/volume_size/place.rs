//! A gateway that has the volume, or waits for it: its address, its settings, and its process, which this program starts and ends.

use std::{
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use procfs::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::objects::Objects;
use crate::probes::Probes;

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How often metrics are: a page of them costs the gateway time.
const LOOK_AT_METRICS: Duration = Duration::from_millis(50);
/// How long a start may take: the whole volume is read from PostgreSQL.
const BOUND: Duration = Duration::from_secs(3_600);

/// Where a gateway is.
pub struct Place {
    config: PathBuf,
    pub probes: Probes,
    pub objects: Objects,
}

impl Place {
    pub fn new(config: &str, probes: &str, objects: Objects) -> Result<Self> {
        Ok(Self { config: config.into(), probes: Probes::new(probes)?, objects })
    }

    /// Bytes of the segments that its gateway has leased.
    pub async fn leased(&self) -> Result<f64> {
        let leased = self.probes.volume_bytes("leased").await;
        ensure!(leased > 0.0, "a gateway says that it has leased no segment");
        Ok(leased)
    }
}

/// How gateways are started.
pub struct Programs {
    /// The beginning of the command, which ends with the settings' file.
    command: Vec<OsString>,
    pub mantle: PathBuf,
    log: PathBuf,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: f64,
    /// The most since the start.
    pub peak: f64,
}

/// A gateway's process.
pub struct Running {
    child: Child,
    pid: i32,
    config: PathBuf,
    pub started: Instant,
}

impl Programs {
    /// `folder`: has the programs. `account`: `uid:gid` of the gateways. `log`: gets their output.
    pub fn new(folder: &Path, account: Option<&str>, log: &Path) -> Result<Self> {
        // If this program ends, its gateways end too.
        let mut command: Vec<OsString> = ["setpriv", "--pdeathsig", "TERM"].map(OsString::from).into();
        if let Some(account) = account {
            let (uid, gid) = account.split_once(':').context("--account is uid:gid")?;
            let become_it = [format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()];
            command.extend(become_it.map(OsString::from));
        }
        command.extend([OsString::from("--"), folder.join("mantle-gateway").into(), "--config".into()]);
        Ok(Self { command, mantle: folder.join("mantle"), log: log.to_owned() })
    }

    pub fn start(&self, place: &Place) -> Result<Running> {
        let log = File::options().create(true).append(true).open(&self.log).context("the gateways' log")?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).arg(&place.config).current_dir("/").kill_on_drop(true);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8").env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started = Instant::now();
        let child = command.spawn().context("setpriv")?;
        let pid = child.id().context("the gateway has ended")? as i32;
        Ok(Running { child, pid, config: place.config.clone(), started })
    }
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it is the gateway of this place.
    pub fn is_of(&self, place: &Place) -> bool {
        self.config == place.config
    }

    /// Ends it; answers how long that took.
    pub async fn end(mut self, signal: Signal) -> Result<Duration> {
        let pid = Pid::from_raw(self.pid).context("the gateway has ended")?;
        let began = Instant::now();
        kill_process(pid, signal)?;
        self.child.wait().await?;
        Ok(began.elapsed())
    }

    pub fn memory(&self) -> Result<Memory> {
        let status = Process::new(self.pid)?.status()?;
        let bytes = |kib: Option<u64>| kib.map_or(f64::NAN, |kib| kib as f64 * 1024.0);
        Ok(Memory { resident: bytes(status.vmrss), peak: bytes(status.vmhwm) })
    }

    /// Waits until it is ready; answers when it was.
    pub async fn is_ready(&self, place: &Place) -> Result<Instant> {
        self.until("to be ready", async || place.probes.is_ready().await).await
    }

    /// Waits until the leased segments have this many bytes. A gateway counts a segment once it has read the rows of it.
    pub async fn has_leased(&self, place: &Place, bytes: f64) -> Result<Instant> {
        let has_leased = async || {
            tokio::time::sleep(LOOK_AT_METRICS).await;
            place.probes.volume_bytes("leased").await >= bytes
        };
        self.until("to lease its segments", has_leased).await
    }

    /// Puts an object until it is acknowledged.
    pub async fn acknowledges(&self, place: &Place, name: &str) -> Result<Instant> {
        self.until("to take an object", async || place.objects.put_named(name).await.is_ok()).await
    }

    /// Waits for a condition; answers when it was met.
    pub async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) -> Result<Instant> {
        let began = Instant::now();
        while began.elapsed() < BOUND {
            if condition().await {
                return Ok(Instant::now());
            }
            ensure!(Process::new(self.pid).is_ok_and(|process| process.is_alive()), "a gateway ended; see its log");
            tokio::time::sleep(LOOK).await;
        }
        bail!("waited {BOUND:?} for a gateway {what}")
    }
}
