//! The facts at the head of a report: time, machine and settings.

use std::{
    fs::{self, File},
    io::Write as _,
};

use anyhow::{Context, Result, ensure};
use procfs::{CpuInfo, Current as _, Meminfo};

use crate::{report::short, sql::Session};

const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// Time, machine and PostgreSQL server, one a line.
pub async fn facts(session: &Session) -> Result<Vec<String>> {
    let mut facts = hardware()?;
    facts.extend(session.facts().await?);
    Ok(facts)
}

pub fn hardware() -> Result<Vec<String>> {
    let model = CpuInfo::current().ok().and_then(|info| info.model_name(0).map(str::to_owned));
    Ok(vec![
        format!("at             {}", chrono::Utc::now().format("%Y-%m-%d %H:%M UTC")),
        format!("processors     {} × {}", std::thread::available_parallelism()?, model.as_deref().unwrap_or("unknown")),
        format!("memory         {} GiB", short(Meminfo::current()?.mem_total as f64 / f64::from(1 << 30))),
        format!("kernel         {}", read("/proc/sys/kernel/osrelease")),
        format!("idle           {}", idle()),
        format!("load before    {}", read("/proc/loadavg")),
    ])
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// How idle processors wait: a single caller's latency is mostly their wake-up (patroni/README.md).
fn idle() -> String {
    match (read(IDLE_DRIVER), read("/sys/module/haltpoll/parameters/guest_halt_poll_ns")) {
        (driver, _) if driver.is_empty() => "unknown".to_owned(),
        (driver, polls) if driver == "haltpoll" => format!("haltpoll, guest_halt_poll_ns = {polls}"),
        (driver, _) => driver,
    }
}

/// While this value lives, idle processors do not halt. Its host wakes a halted processor in 20 to 300 µs, which would
/// be part of the measured latency.
pub struct Awake {
    _request: File,
}

impl Awake {
    /// Requests it from the kernel (PM QoS); needs root, and a cpuidle driver that obeys.
    pub fn keep() -> Result<Self> {
        let driver = read(IDLE_DRIVER);
        ensure!(!matches!(driver.as_str(), "" | "none"), "this kernel has no cpuidle driver");
        let path = "/dev/cpu_dma_latency";
        let mut request = File::options().write(true).open(path).context(path)?;
        request.write_all(&0_i32.to_ne_bytes()).context(path)?;
        Ok(Self { _request: request })
    }
}
