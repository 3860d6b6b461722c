//! `mantle-bench volume-size`: a volume of many small objects. It shows how the rate of puts changes as the volume fills, what the
//! volume takes on disk and in memory, and how long a gateway takes to start with it or to take it over from another gateway. A
//! gateway derives the free blocks from the rows when it starts, so these times and the memory grow with the number of objects.
//!
//! - `load`: puts the objects
//! - `space`: bytes on disk, memory
//! - `starts`: starts of a gateway
//! - `takeover`: take-overs by another gateway
//! - `scrub`: the check of all bytes
//! - `place`: a gateway that has the volume, or waits for it
//! - `objects`: puts and reads of numbered objects

mod load;
mod objects;
mod place;
mod scrub;
mod space;
mod starts;
mod takeover;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;

use self::{
    load::Load,
    objects::{OBJECT_BYTES, Objects},
    place::{Place, Programs},
};
use crate::{
    cpu::{Server, Servers},
    machine,
    report::{Report, count, short},
    signed_s3::Credentials,
    sql::Session,
    stack::Stack,
    system_calls::{self, Counting, family},
};

const MIB: f64 = 1_048_576.0;
/// Objects that each connection puts while system calls are counted.
const COUNTED: u64 = 100;
/// Objects that are read and compared at the end.
const COMPARED: u64 = 2_000;

/// Measure a volume of many small objects
#[derive(clap::Args)]
pub struct Options {
    /// Objects of 1 KiB
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    objects: u64,
    /// Connections that put them
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: usize,
    /// Starts of each kind, and take-overs
    #[arg(long, env = "MANTLE_BENCH_TURNS", value_name = "N", default_value_t = 3)]
    turns: u32,
    /// Seconds of the check of all bytes, at most
    #[arg(long, value_name = "N", default_value_t = 120)]
    scrub_seconds: u64,
    /// The folder of the volume
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Two gateways that have this folder: settings, URL and URL of the probes of each, `FILE,url,probes`
    #[arg(long, value_name = "GATEWAY", required = true)]
    gateway: Vec<String>,
    /// Where their output goes
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// The account that runs them, `uid:gid`; this process's own unless given
    #[arg(long, value_name = "IDS")]
    account: Option<String>,
    /// The programs `mantle` and `mantle-gateway` are in this folder
    #[arg(long, value_name = "DIR")]
    programs: PathBuf,
    #[command(flatten)]
    stack: Stack,
}

/// What all parts of the bench need.
struct Bench<'a> {
    options: &'a Options,
    admin: Session,
    programs: Programs,
    /// Numbers of the objects that were acknowledged while a SIGKILL came. They are in the same directories as those of the load.
    later: Vec<u64>,
    /// Number of the next object.
    next: u64,
}

/// Measures; answers the report.
pub async fn run(options: &Options) -> Result<Report> {
    ensure!(options.objects > 0 && options.connections > 0 && options.turns > 0, "nothing to do");
    let admin = Session::connect(&options.stack.admin).await?;
    let programs = Programs::new(&options.programs, options.account.as_deref(), &options.log)?;
    let [first, second] = places(options)?;
    let running = programs.start(&first)?;
    running.is_ready(&first).await?;
    running.has_leased(&first, 1.0).await?;
    let volume = admin.only_volume().await?;
    let mut facts = machine::facts(&admin).await?;
    facts.extend([
        format!("objects        {} of {OBJECT_BYTES} bytes (OBJECTS)", count(options.objects)),
        format!("connections    {} (--connections)", options.connections),
        format!("blocks         {} bytes (BLOCK_BYTES)", volume.block_bytes),
        format!("segments       {} MiB", (u64::from(volume.block_bytes) * volume.segment_blocks) >> 20),
        format!("turns          {} (--turns)", options.turns),
    ]);
    let mut report = Report::new(
        "Bench: a volume of many small objects",
        "Written by `make bench ONLY=volume-size` (`mantle-bench volume-size`); do not edit. One machine runs everything: PostgreSQL, \
         PgBouncer, three index replicas, the gateways and the client. No bytes are inside PostgreSQL. The volume has the settings as \
         shipped, but for the size of its blocks where that is given, and grows as it fills.",
        &facts,
    );
    let mut bench = Bench { options, admin, programs, later: Vec::new(), next: options.objects };
    first.objects.make_bucket().await?;
    let empty = running.memory()?;
    let load = Load::run(&bench, &first, &running, &mut report).await?;
    let loaded = running.memory()?;
    space::on_disk(&bench, (&first, &running), &load, &mut report).await?;
    calls(&bench, &first, running.pid(), &mut report).await?;
    let (running, started) = starts::run(&mut bench, &first, running, &mut report).await?;
    let running = takeover::run(&mut bench, [&first, &second], running, &mut report).await?;
    space::in_memory(&bench, [empty, loaded, started], &mut report).await?;
    scrub::run(&bench, &mut report).await?;
    let place = if running.is_of(&first) { &first } else { &second };
    compare(&bench, place, &mut report).await?;
    running.end(Signal::TERM).await?;
    Ok(report)
}

fn places(options: &Options) -> Result<[Place; 2]> {
    let place = |given: &String| {
        let parts: Vec<_> = given.split(',').collect();
        ensure!(parts.len() == 3, "--gateway is FILE,url,probes");
        let of = Credentials {
            url: parts[1].to_owned(),
            access_key: options.stack.access_key.clone(),
            secret_key: options.stack.secret_key.clone(),
        };
        Place::new(parts[0], parts[2], Objects::new(&of, &options.stack.region, options.connections)?)
    };
    let places: Vec<Place> = options.gateway.iter().map(place).collect::<Result<_>>()?;
    places.try_into().map_err(|_| anyhow!("two gateways are needed"))
}

/// System calls and flushes of an object, in the full volume.
async fn calls(bench: &Bench<'_>, place: &Place, gateway: i32, report: &mut Report) -> Result<()> {
    report.heading("System calls a put");
    if let Some(why) = system_calls::why_not(gateway).await {
        report.paragraph(&format!("Not counted: {why}."));
        return Ok(());
    }
    let servers = Servers::parse(&bench.options.stack.processes)?;
    let postgresql = servers.named("postgresql").map(Server::pid).context("no PostgreSQL")?;
    let mut table = Vec::new();
    for (name, pids) in [("gateway", vec![gateway]), ("PostgreSQL", family(postgresql)?)] {
        let counting = Counting::begin(&pids).await?;
        place.objects.put_some(&format!("calls-{name}"), COUNTED).await?;
        let [all, flushes, most] = counting.end().await?.cells(COUNTED * bench.options.connections as u64);
        table.push([name.to_owned(), all, flushes, most]);
    }
    report.paragraph(&format!(
        "{COUNTED} puts of each of {} connections after the load, each into a directory of its own. The calls of all threads of the \
         gateway are counted, then, with as many puts, those of all processes of PostgreSQL. strace stops a process at each call, so \
         more objects share a flush than without it. Flushes: fsync and fdatasync.",
        bench.options.connections,
    ));
    report.table("process | system calls | flushes | most frequent", &table);
    Ok(())
}

/// Reads some objects of the load, and all that were acknowledged while a SIGKILL came, and compares their bytes.
async fn compare(bench: &Bench<'_>, place: &Place, report: &mut Report) -> Result<()> {
    report.heading("Bytes that were compared");
    let objects = bench.options.objects;
    let step = (objects / COMPARED).max(1) as usize;
    let numbers: Vec<u64> = (0..objects).step_by(step).chain(bench.later.iter().copied()).collect();
    let started = Instant::now();
    place.objects.compare(&numbers).await?;
    report.paragraph(&format!(
        "At the end {} objects were read and compared: one of each {} of the load, and all {} that were acknowledged while a SIGKILL \
         came. None was missing or different. It took {} s.",
        count(numbers.len() as u64),
        count(step as u64),
        count(bench.later.len() as u64),
        short(started.elapsed().as_secs_f64()),
    ));
    Ok(())
}

/// A duration in seconds, as a cell.
fn seconds(duration: Duration) -> String {
    short(duration.as_secs_f64())
}
