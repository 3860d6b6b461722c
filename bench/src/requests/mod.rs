//! Whole requests, through gateway, index and PostgreSQL: objects over S3, directories over REST, and renames in SQL,
//! beside peers where they are given. Every service is measured by the same phases; they take turns, and the order
//! changes with each round.

mod beside;
mod bounds;
mod directories;
mod figures;
mod hdfs;
mod kinds;
mod misses;
mod objects;
mod renames;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mantle_index_client::IndexClient;
use mantle_types::GroupId;

use self::{
    beside::Beside,
    directories::{Api, MANTLE, NS},
    figures::{Figures, Rounds},
    misses::Misses,
    renames::Together,
};
use crate::{
    cpu::Servers,
    machine,
    measure::{
        contention::{self, Rates},
        rotation,
    },
    peers::{GARAGE, HDFS, Installed, MINIO, Peer},
    report::{Report, count, short},
    signed_s3::Credentials,
    sql::Session,
    stack::Stack,
};

const IDLE_LASTED: Duration = Duration::from_secs(5);
/// How often the servers are looked at until they are idle again: for three minutes.
const IDLE_LOOKS_MAX: u32 = 36;
/// Servers that use this much more of a processor than without clients count as idle.
const IDLE_TOLERANCE: f64 = 0.03;
/// Turns of a measurement in SQL, each way.
const SQL_TURN: Duration = Duration::from_secs(1);

/// Measure requests, beside peers
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each phase
    #[arg(long, env = "MANTLE_BENCH_SECONDS", value_name = "N", default_value_t = 3)]
    seconds: u64,
    /// Rounds, in which all services take turns
    #[arg(long, env = "MANTLE_BENCH_ROUNDS", value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// A folder with MinIO, Garage and HDFS, or some of them; without it the page keeps its last figures of them
    #[arg(long, env = "PEERS", value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Directories that clients of HDFS make; with fewer, on a slow machine, its listings are left out
    #[arg(long, env = "MANTLE_BENCH_HDFS_DIRECTORIES", value_name = "N", default_value_t = hdfs::MADE)]
    hdfs_directories: usize,
    #[command(flatten)]
    stack: Stack,
}

/// All that a run has found.
struct Measured {
    /// When: the mark of figures of this run.
    at: String,
    figures: Figures,
    together: Together,
    beside: Beside,
    misses: Option<Misses>,
    sql: Vec<Rates>,
}

/// The peers, and why some are not measured.
struct Peers {
    installed: Vec<Installed>,
    left_out: Vec<String>,
}

impl Peers {
    fn find(folder: Option<&Path>) -> Result<Self> {
        let mut peers = Self { installed: Vec::new(), left_out: Vec::new() };
        let Some(folder) = folder else { return Ok(peers) };
        let folder = folder.canonicalize().with_context(|| format!("PEERS: no folder {}", folder.display()))?;
        for peer in [MINIO, GARAGE, HDFS] {
            match Installed::find(&folder, peer) {
                Ok(installed) => peers.installed.push(installed),
                Err(error) => peers.leave_out(peer, &error),
            }
        }
        Ok(peers)
    }

    fn leave_out(&mut self, peer: Peer, why: &anyhow::Error) {
        let text = format!("{} is left out: {why:#}.", peer.name);
        eprintln!("{text}");
        self.left_out.push(text);
        self.installed.retain(|installed| installed.peer != peer);
    }

    /// Starts a peer, measures it, and stops it. One that fails is left out from then on.
    async fn round(&mut self, peer: Peer, work: impl AsyncFnOnce(&Installed, &Servers) -> Result<()>) -> Result<()> {
        let Some(installed) = self.installed.iter().find(|installed| installed.peer == peer).cloned() else {
            return Ok(());
        };
        eprintln!("  {}", peer.name);
        let done = match installed.start().await {
            Ok(servers) => work(&installed, &servers).await,
            Err(error) => Err(error),
        };
        installed.stop().await?;
        if let Err(error) = done {
            self.leave_out(peer, &error);
        }
        Ok(())
    }
}

/// Measures; answers the report and whether the bounds held. `page`: where the report goes, which has earlier figures
/// of peers.
pub async fn run(options: &Options, page: Option<&Path>) -> Result<(Report, bool)> {
    ensure!(options.seconds > 0 && options.rounds > 0, "nothing to do");
    let period = Duration::from_secs(options.seconds);
    let admin = Session::connect(&options.stack.admin).await?;
    let mut facts = machine::facts(&admin).await?;
    facts.push(format!("rounds         {} (--rounds)", options.rounds));
    facts.push(format!("seconds        {} each phase (--seconds)", options.seconds));
    let mut report = Report::new(
        "Bench: requests",
        "Written by `make bench ONLY=requests` (`mantle-bench requests`); do not edit. One machine runs everything: \
         the servers and the clients. Services take turns, each peer is stopped while another is measured, and the \
         order changes with each round. Before a turn the MetaTable is vacuumed, and Mantle's servers become idle. \
         Figures are medians of the rounds, so parts need not add up to a sum.",
        &facts,
    );
    let servers = Servers::parse(&options.stack.processes)?;
    let api = Api::new(&options.stack.url, &options.stack.token, &servers)?;
    api.create_namespace(&api.connections(1)[0], NS).await?;
    let idle = Idle::measure(&servers, &admin).await?;
    let mut peers = Peers::find(options.peers.as_deref())?;
    let mut rounds = Rounds::default();
    objects(options, &idle, &mut peers, &mut rounds).await?;
    directories(options, &api, &idle, &mut peers, &mut rounds).await?;
    let index = IndexClient::connect_lazy(options.stack.index.split(',').map(str::to_owned).collect(), None)?;
    let index = index.of_group(GroupId(1));
    let (mut together, mut beside) = (Together::default(), Beside::default());
    for round in 0..options.rounds {
        eprintln!("renames that meet, round {}", round + 1);
        together.round(&api, round, period).await?;
        beside.round((&api, &options.stack), &index, round, period).await?;
    }
    let at = chrono::Utc::now().format("%Y-%m-%d %H:%M").to_string();
    let mut figures = rounds.medians(&at);
    if let Some(page) = page.filter(|page| page.exists()) {
        figures.keep(&fs::read_to_string(page)?);
    }
    services(&figures, &peers, idle.processors, &mut report);
    show(&figures, &mut report);
    together.show(&mut report);
    beside.show(&mut report);
    let misses = misses::run(&api, &admin, period, &mut report).await?;
    let sql = in_sql(options, &admin, &mut report).await?;
    let measured = Measured { at, figures, together, beside, misses, sql };
    let are_held = bounds::judge(&measured, &mut report);
    Ok((report, are_held))
}

/// Processors that all servers together use for a while.
async fn use_of(servers: &Servers) -> Result<f64> {
    let before = servers.used()?;
    tokio::time::sleep(IDLE_LASTED).await;
    let used = servers.used()?.into_iter().zip(before);
    Ok(used.map(|(after, before)| after.saturating_sub(before).div_duration_f64(IDLE_LASTED)).sum())
}

/// Mantle's servers without clients.
struct Idle<'a> {
    servers: &'a Servers,
    admin: &'a Session,
    /// What all of them use.
    processors: f64,
}

impl<'a> Idle<'a> {
    async fn measure(servers: &'a Servers, admin: &'a Session) -> Result<Self> {
        Ok(Self { servers, admin, processors: use_of(servers).await? })
    }

    /// Lets the servers end what a turn or its preparation has left behind: the next turn would pay for it. Vacuums the
    /// MetaTable, since autovacuum would come at an unknown time.
    async fn reach(&self) -> Result<()> {
        self.admin.vacuum().await?;
        for _ in 0..IDLE_LOOKS_MAX {
            if use_of(self.servers).await? < self.processors + IDLE_TOLERANCE {
                return Ok(());
            }
        }
        eprintln!("  the servers are still busy");
        Ok(())
    }
}

/// Rounds of objects, at Mantle and two peers.
async fn objects(options: &Options, idle: &Idle<'_>, peers: &mut Peers, rounds: &mut Rounds) -> Result<()> {
    let (period, region) = (Duration::from_secs(options.seconds), options.stack.region.as_str());
    let ways = [None, Some(MINIO), Some(GARAGE)];
    for (round, at) in rotation(options.rounds, ways.len()) {
        idle.reach().await?;
        if let Some(peer) = ways[at] {
            let work = async |installed: &Installed, servers: &Servers| {
                let service = objects::Service::new(peer.name, servers, &installed.credentials()?, region)?;
                service.round(round, period, rounds).await
            };
            peers.round(peer, work).await?;
            continue;
        }
        eprintln!("objects over S3, round {}\n  {MANTLE}", round + 1);
        let credentials = Credentials {
            url: options.stack.url.clone(),
            access_key: options.stack.access_key.clone(),
            secret_key: options.stack.secret_key.clone(),
        };
        objects::Service::new(MANTLE, idle.servers, &credentials, region)?.round(round, period, rounds).await?;
    }
    Ok(())
}

/// Rounds of directories, at Mantle and HDFS.
async fn directories(
    options: &Options,
    api: &Api<'_>,
    idle: &Idle<'_>,
    peers: &mut Peers,
    rounds: &mut Rounds,
) -> Result<()> {
    let period = Duration::from_secs(options.seconds);
    eprintln!("directories to list");
    directories::prepare(api).await?;
    for (round, at) in rotation(options.rounds, 2) {
        idle.reach().await?;
        if at == 0 {
            eprintln!("directories over REST, round {}\n  {MANTLE}", round + 1);
            directories::round(api, round, period, rounds).await?;
            continue;
        }
        let made = options.hdfs_directories;
        let work = async |installed: &Installed, servers: &Servers| hdfs::round(installed, servers, made, rounds).await;
        peers.round(HDFS, work).await?;
    }
    Ok(())
}

/// What acknowledgements mean, and what is not measured.
fn services(figures: &Figures, peers: &Peers, idle: f64, report: &mut Report) {
    report.heading("Services, and what an acknowledgement means");
    let mantle = "object: its bytes and its row are flushed. Directory: PostgreSQL's commit is flushed, a majority of \
                  three IndexNodes has flushed the change, and every replica serves it; a rename flushes its \
                  preparation there before";
    let mut rows = vec![[MANTLE.to_owned(), mantle.to_owned()]];
    rows.extend([MINIO, GARAGE, HDFS].map(|peer| [peer.name.to_owned(), peer.promise.to_owned()]));
    report.table("service | an acknowledgement means", &rows);
    report.paragraph(&format!(
        "Mantle's servers without clients use {} % of a processor, which is part of the processor times below and \
         shows with one client. Peers start with new data in each round, and are warmed before they are measured.",
        short(idle * 100.0),
    ));
    let unmeasured: Vec<_> =
        [MINIO, GARAGE, HDFS].into_iter().filter(|peer| !peers.installed.iter().any(|i| i.peer == *peer)).collect();
    for text in &peers.left_out {
        report.paragraph(text);
    }
    for peer in unmeasured {
        let kept =
            if figures.has(peer.name) { "its figures are of an earlier run, see their date" } else { "no figures" };
        report.paragraph(&format!("{} was not measured in this run (`PEERS`): {kept}.", peer.name));
    }
}

fn show(figures: &Figures, report: &mut Report) {
    let is_object = |operation: &str| objects::OPERATIONS.contains(&operation);
    report.heading("Objects over S3");
    report.paragraph(
        "Objects of 1 KiB, keys in ten levels of directories, 32 leaf directories. LIST: a page of 100 keys of a \
         leaf, with delimiter. All services are called by the same client: kept connections of hyper on one thread, \
         signatures in headers (Signature Version 4) with the digest of the body. CPU: µs of processor time a \
         request, of each server with its children, and of the client.",
    );
    figures.table(report, is_object);
    report.heading("Directories");
    report.paragraph(
        "Paths have ten levels. Mantle is called over REST by the client above; HDFS by its own client in Java (four \
         connections, 8,000 directories and files for 32 clients, 1,000 for one, after a warm-up of the same size), \
         whose stats are of files. A listing reads all entries: over REST in pages of 1,000, directories; in HDFS \
         half of them files.",
    );
    figures.table(report, |operation| !is_object(operation));
    report.heading("PostgreSQL's processor time, by kind of process");
    report.paragraph(
        "µs a request of the tables above, in the order in which the phases began. A phase also pays for what earlier \
         ones left behind. Sessions serve the gateway, walsenders the IndexNodes. The postmaster is among the others. \
         Of a process that has ended the kind is not known: nearly all are workers of autovacuum. Medians, so the \
         parts need not add up to a sum.",
    );
    figures.table_of_kinds(report);
}

/// Changes in SQL beside the textbook.
async fn in_sql(options: &Options, admin: &Session, report: &mut Report) -> Result<Vec<Rates>> {
    report.heading("In SQL, beside a textbook");
    let config: tokio_postgres::Config = options.stack.database.parse()?;
    let role = config.get_user().context("no role in the database's URL")?;
    let sql = contention::against_textbook(&options.stack.database, role, admin, NS, SQL_TURN).await?;
    report.paragraph(
        "As in `make bench ONLY=contention`: direct sessions, one change a call, each session in directories of its \
         own, three turns each. The textbook (baseline) checks nothing and tells no index.",
    );
    let row = |rates: &Rates| {
        let Rates { verb, sessions, mantle, textbook } = rates;
        let [m, t] = [mantle, textbook].map(|rate| count(rate.round() as u64));
        [(*verb).to_owned(), sessions.to_string(), m, t, short(mantle / textbook)]
    };
    report.table(
        "change | sessions | Mantle, a second | textbook, a second | ratio",
        &sql.iter().map(row).collect::<Vec<_>>(),
    );
    Ok(sql)
}
