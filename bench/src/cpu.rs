//! Processor time of this process and of whole servers, from `/proc`.
//!
//! A server's time is the postmaster's, that of its living children, and that of the children it has waited for. A tick
//! is 10 ms, and each process may be one tick short.

use std::time::Duration;

use anyhow::{Context, Result};
use procfs::process::{Process, Stat, all_processes};

#[derive(Clone, Copy, Debug)]
pub struct Server {
    postmaster: i32,
}

/// Ticks of the process itself, without its children.
fn own_ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

fn duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1_000 / procfs::ticks_per_second())
}

pub fn own() -> Result<Duration> {
    Ok(duration(own_ticks(&Process::myself()?.stat()?)))
}

impl Server {
    /// A process with its children.
    pub fn of(pid: i32) -> Self {
        Self { postmaster: pid }
    }

    pub fn pid(self) -> i32 {
        self.postmaster
    }

    /// The server that started this process.
    pub fn of_child(pid: i32) -> Result<Self> {
        let stat = Process::new(pid).and_then(|process| process.stat());
        let stat = stat.with_context(|| format!("no process {pid} here: the bench must run beside its servers"))?;
        Ok(Self { postmaster: stat.ppid })
    }
}

/// A child of a server.
#[derive(Clone, Debug)]
pub struct Child {
    /// Its number, and when it started: a number is given again.
    pub id: (i32, u64),
    /// How it calls itself.
    pub title: String,
    pub used: Duration,
}

/// The processes of a server, with the processor time of each so far.
#[derive(Clone, Debug)]
pub struct Processes {
    /// Of the postmaster itself.
    pub own: Duration,
    pub living: Vec<Child>,
    /// Of all children that have ended.
    pub ended: Duration,
}

impl Server {
    pub fn processes(self) -> Result<Processes> {
        // The children first: one that ends meanwhile is counted twice, and not never.
        let living = all_processes()?.filter_map(|process| {
            let process = process.ok()?;
            let stat = process.stat().ok().filter(|stat| stat.ppid == self.postmaster)?;
            let title = process.cmdline().map(|words| words.join(" ")).unwrap_or_default();
            Some(Child { id: (stat.pid, stat.starttime), title, used: duration(own_ticks(&stat)) })
        });
        let living = living.collect();
        let stat = Process::new(self.postmaster).and_then(|process| process.stat()).context("a server has ended")?;
        let ended = duration(stat.cutime as u64 + stat.cstime as u64);
        Ok(Processes { own: duration(own_ticks(&stat)), living, ended })
    }
}

/// Servers by name.
pub struct Servers(Vec<(String, Server)>);

impl Servers {
    /// Reads a list of `name=pid`.
    pub fn parse(list: &[String]) -> Result<Self> {
        let server = |text: &String| {
            let (name, pid) = text.split_once('=').with_context(|| format!("`{text}` is not name=pid"))?;
            Ok((name.to_owned(), Server::of(pid.parse()?)))
        };
        list.iter().map(server).collect::<Result<_>>().map(Self)
    }

    pub fn one(name: &str, server: Server) -> Self {
        Self(vec![(name.to_owned(), server)])
    }

    pub fn named(&self, name: &str) -> Option<Server> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, server)| *server)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// Processor time that each has used since its start.
    pub fn used(&self) -> Result<Vec<Duration>> {
        self.0.iter().map(|(_, server)| used(&[*server])).collect()
    }
}

/// Processor time that servers have used since their start.
pub fn used(servers: &[Server]) -> Result<Duration> {
    let mut ticks = 0;
    for server in servers {
        let stat = Process::new(server.postmaster).and_then(|process| process.stat()).context("a server has ended")?;
        ticks += own_ticks(&stat) + stat.cutime as u64 + stat.cstime as u64;
    }
    // A process that has just ended has no stat; its parent counts its time.
    for stat in all_processes()?.filter_map(|process| process.ok()?.stat().ok()) {
        if servers.iter().any(|server| server.postmaster == stat.ppid) {
            ticks += own_ticks(&stat);
        }
    }
    Ok(duration(ticks))
}

#[cfg(test)]
mod tests {
    use procfs::FromRead;

    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    #[test]
    fn stat_is_read_behind_the_name() {
        let text = "7 (a) b (c) S 5 7 7 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 99 1 1 \
                    18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let stat = Stat::from_read(text.as_bytes()).unwrap();
        assert_eq!((stat.ppid, own_ticks(&stat), stat.cutime + stat.cstime), (5, 23, 27));
        assert!(Stat::from_read(&b""[..]).is_err());
    }

    #[test]
    fn a_server_counts_its_children() {
        let own = Server { postmaster: std::process::id() as i32 };
        let before = used(&[own]).unwrap();
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let child_id = child.id() as i32;
        let found = Server::of_child(child_id).unwrap();
        assert_eq!(found.postmaster, own.postmaster);
        while used(&[found]).unwrap() < before + 5 * TICK {
            std::thread::yield_now();
        }
        let of_child = |processes: &Processes| {
            processes.living.iter().find(|process| process.id.0 == child_id).map(|process| process.title.clone())
        };
        let living = found.processes().unwrap();
        assert_eq!(of_child(&living).as_deref(), Some("sh -c while :; do :; done"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used(&[found]).unwrap() >= before + 5 * TICK, "also what ended");
        let ended = found.processes().unwrap();
        assert!(of_child(&ended).is_none() && ended.ended > living.ended);
    }
}
