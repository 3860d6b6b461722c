//! The head of the report: what was measured, where and with which settings.

use std::{
    fs::{self, File},
    io::Write as _,
};

use anyhow::{Context, Result, ensure};
use procfs::{CpuInfo, Current as _, Meminfo};

use crate::{report::short, sql::Session};

const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// Time, machine and server, one a line.
pub async fn facts(session: &Session) -> Result<Vec<String>> {
    let mut facts = hardware()?;
    facts.extend(session.facts().await?);
    Ok(facts)
}

/// Time and machine, one a line.
pub fn hardware() -> Result<Vec<String>> {
    Ok(vec![
        format!("at             {}", chrono::Utc::now().format("%Y-%m-%d %H:%M UTC")),
        format!("processors     {} × {}", std::thread::available_parallelism()?, cpu_model()),
        format!("memory         {} GiB", short(Meminfo::current()?.mem_total as f64 / f64::from(1 << 30))),
        format!("kernel         {}", read("/proc/sys/kernel/osrelease")),
        format!("idle           {}", idle()),
        format!("load before    {}", read("/proc/loadavg")),
    ])
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu_model() -> String {
    let model = CpuInfo::current().ok().and_then(|info| info.model_name(0).map(str::to_owned));
    model.unwrap_or_else(|| "unknown".to_owned())
}

/// What a processor without work does: one caller's latency is mostly the wakes of processors (patroni/README.md).
fn idle() -> String {
    match (read(IDLE_DRIVER), read("/sys/module/haltpoll/parameters/guest_halt_poll_ns")) {
        (driver, _) if driver.is_empty() => "unknown".to_owned(),
        (driver, polls) if driver == "haltpoll" => format!("haltpoll, guest_halt_poll_ns = {polls}"),
        (driver, _) => driver,
    }
}

/// While it lives, a processor without work does not halt, and is there at once when there is some. A halted one is woken by
/// its host, in 20 µs or in 300, and that is no figure of ours.
pub struct Awake {
    _request: File,
}

impl Awake {
    /// Asks the kernel for it (PM QoS); wants root, and a driver that heeds it.
    pub fn keep() -> Result<Self> {
        let driver = read(IDLE_DRIVER);
        ensure!(!matches!(driver.as_str(), "" | "none"), "this kernel has no cpuidle driver");
        let path = "/dev/cpu_dma_latency";
        let mut request = File::options().write(true).open(path).context(path)?;
        request.write_all(&0_i32.to_ne_bytes()).context(path)?;
        Ok(Self { _request: request })
    }
}
