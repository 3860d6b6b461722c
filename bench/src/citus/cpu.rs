//! Processor time of whole servers, from /proc: the postmaster, its children that live, and those that it has waited for.
//! Source: proc(5), /proc/pid/stat; a tick is 10 ms, and every process may be one short.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// USER_HZ, the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// One server, by its first process.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    postmaster: i32,
}

/// Fields of /proc/pid/stat.
struct Stat {
    parent: i32,
    own_ticks: u64,
    /// Of children that have ended and were waited for.
    waited_ticks: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The command's name may contain spaces and parentheses.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own_ticks: ticks(11)? + ticks(12)?,
            waited_ticks: ticks(13)? + ticks(14)?,
        })
    }

    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

impl Server {
    /// The server that has started this process.
    pub fn of_child(pid: i32) -> Result<Self> {
        let stat =
            Stat::read(pid).with_context(|| format!("no process {pid} here: the bench runs beside its servers"))?;
        Ok(Self { postmaster: stat.parent })
    }
}

/// Processor time that servers have used since their start.
pub fn used(servers: &[Server]) -> Result<Duration> {
    let mut ticks = 0;
    for server in servers {
        let stat = Stat::read(server.postmaster).context("a server has ended")?;
        ticks += stat.own_ticks + stat.waited_ticks;
    }
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(stat) = name.to_str().and_then(|name| name.parse().ok()).and_then(Stat::read) else { continue };
        if servers.iter().any(|server| server.postmaster == stat.parent) {
            ticks += stat.own_ticks;
        }
    }
    Ok(TICK * u32::try_from(ticks)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_name() {
        let stat = Stat::parse("7 (a) b (c) S 5 7 7 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 99 1 1").unwrap();
        assert_eq!((stat.parent, stat.own_ticks, stat.waited_ticks), (5, 23, 27));
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn a_server_counts_its_children() {
        let own = Server { postmaster: std::process::id() as i32 };
        let before = used(&[own]).unwrap();
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let found = Server::of_child(child.id() as i32).unwrap();
        assert_eq!(found.postmaster, own.postmaster);
        while used(&[found]).unwrap() < before + 5 * TICK {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used(&[found]).unwrap() >= before + 5 * TICK, "also what ended");
    }
}
