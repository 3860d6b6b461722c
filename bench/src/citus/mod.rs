//! Plain PostgreSQL against Citus, in one run on one machine: throughput and the servers' processor time, for each verb
//! and for each server that a client may be connected to. The ways take turns within each verb, so that all meet the
//! same machine; ratios are to plain.

mod analysts;
mod deployment;
mod workload;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use self::{
    deployment::{CLIENTS, Deployment},
    workload::{DELETES, Verb, Workload, home},
};
use crate::{
    cpu::used,
    machine,
    measure::{rotation, run_rounds},
    report::{Report, count, short},
};

const TURNS: u32 = 3;
/// Calls of each client before the first turn: they make the plans and the attribute records.
const WARM_UP: usize = 20;
/// Bound on the processor time of a mkdir from a client at the directory's node, as a ratio to plain PostgreSQL.
const MKDIR_CPU_RATIO_MAX: f64 = 2.0;

/// Measure Citus against plain PostgreSQL
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each verb and way, in three turns
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Direct URL of the plain PostgreSQL as superuser; all servers must be new and on this machine
    #[arg(long, env = "MANTLE_PLAIN_URL", value_name = "URL", hide_env_values = true)]
    plain: String,
    /// The same of the coordinator and the two workers, separated by commas
    #[arg(long, env = "MANTLE_CITUS_URLS", value_name = "URLS", value_delimiter = ',', hide_env_values = true)]
    citus: Vec<String>,
    /// A listing to load for the analysts' queries: one path a line
    #[arg(long, value_name = "FILE")]
    listing: PathBuf,
    /// The `mantle` program, which loads the listing
    #[arg(long, value_name = "FILE")]
    mantle: PathBuf,
}

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
    fn route(self, deployment: &Deployment, client: usize, round: usize) -> (usize, usize) {
        let either = (client + round) % 2;
        match self {
            Self::Plain | Self::Coordinator => (0, either),
            Self::Owner => (home(deployment, client % 2), client % 2),
            Self::AnyWorker => (home(deployment, client % 2), either),
        }
    }
}

/// The sums over all turns of one verb and way.
#[derive(Clone, Copy, Default)]
struct Measured {
    calls: u64,
    lasted: Duration,
    cpu: Duration,
    counters: [i64; 2],
}

impl Measured {
    fn per_second(&self, elements: u64) -> f64 {
        (self.calls * elements) as f64 / self.lasted.as_secs_f64()
    }

    fn cpu_us(&self, elements: u64) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / (self.calls * elements) as f64
    }
}

pub async fn run(options: &Options) -> Result<(Report, bool)> {
    ensure!(options.citus.len() == 3, "--citus takes three URLs: the coordinator's and two workers'");
    let mut plain = Deployment::new(std::slice::from_ref(&options.plain)).await?;
    let mut citus = Deployment::new(&options.citus).await?;
    let mut facts = machine::facts(plain.admin()).await?;
    let (version, shards) = citus.admin().citus().await?;
    facts.push(format!("Citus {version}, 1 coordinator, 2 workers, {shards} shards of the MetaTable"));
    facts.push(format!("clients        {CLIENTS} in each way, prepared statements, directories of their own"));
    facts.push(format!("seconds        {} each verb and way, in {TURNS} turns", options.seconds));
    let mut report = Report::new(
        "Citus against plain PostgreSQL",
        "Written by `make bench ONLY=citus` (`mantle-bench citus`); do not edit. One machine runs everything: a plain \
         PostgreSQL, a coordinator and two workers of Citus, and the clients. Ratios hold better than absolute figures: the \
         four ways take turns within each verb.",
        &facts,
    );
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
    let text = format!(
        "A mkdir from a client at the directory's worker costs at most {} times the processor time of plain PostgreSQL: it \
         costs {} times as much.",
        short(MKDIR_CPU_RATIO_MAX),
        short(ratio),
    );
    report.verdict(&text, held);
    let (plain, citus) = ((&plain, &*options.plain), (&citus, &*options.citus[0]));
    let are_held = analysts::run(plain, citus, &options.mantle, &options.listing, &mut report).await? && held;
    Ok((report, are_held))
}

/// Measures the processor time that servers use without any client; it is subtracted from that of the verbs.
async fn idle(plain: &mut Deployment, citus: &mut Deployment, report: &mut Report) -> Result<()> {
    const LASTED: Duration = Duration::from_secs(5);
    for deployment in [&mut *plain, citus] {
        deployment.admin().wait_for_compaction().await?;
        let before = used(&deployment.servers)?;
        tokio::time::sleep(LASTED).await;
        deployment.idle = (used(&deployment.servers)? - before).as_secs_f64() / LASTED.as_secs_f64();
    }
    report.paragraph(&format!(
        "Processor time is of all processes of the server, or of the cluster's three servers: sessions, workers, WAL, vacuum. Their \
         idle time is subtracted: {} % of one processor for plain PostgreSQL, {} % for the cluster, whose daemons and workers \
         serve three nodes.",
        short(plain.idle * 100.0),
        short(citus.idle * 100.0)
    ));
    Ok(())
}

async fn in_turn(
    plain: &mut Deployment,
    citus: &mut Deployment,
    verb: Verb,
    period: Duration,
) -> Result<[Measured; 4]> {
    let mut workloads = Vec::new();
    for way in Way::ALL {
        workloads.push(Workload::new(if way == Way::Plain { plain } else { citus }, verb).await?);
    }
    let of = |way| if way == Way::Plain { &*plain } else { &*citus };
    for (way, workload) in Way::ALL.into_iter().zip(&workloads) {
        workload.provide(of(way)).await?;
        run_clients(of(way), way, workload, Duration::MAX, WARM_UP).await?;
    }
    let mut found = <[Measured; 4]>::default();
    for (_, at) in rotation(TURNS, workloads.len()) {
        let (way, workload) = (Way::ALL[at], &workloads[at]);
        let deployment = of(way);
        workload.provide(deployment).await?;
        deployment.admin().wait_for_compaction().await?;
        let most = if verb == Verb::DeleteObject { DELETES } else { usize::MAX };
        let (counters, cpu, started) = (deployment.counters().await?, used(&deployment.servers)?, Instant::now());
        let calls = run_clients(deployment, way, workload, period, most).await?;
        let found = &mut found[at];
        let lasted = started.elapsed();
        found.lasted += lasted;
        found.cpu += (used(&deployment.servers)? - cpu).saturating_sub(lasted.mul_f64(deployment.idle));
        found.calls += calls;
        let now = deployment.counters().await?;
        found.counters = [0, 1].map(|at| found.counters[at] + now[at] - counters[at]);
    }
    Ok(found)
}

/// Runs all clients for `period`, or until each has done `rounds_max` calls; answers the number of calls.
async fn run_clients(
    deployment: &Deployment,
    way: Way,
    workload: &Workload,
    period: Duration,
    rounds_max: usize,
) -> Result<u64> {
    let call = |client, round| {
        let (server, worker) = way.route(deployment, client, round);
        workload.call(deployment, server, client, worker)
    };
    Ok(run_rounds(CLIENTS, period, rounds_max, call).await?.1.len() as u64)
}

fn row(verb: Verb, way: Way, of: &Measured, plain: &Measured) -> [String; 8] {
    let counted =
        |number: i64| if way == Way::Plain { "–".to_owned() } else { short(number as f64 / of.calls as f64) };
    let [statements, sent] = of.counters.map(counted);
    let [rate, cpu] = [Measured::per_second, Measured::cpu_us].map(|figure| {
        let (value, baseline) = (figure(of, verb.elements()), figure(plain, verb.elements()));
        [count(value as u64), short(value / baseline)]
    });
    let ([rate, rate_ratio], [cpu, cpu_ratio]) = (rate, cpu);
    [verb.name(), way.name().to_owned(), rate, rate_ratio, cpu, cpu_ratio, statements, sent]
}

fn figures(rows: &[[String; 8]], report: &mut Report) {
    report.heading("By verb and by where the client is connected");
    report.paragraph(
        "Elements per second and processor time per element (a batch of 64 has 64), each also as a ratio to plain. \
         `statements`: statements that Citus executed for a call, in all sessions of all nodes (`citus_stat_counters`; they include \
         the workers' own steps). `sent`: connections to another node that Citus used for a call.",
    );
    report.table("verb | client at | per second | to plain | CPU µs | to plain | statements | sent", rows);
}

fn causes(report: &mut Report) {
    report.heading("Why");
    for cause in [
        "**Its worker.** A call sends nothing, commits once, and has the same rows, WAL and latches as plain. New directories \
         and objects are written directly to the shard, under the lock that keeps the shard on its node. That takes no \
         statement of Citus, and costs about as much as plain. For the other verbs Citus plans each statement on the \
         MetaTable: it copies the saved plan, puts the parameters in, finds the shard, locks its metadata for a change, and \
         runs a saved local plan. So their ratio follows the column `statements`.",
        "**Any worker.** Every second call is for a directory of the other worker, and Citus sends it there as one call of the \
         delegated function. Its text is built, then parsed and planned on both nodes; it takes two sessions instead of one, \
         and the commit is a message of its own.",
        "**Coordinator.** The same for every call: the coordinator holds no directories.",
        "**Renames.** Each part (the latch, the source part, the destination part, the request, the removal, the insert) is a \
         delegated function of its own, so that it runs on the node of its directory. Across nodes, parts are sent, and the \
         transaction commits in two phases: a prepare with a flush on each node, a record on the leading node, and a commit on \
         each.",
    ] {
        report.paragraph(cause);
    }
}
