//! Mantle on several versions of PostgreSQL: imports, changes by sessions that meet in one directory, and puts. The
//! servers take turns within each measurement, so that all meet the same machine; ratios are to the first server.

mod changes;
mod import;
mod puts;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::{
    cpu::{Server, used},
    machine,
    measure::{
        contention::{Setting, single::TURNS},
        rotation,
    },
    report::{Report, count, short},
    sql::Session,
};

/// The role of all sessions.
const ROLE: &str = "postgres";
const NAMESPACE: &str = "bench-versions";

/// Measure Mantle on several versions of PostgreSQL
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each throughput on each server
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Direct URLs of the servers as superuser, separated by commas; all must be new and on this machine. Ratios are to
    /// the first
    #[arg(long, env = "MANTLE_VERSIONS_URLS", value_name = "URLS", value_delimiter = ',', hide_env_values = true)]
    servers: Vec<String>,
    /// The listing to import: one path a line
    #[arg(long, value_name = "FILE")]
    listing: PathBuf,
    /// The `mantle` program, which imports it
    #[arg(long, value_name = "FILE")]
    mantle: PathBuf,
}

/// One of the servers.
struct Measured<'a> {
    url: &'a str,
    /// The version, as PostgreSQL names it.
    version: String,
    admin: Session,
    processes: Server,
}

impl<'a> Measured<'a> {
    async fn new(url: &'a str) -> Result<Self> {
        let admin = Session::connect(url).await?;
        let processes = Server::of_child(admin.server_process().await?)?;
        let id = admin.allocate_ids(1).await?;
        admin.create_namespace(NAMESPACE, id).await?;
        Ok(Self { url, version: admin.version().await?, admin, processes })
    }
}

/// The sums over all turns of one server.
#[derive(Clone, Default)]
struct Done {
    elements: u64,
    lasted: Duration,
    cpu: Duration,
    wal_bytes: i64,
    /// Elements a second of each turn.
    rates: Vec<f64>,
}

impl Done {
    fn per_second(&self) -> f64 {
        self.elements as f64 / self.lasted.as_secs_f64()
    }

    fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.elements as f64
    }

    fn wal_bytes(&self) -> f64 {
        self.wal_bytes as f64 / self.elements as f64
    }

    /// Throughput, processor time and WAL of an element, each also as a ratio to the baseline's; and the turns.
    fn cells(&self, baseline: &Self) -> [String; 7] {
        let [rate, cpu, wal] = [Self::per_second, Self::cpu_us, Self::wal_bytes].map(|figure| {
            let (value, of) = (figure(self), figure(baseline));
            (value, short(value / of))
        });
        let turns: Vec<_> = self.rates.iter().map(|rate| count(*rate as u64)).collect();
        [count(rate.0 as u64), rate.1, short(cpu.0), cpu.1, short(wal.0), wal.1, turns.join(" · ")]
    }
}

/// The headings of [`Done::cells`].
const COLUMNS: &str =
    "per second | to first | server's CPU µs each | to first | WAL bytes each | to first | turns, per second";

/// What the servers do before each turn, which is not measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// All write their changed pages, so that none does so in a turn.
    Checkpoint,
}

/// Lets the servers take turns. `turn` works on the server with this number, and answers how many elements it did.
async fn in_turns(
    servers: &[Measured<'_>],
    before: Before,
    mut turn: impl AsyncFnMut(usize) -> Result<u64>,
) -> Result<Vec<Done>> {
    let mut found = vec![Done::default(); servers.len()];
    for (_, at) in rotation(TURNS, servers.len()) {
        if before == Before::Checkpoint {
            for server in servers {
                server.admin.checkpoint().await?;
            }
        }
        let (server, done) = (&servers[at], &mut found[at]);
        let (cpu, wal, started) = (used(&[server.processes])?, server.admin.wal_bytes().await?, Instant::now());
        let elements = turn(at).await?;
        let lasted = started.elapsed();
        // What the changes leave to the worker is part of their cost.
        server.admin.wait_for_compaction().await?;
        done.elements += elements;
        done.lasted += lasted;
        done.cpu += used(&[server.processes])? - cpu;
        done.wal_bytes += server.admin.wal_bytes().await? - wal;
        done.rates.push(elements as f64 / lasted.as_secs_f64());
    }
    Ok(found)
}

pub async fn run(options: &Options) -> Result<Report> {
    ensure!(options.servers.len() > 1 && options.seconds > 0, "two servers are needed, and a second for each");
    let servers = try_join_all(options.servers.iter().map(|url| Measured::new(url))).await?;
    let mut facts = machine::hardware()?;
    for server in &servers {
        facts.extend(server.admin.facts().await?);
        facts.push(server.admin.settings_of_version().await?);
    }
    facts.push(format!("seconds        {} each throughput and server, in {TURNS} turns (--seconds)", options.seconds));
    let mut report = Report::new(
        "PostgreSQL's versions",
        "Written by `make bench ONLY=versions` (`mantle-bench versions`); do not edit. One machine runs everything: servers with \
         the extension and its worker, and the client; nothing reads the WAL. The servers take turns within each measurement; \
         ratios are to the first. Autovacuum is off, so that none works in the other's turn. Processor time is that of all the \
         server's processes, with the worker's. The servers come from different builds: Debian's for 15, that of a package \
         registry for the others, so a ratio is of two builds, not of the version alone. What `wal_compression` is follows \
         from the build, and decides about WAL bytes.",
        &facts,
    );
    import::run(&servers, options, &mut report).await?;
    let mut settings = Vec::new();
    for server in &servers {
        // A setting's turns last half of its period.
        let period = Duration::from_secs(2 * options.seconds);
        settings.push(Setting::open(server.url, ROLE, &server.admin, NAMESPACE, period).await?);
    }
    changes::run(&servers, &settings, &mut report).await?;
    puts::run(&servers, &settings, Duration::from_secs(options.seconds) / TURNS, &mut report).await?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_sums_over_turns_and_ratios_to_the_baseline() {
        let seconds = Duration::from_secs;
        let first = Done { elements: 100, lasted: seconds(2), cpu: seconds(1), wal_bytes: 1_000, rates: vec![50.0] };
        let other =
            Done { elements: 300, lasted: seconds(3), cpu: seconds(6), wal_bytes: 1_500, rates: vec![90.0, 110.0] };
        let cells = other.cells(&first).join("|");
        assert_eq!(cells, "100|2.00|20000|2.00|5.00|0.50|90 · 110");
        assert_eq!(COLUMNS.split(" | ").count(), other.cells(&first).len());
    }
}
