//! Plain PostgreSQL against Citus, in one run on one machine: throughput, and processor time of the servers, of each verb by
//! where its client is connected. The ways take turns within each verb, so that all meet the same machine; ratios are to plain.

mod analysts;
mod plot;
mod site;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use self::{
    plot::{DELETES, Plot, Verb, home},
    site::{CLIENTS, Site},
};
use crate::{
    cpu::used,
    machine,
    report::{Report, count, short},
};

const TURNS: u32 = 3;
/// Calls of each client before the first turn: plans are made, attribute records are there.
const WARM_UP: usize = 20;
/// A mkdir from a client that is connected to the node of the directory: most of plain PostgreSQL's processor time.
const MKDIR_CPU_RATIO_MAX: f64 = 2.0;

/// Measure Citus against plain PostgreSQL
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each verb and way, in three turns
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Where the report goes; standard output when absent
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Plain PostgreSQL, and all of the cluster, as superuser, on this machine, each of them new
    #[arg(long, env = "MANTLE_PLAIN_URL", value_name = "URL", hide_env_values = true)]
    plain: String,
    /// The coordinator and the two workers, separated by commas
    #[arg(long, env = "MANTLE_CITUS_URLS", value_name = "URLS", value_delimiter = ',', hide_env_values = true)]
    citus: Vec<String>,
    /// A listing to load, for what analysts ask: one path a line
    #[arg(long, value_name = "FILE", requires = "mantle")]
    listing: Option<PathBuf>,
    /// The `mantle` program, which loads it
    #[arg(long, value_name = "FILE")]
    mantle: Option<PathBuf>,
}

/// Where clients are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Owner,
    AnyWorker,
    Coordinator,
}

impl Way {
    const ALL: [Self; 4] = [Self::Plain, Self::Owner, Self::AnyWorker, Self::Coordinator];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Owner => "Citus: its worker",
            Self::AnyWorker => "Citus: any worker",
            Self::Coordinator => "Citus: coordinator",
        }
    }

    /// The server that a client is connected to, and the worker whose directories it changes in this round.
    fn route(self, site: &Site, client: usize, round: usize) -> (usize, usize) {
        let either = (client + round) % 2;
        match self {
            Self::Plain | Self::Coordinator => (0, either),
            Self::Owner => (home(site, client % 2), client % 2),
            Self::AnyWorker => (home(site, client % 2), either),
        }
    }
}

/// What one way did with one verb, over its turns.
#[derive(Clone, Copy, Default)]
struct Found {
    calls: u64,
    lasted: Duration,
    cpu: Duration,
    statements: i64,
    connections: i64,
}

impl Found {
    fn per_second(&self, elements: u64) -> f64 {
        (self.calls * elements) as f64 / self.lasted.as_secs_f64()
    }

    fn cpu_us(&self, elements: u64) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / (self.calls * elements) as f64
    }

    fn a_call(&self, number: i64) -> f64 {
        number as f64 / self.calls as f64
    }
}

/// Measures; whether the bound is held.
pub async fn run(options: &Options) -> Result<(Report, bool)> {
    ensure!(options.citus.len() == 3, "--citus takes three URLs: the coordinator's and two workers'");
    let mut plain = Site::new(std::slice::from_ref(&options.plain)).await?;
    let mut citus = Site::new(&options.citus).await?;
    let mut report = Report::default();
    report.title("Citus against plain PostgreSQL");
    report.paragraph(
        "Written by `make bench ONLY=citus` (`mantle-bench citus`); do not edit. One machine runs everything: a plain \
         PostgreSQL, a coordinator and two workers of Citus, and the clients. Ratios hold better than absolute figures: the \
         four ways take turns within each verb.",
    );
    let mut facts = machine::facts(plain.admin()).await?;
    let (version, shards) = citus.admin().citus().await?;
    facts.push(format!("Citus {version}, 1 coordinator, 2 workers, {shards} shards of the MetaTable"));
    facts.push(format!("clients        {CLIENTS} in each way, prepared statements, directories of their own"));
    facts.push(format!("seconds        {} each verb and way, in {TURNS} turns", options.seconds));
    report.block(&facts.join("\n"));
    idle(&mut plain, &mut citus, &mut report).await?;
    let mut ratio = f64::NAN;
    let mut rows = Vec::new();
    for verb in Verb::ALL {
        let found = in_turn(&mut plain, &mut citus, verb, Duration::from_secs(options.seconds) / TURNS).await?;
        for (way, of) in Way::ALL.iter().zip(&found) {
            rows.push(row(verb, *way, of, &found[0]));
        }
        if verb == Verb::Mkdir {
            ratio = found[1].cpu_us(1) / found[0].cpu_us(1);
        }
        eprintln!("  {}", verb.name());
    }
    figures(&rows, &mut report);
    causes(&mut report);
    let held = ratio <= MKDIR_CPU_RATIO_MAX;
    report.heading("Bound");
    report.paragraph(&format!(
        "A mkdir from a client at the directory's worker costs at most {} times the processor time of plain PostgreSQL: it \
         costs {} times as much. **{}**",
        short(MKDIR_CPU_RATIO_MAX),
        short(ratio),
        if held { "Held." } else { "Not held." }
    ));
    let (Some(listing), Some(mantle)) = (&options.listing, &options.mantle) else { return Ok((report, held)) };
    let (plain, citus) = ((&plain, &*options.plain), (&citus, &*options.citus[0]));
    let are_held = analysts::run(plain, citus, mantle, listing, &mut report).await? && held;
    Ok((report, are_held))
}

/// What servers take without any client, so that it is not taken for the verbs'.
async fn idle(plain: &mut Site, citus: &mut Site, report: &mut Report) -> Result<()> {
    const LASTED: Duration = Duration::from_secs(5);
    for site in [&mut *plain, citus] {
        site.settle().await?;
        let before = used(&site.servers)?;
        tokio::time::sleep(LASTED).await;
        site.idle = (used(&site.servers)? - before).as_secs_f64() / LASTED.as_secs_f64();
    }
    report.paragraph(&format!(
        "Processor time is of all processes of the server, or of the cluster's three: sessions, workers, WAL, vacuum. What they take \
         idle is taken off: {} % of one processor for plain PostgreSQL, {} % for the cluster, whose daemons and workers look after \
         three nodes.",
        short(plain.idle * 100.0),
        short(citus.idle * 100.0)
    ));
    Ok(())
}

async fn in_turn(plain: &mut Site, citus: &mut Site, verb: Verb, period: Duration) -> Result<[Found; 4]> {
    let mut plots = Vec::new();
    for way in Way::ALL {
        plots.push(Plot::new(if way == Way::Plain { plain } else { citus }, verb).await?);
    }
    let of = |way| if way == Way::Plain { &*plain } else { &*citus };
    for (way, plot) in Way::ALL.into_iter().zip(&plots) {
        plot.provide(of(way)).await?;
        lanes(of(way), way, plot, Duration::MAX, WARM_UP).await?;
    }
    let mut found = <[Found; 4]>::default();
    for turn in 0..TURNS as usize {
        for at in 0..plots.len() {
            // Not always after the same one.
            let at = (at + turn) % plots.len();
            let (way, plot) = (Way::ALL[at], &plots[at]);
            let site = of(way);
            plot.provide(site).await?;
            site.settle().await?;
            let most = if verb == Verb::DeleteObject { DELETES } else { usize::MAX };
            let (counters, cpu, started) = (site.counters().await?, used(&site.servers)?, Instant::now());
            let calls = lanes(site, way, plot, period, most).await?;
            let found = &mut found[at];
            let lasted = started.elapsed();
            found.lasted += lasted;
            found.cpu += (used(&site.servers)? - cpu).saturating_sub(lasted.mul_f64(site.idle));
            found.calls += calls;
            let now = site.counters().await?;
            found.statements += now.statements - counters.statements;
            found.connections += now.connections - counters.connections;
        }
    }
    Ok(found)
}

/// Runs all clients for `period`, or for so many rounds; calls done.
async fn lanes(site: &Site, way: Way, plot: &Plot, period: Duration, rounds_max: usize) -> Result<u64> {
    let started = Instant::now();
    let loops = (0..CLIENTS).map(|client| async move {
        let mut round = 0;
        while round < rounds_max && started.elapsed() < period {
            let (server, worker) = way.route(site, client, round);
            plot.call(site, server, client, worker).await?;
            round += 1;
        }
        Ok::<_, anyhow::Error>(round as u64)
    });
    Ok(futures::future::try_join_all(loops).await?.into_iter().sum())
}

fn row(verb: Verb, way: Way, of: &Found, plain: &Found) -> [String; 8] {
    let elements = verb.elements();
    let counted = |number| if way == Way::Plain { "–".to_owned() } else { short(of.a_call(number)) };
    [
        verb.name(),
        way.name().to_owned(),
        count(of.per_second(elements) as u64),
        short(of.per_second(elements) / plain.per_second(elements)),
        count(of.cpu_us(elements) as u64),
        short(of.cpu_us(elements) / plain.cpu_us(elements)),
        counted(of.statements),
        counted(of.connections),
    ]
}

fn figures(rows: &[[String; 8]], report: &mut Report) {
    report.heading("By verb and by where the client is connected");
    report.paragraph(
        "Elements per second and processor time per element (a batch of 64 has 64), each also as a ratio to plain. \
         `statements`: what Citus carried out a call, on any node, in whichever session (`citus_stat_counters`; the workers' own \
         steps are among them). `sent`: connections to another node that it took a call.",
    );
    report.table(["verb", "client at", "per second", "to plain", "CPU µs", "to plain", "statements", "sent"], rows);
}

fn causes(report: &mut Report) {
    report.heading("Why");
    for cause in [
        "**Its worker.** Nothing is sent, one commit, the same rows, WAL and latches as plain. New directories and objects, one \
         or many, are written to the shard itself, under the lock by which Citus keeps it where it is: no statement of Citus', \
         and about what they cost plain. The other verbs pay Citus' way to each statement on the MetaTable: it copies the \
         statement's plan, puts the parameters in, finds the shard, locks its metadata for a change, and then runs a local plan \
         that it keeps. So their ratio follows the column of statements.",
        "**Any worker.** Every other call meets the other worker's directory, and is sent there as one call of the delegated \
         function: its text is put together, parsed and planned on both nodes, two sessions instead of one, and a commit that \
         is a message of its own.",
        "**Coordinator.** The same for every call; it holds no directories.",
        "**Renames.** Each part (latch, both sides, request, take out, put in) is a delegated function of its own, so that it \
         can run on the node that has its directory. Across nodes, parts are sent and the transaction commits in two phases: \
         a prepare with a flush on each node, a record on the one that leads, and a commit of each.",
    ] {
        report.paragraph(cause);
    }
}
