//! Small objects inside PostgreSQL, beside the same objects in a volume: puts, gets and deletes over S3 of two gateways on one
//! database, in turns; what an object writes; and mkdirs beside puts at a pace, whose bytes the index's walsender reads too.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rand::Rng;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    Bench,
    put::compare,
    rotation, run_clients, run_rounds,
    s3::{Service, services},
};
use crate::{
    cpu::{Server, Servers},
    report::{Report, count, short},
    sample::{Sample, median},
    sql::{BatchOfPuts, Session},
};

const SIZES: [(&str, usize); 2] = [("1 KiB", 1 << 10), ("4 KiB", 4 << 10)];
const NAMES: [&str; 2] = ["volume", "inline"];
/// Objects whose WAL is counted, and the connections that put them.
const COUNTED: usize = 4_000;
const COUNTED_CONNECTIONS: usize = 20;
/// Puts a second beside mkdirs: so many sessions with so many elements a batch.
const PUTS_A_SECOND: usize = 5_000;
const SESSIONS: usize = 4;
const ELEMENTS: usize = 25;
const MKDIR_CLIENTS: [usize; 2] = [1, 16];
const TURNS: u32 = 3;
const IDS: i64 = 16_000_000;

/// What is put beside mkdirs: the size, and whether its bytes are in PostgreSQL.
const BESIDE: [(&str, Option<(usize, bool)>); 5] = [
    ("nothing (baseline)", None),
    ("1 KiB elsewhere", Some((1 << 10, false))),
    ("1 KiB inline", Some((1 << 10, true))),
    ("4 KiB elsewhere", Some((4 << 10, false))),
    ("4 KiB inline", Some((4 << 10, true))),
];

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Objects over S3, in a volume and inside PostgreSQL");
    let mut services = services(bench)?;
    let [volume, inline] = &mut services[..] else { bail!("--peer names the gateway that keeps small objects inline") };
    // Both use the same processes.
    inline.processes = Servers::parse(&bench.options.stack.processes)?;
    volume.s3.create_bucket(&volume.bucket).await?;
    report.paragraph(
        "Presigned requests over kept connections, new keys in one directory, random bytes. Milliseconds; CPU: processor time a \
         request of each process with its children, in milliseconds. The client has the same processors. Two gateways of one \
         database take turns; each has a volume, and one keeps objects of up to 4 KiB inside PostgreSQL.",
    );
    let (volume, inline) = (&*volume, &*inline);
    compare(bench, report, [volume, inline], NAMES, &SIZES).await?;
    written(bench, report, [volume, inline]).await?;
    mkdirs(bench, report).await
}

/// What an object writes to the WAL when it is put, overwritten and deleted, and takes on disk.
async fn written(bench: &Bench, report: &mut Report, services: [&Service; 2]) -> Result<()> {
    report.heading("What an object writes");
    let admin = Session::connect(&bench.options.stack.admin).await?;
    let body: &'static [u8] = rand::rng().random_iter().take(4 << 10).collect::<Vec<u8>>().leak();
    let mut table = Vec::new();
    for (size, bytes) in SIZES {
        for (service, name) in services.into_iter().zip(NAMES) {
            let key = |client: usize, round: usize| service.path(&format!("wal-{name}/{bytes}/{client}-{round}"));
            let put = |client: usize, round: usize| {
                let path = key(client, round);
                async move { service.s3.put(&path, None, &body[..bytes]).await.map(drop) }
            };
            let delete = |client: usize, round: usize| {
                let path = key(client, round);
                async move { service.s3.delete(&path).await }
            };
            admin.vacuum_written().await?;
            let before = admin.inline_on_disk().await?;
            let puts = counted(&admin, put).await?;
            let on_disk = (admin.inline_on_disk().await? - before) / COUNTED as i64;
            let overwrites = counted(&admin, put).await?;
            let deletes = counted(&admin, delete).await?;
            let [puts, overwrites, deletes] = [puts, overwrites, deletes].map(|bytes| count(bytes as u64));
            table.push([size.to_owned(), name.to_owned(), puts, overwrites, deletes, count(on_disk.max(0) as u64)]);
        }
    }
    report.paragraph(&format!(
        "Bytes of WAL an object: {COUNTED} objects by {COUNTED_CONNECTIONS} connections, after a vacuum and a checkpoint, so pages \
         that are written whole are included. On disk: in `mantle.inline` with its index, before overwrites. The \
         volume's own bytes are not in the WAL.",
    ));
    report.table("size | bytes in | put: WAL | overwrite: WAL | delete: WAL | on disk in PostgreSQL", &table);
    Ok(())
}

/// Bytes of WAL for each of [`COUNTED`] calls.
async fn counted<F: Future<Output = Result<()>>>(admin: &Session, call: impl Fn(usize, usize) -> F) -> Result<i64> {
    admin.checkpoint().await?;
    let before = admin.wal_bytes().await?;
    run_rounds(COUNTED_CONNECTIONS, Duration::from_secs(3600), COUNTED / COUNTED_CONNECTIONS, call).await?;
    Ok((admin.wal_bytes().await? - before) / COUNTED as i64)
}

/// What mkdirs did beside one kind of puts.
#[derive(Default)]
struct Beside {
    sample: Sample,
    rates: Vec<f64>,
    puts: Vec<f64>,
    /// Processors that PostgreSQL, and its walsenders, use.
    postgresql: Vec<f64>,
    walsenders: Vec<f64>,
}

/// The sessions that put at a pace, and where.
struct Putting<'a> {
    sessions: &'a [Session],
    statements: &'a [tokio_postgres::Statement],
    ns: i64,
    pid: i64,
    next_id: &'a Cell<i64>,
}

impl Putting<'_> {
    /// Puts batches in all sessions, evenly in time, for ever. Counts the objects.
    async fn at_pace(&self, size: usize, bytes: Option<&[u8]>, made: &Cell<usize>) -> Result<()> {
        let sessions = (0..self.sessions.len()).map(|at| self.in_session(at, size, bytes, made));
        futures::future::try_join_all(sessions).await.map(drop)
    }

    async fn in_session(&self, at: usize, size: usize, bytes: Option<&[u8]>, made: &Cell<usize>) -> Result<()> {
        let mut ticks = interval(Duration::from_secs(1) * (SESSIONS * ELEMENTS) as u32 / PUTS_A_SECOND as u32);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Self { ns, pid, .. } = *self;
        loop {
            ticks.tick().await;
            let first_id = self.next_id.replace(self.next_id.get() + ELEMENTS as i64);
            let batch = BatchOfPuts { ns, pid, first_id, count: ELEMENTS, size, bytes };
            self.sessions[at].put_batch(&self.statements[at], &batch).await?;
            made.set(made.get() + ELEMENTS);
        }
    }
}

async fn mkdirs(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading(&format!("mkdir beside {} puts a second", count(PUTS_A_SECOND as u64)));
    let ns = format!("{}-mkdirs", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    for parent in ["puts", "mkdirs"] {
        bench.rest.mkdir(&ns, parent).await?;
    }
    let sessions = Session::several(&bench.options.stack.database, SESSIONS).await?;
    let mut statements = Vec::new();
    for session in &sessions {
        statements.push(session.prepare_batch().await?);
    }
    let ns_id = sessions[0].namespace(&ns).await?;
    let pid = sessions[0].child(ns_id, ns_id, "puts").await?;
    let next_id = Cell::new(sessions[0].allocate_ids(IDS).await?);
    let putting = Putting { sessions: &sessions, statements: &statements, ns: ns_id, pid, next_id: &next_id };
    let server = Servers::parse(&bench.options.stack.processes)?;
    let server = server.named("postgresql").context("MANTLE_PROCESSES names no postgresql")?;
    let mut table = Vec::new();
    for clients in MKDIR_CLIENTS {
        let mut measured: [Beside; BESIDE.len()] = Default::default();
        for (turn, at) in rotation(TURNS, BESIDE.len()) {
            let parent = format!("mkdirs/{clients}-{turn}-{at}");
            bench.rest.mkdir(&ns, &parent).await?;
            turn_of(bench, &putting, server, (&ns, &parent), clients, BESIDE[at].1, &mut measured[at]).await?;
        }
        let alone = measured[0].sample.p50_ms();
        for ((name, _), beside) in BESIDE.iter().zip(&measured) {
            let [p50, p99] = beside.sample.cells();
            let [rate, puts] = [&beside.rates, &beside.puts].map(|figures| count(median(figures) as u64));
            let [postgresql, walsenders] =
                [&beside.postgresql, &beside.walsenders].map(|figures| short(median(figures)));
            let ratio = short(beside.sample.p50_ms() / alone);
            table.push([clients.to_string(), (*name).to_owned(), puts, rate, p50, p99, ratio, postgresql, walsenders]);
        }
    }
    report.paragraph(
        "mkdirs over REST, acknowledged by the index, in one directory; milliseconds. Beside them four direct sessions put new \
         objects in batches of 25 as a gateway does, evenly in time. *Elsewhere*: the rows have a locator, and no bytes come along. \
         The last two columns are processors in use. In turns; the median of three.",
    );
    let headings =
        "mkdir clients | puts beside | puts/s | mkdirs/s | p50 | p99 | p50 to baseline | PostgreSQL | walsenders";
    report.table(headings, &table);
    Ok(())
}

async fn turn_of(
    bench: &Bench,
    putting: &Putting<'_>,
    server: Server,
    (ns, parent): (&str, &str),
    clients: usize,
    puts: Option<(usize, bool)>,
    beside: &mut Beside,
) -> Result<()> {
    let body: Vec<u8> = rand::rng().random_iter().take(puts.map_or(0, |(size, _)| size)).collect();
    let rests: Vec<_> = (0..clients).map(|_| bench.rest.another()).collect();
    let made = Cell::new(0);
    let (started, before) = (Instant::now(), used(server)?);
    let making = run_clients(clients, bench.period, |client, round| {
        let (rest, path) = (&rests[client], format!("{parent}/d{client}-{round}"));
        async move { rest.mkdir(ns, &path).await }
    });
    let (rate, sample) = match puts {
        None => making.await?,
        Some((size, is_inline)) => tokio::select! {
            done = making => done?,
            failed = putting.at_pace(size, is_inline.then_some(&body[..]), &made) => {
                failed?;
                bail!("the puts ended");
            }
        },
    };
    let seconds = started.elapsed().as_secs_f64();
    let after = used(server)?;
    beside.sample.merge(sample);
    beside.rates.push(rate);
    beside.puts.push(made.get() as f64 / seconds);
    beside.postgresql.push(after.0.saturating_sub(before.0).as_secs_f64() / seconds);
    beside.walsenders.push(after.1.saturating_sub(before.1).as_secs_f64() / seconds);
    Ok(())
}

/// Processor time of the server with all its children, and of its living walsenders.
fn used(server: Server) -> Result<(Duration, Duration)> {
    let processes = server.processes()?;
    let walsenders = processes.living.iter().filter(|child| child.title.contains("walsender"));
    Ok((crate::cpu::used(&[server])?, walsenders.map(|child| child.used).sum()))
}
