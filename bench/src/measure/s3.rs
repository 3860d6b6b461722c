//! Objects over S3: puts, gets, uploads in parts and copies, by size and connections; the processor time of each process;
//! and another S3 service beside, where one is given. The two take turns.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::Rng;

use super::{Bench, rotation, run_rounds};
use crate::{
    cpu::{Server, Servers},
    report::{Report, count, short},
    s3::S3,
    sample::Sample,
};

const SIZES: [(&str, usize); 3] = [("1 KB", 1 << 10), ("64 KB", 64 << 10), ("1 MB", 1 << 20)];
const CONNECTIONS: [usize; 3] = [1, 8, 64];
const TURNS: u32 = 2;
/// Most bytes that a turn puts.
const TURN_BYTES: usize = 256 << 20;
/// Objects that gets read in turn.
const READ_KEYS: usize = 64;
const PART_BYTES: usize = 16 << 20;
/// Parts of an upload of 1 GiB.
const PARTS: usize = 64;
const UPLOAD_CONNECTIONS: [usize; 2] = [1, 8];
/// Bytes to copy in parts of 16 MiB, and how many copies are made of each size.
const COPIES: [(&str, usize, usize); 2] = [("1 B", 0, 100), ("5 GiB", 320, 1)];

/// Directories of a key, one below the other, and those who put and delete in the last.
const CHAIN_LEVELS: usize = 10;
const CHAIN_CONNECTIONS: usize = 16;

/// A service that is measured.
pub(super) struct Service {
    pub(super) name: String,
    pub(super) s3: S3,
    pub(super) processes: Servers,
    pub(super) bucket: String,
}

/// What one service did in all its turns.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) sample: Sample,
    elapsed: Duration,
    /// By process.
    cpu: Vec<Duration>,
}

impl Measured {
    pub(super) fn rate(&self) -> f64 {
        self.sample.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Milliseconds of processor time a request, by process.
    pub(super) fn cpu_cell(&self, service: &Service) -> String {
        let each = |(used, name): (&Duration, &str)| {
            format!("{name} {}", short(used.as_secs_f64() * 1e3 / self.sample.len() as f64))
        };
        self.cpu.iter().zip(service.processes.names()).map(each).collect::<Vec<_>>().join(", ")
    }
}

impl Service {
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}/{key}", self.bucket)
    }

    /// Calls for a turn, and adds what they took.
    pub(super) async fn measure<F: Future<Output = Result<()>>>(
        &self,
        measured: &mut Measured,
        connections: usize,
        (period, calls): (Duration, usize),
        call: impl Fn(usize, usize) -> F,
    ) -> Result<()> {
        let (before, started) = (self.processes.used()?, Instant::now());
        let (_, sample) = run_rounds(connections, period, calls, call).await?;
        measured.elapsed += started.elapsed();
        measured.sample.merge(sample);
        measured.cpu.resize(before.len(), Duration::ZERO);
        for ((total, before), after) in measured.cpu.iter_mut().zip(before).zip(self.processes.used()?) {
            *total += after.saturating_sub(before);
        }
        Ok(())
    }

    /// Uploads `parts` parts, some at a time; answers how long completing took.
    async fn upload(&self, key: &str, parts: usize, connections: usize, part: &'static [u8]) -> Result<Duration> {
        let path = self.path(key);
        let upload = self.s3.create_upload(&path).await?;
        let (path, upload) = (path.as_str(), upload.as_str());
        let mut etags = Vec::with_capacity(parts);
        for some in (1..=parts).collect::<Vec<_>>().chunks(connections) {
            let puts = some.iter().map(|number| self.s3.put(path, Some((upload, *number)), part));
            etags.extend(futures::future::try_join_all(puts).await?);
        }
        let started = Instant::now();
        self.s3.complete_upload(path, upload, &etags).await?;
        Ok(started.elapsed())
    }
}

pub(super) fn services(bench: &Bench) -> Result<Vec<Service>> {
    let options = &bench.options;
    let mut services = vec![Service {
        name: "Mantle".into(),
        s3: S3::new(&options.s3_endpoint, &options.stack.region, &options.stack.access_key, &options.stack.secret_key)?,
        processes: Servers::parse(&options.stack.processes)?,
        bucket: format!("{}-s3", bench.ns),
    }];
    if let Some(peer) = &options.peer {
        let [name, url, pid] = peer.split(',').collect::<Vec<_>>()[..] else {
            bail!("--peer must be name,url,pid; its keys are in MANTLE_PEER_ACCESS_KEY and MANTLE_PEER_SECRET_KEY");
        };
        services.push(Service {
            name: name.into(),
            s3: S3::new(url, &options.stack.region, &options.peer_access_key, &options.peer_secret_key)?,
            processes: Servers::one(name, Server::of(pid.parse()?)),
            bucket: format!("{}-s3", bench.ns),
        });
    }
    Ok(services)
}

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Objects over S3");
    let services = services(bench)?;
    for service in &services {
        service.s3.create_bucket(&service.bucket).await?;
    }
    report.paragraph(
        "Presigned requests over kept connections, new keys in one directory, random bytes. Milliseconds; CPU: processor time a \
         request of each process with its children, in milliseconds. The client has the same processors. Services take turns. \
         Mantle flushes bytes and metadata before it answers.",
    );
    let body: &'static [u8] = rand::rng().random_iter().take(PART_BYTES).collect::<Vec<u8>>().leak();
    small(bench, &services, body, report).await?;
    chains(bench, &services, report).await?;
    in_parts(&services, body, report).await?;
    copies(&services, body, report).await
}

/// A row for each service, and the first one's rate to its own.
fn rows(cells: [&str; 3], services: &[Service], measured: &[Measured], rows: &mut Vec<[String; 9]>) {
    for (at, (service, of)) in services.iter().zip(measured).enumerate() {
        let [p50, p99] = of.sample.cells();
        let ratio = if at == 0 { "–".into() } else { short(measured[0].rate() / of.rate()) };
        let [operation, size, connections] = cells.map(str::to_owned);
        let name = service.name.clone();
        rows.push([operation, size, connections, name, short(of.rate()), ratio, p50, p99, of.cpu_cell(service)]);
    }
}

const HEADINGS: &str = "operation | size | connections | service | a second | Mantle to it | p50 | p99 | CPU";

async fn small(bench: &Bench, services: &[Service], body: &'static [u8], report: &mut Report) -> Result<()> {
    let mut table = Vec::new();
    for (size, bytes) in SIZES {
        let body = &body[..bytes];
        for service in services {
            for at in 0..READ_KEYS {
                service.s3.put(&service.path(&format!("read-{bytes}/{at}")), None, body).await?;
            }
        }
        for connections in CONNECTIONS {
            let (mut puts, mut gets) = (Vec::new(), Vec::new());
            puts.resize_with(services.len(), Measured::default);
            gets.resize_with(services.len(), Measured::default);
            let turn_length = (bench.period / 2, usize::MAX);
            let put_length = (bench.period / 2, TURN_BYTES / bytes / connections);
            for (turn, at) in rotation(TURNS, services.len()) {
                let service = &services[at];
                let put = |client: usize, round: usize| async move {
                    let key = format!("new-{bytes}/{connections}-{turn}-{client}-{round}");
                    service.s3.put(&service.path(&key), None, body).await.map(drop)
                };
                service.measure(&mut puts[at], connections, put_length, put).await?;
                let get = |client: usize, round: usize| async move {
                    let key = format!("read-{bytes}/{}", (client + round) % READ_KEYS);
                    let read = service.s3.get(&service.path(&key)).await?;
                    if read == bytes { Ok(()) } else { bail!("{key} has {read} bytes") }
                };
                service.measure(&mut gets[at], connections, turn_length, get).await?;
            }
            let number = connections.to_string();
            rows(["PutObject", size, &number], services, &puts, &mut table);
            rows(["GetObject", size, &number], services, &gets, &mut table);
        }
    }
    report.table(HEADINGS, &table);
    Ok(())
}

/// Objects that come and go in one chain of directories. Where another object stays, the directories are never empty; where
/// none does, they are made and hidden again all the time.
async fn chains(bench: &Bench, services: &[Service], report: &mut Report) -> Result<()> {
    let mut table = Vec::new();
    for (what, stays) in [("another stays", true), ("none stays", false)] {
        let chain: String = (0..CHAIN_LEVELS).map(|level| format!("chain-{stays}-{level}/")).collect();
        let chain = chain.as_str();
        let mut measured = Vec::new();
        measured.resize_with(services.len(), Measured::default);
        for (turn, at) in rotation(TURNS, services.len()) {
            let service = &services[at];
            if stays {
                service.s3.put(&service.path(&format!("{chain}stays")), None, "").await?;
            }
            let pair = |client: usize, round: usize| async move {
                let path = service.path(&format!("{chain}{turn}-{client}-{round}"));
                service.s3.put(&path, None, "").await?;
                service.s3.delete(&path).await
            };
            service.measure(&mut measured[at], CHAIN_CONNECTIONS, (bench.period, usize::MAX), pair).await?;
        }
        rows(["put and delete", what, &CHAIN_CONNECTIONS.to_string()], services, &measured, &mut table);
    }
    report.paragraph(
        "An empty object is put and deleted again, all in one directory ten levels deep. Where another object stays in it, no \
         directory is ever empty. A row counts pairs.",
    );
    report.table(&HEADINGS.replace("size", "in the directory"), &table);
    Ok(())
}

async fn in_parts(services: &[Service], part: &'static [u8], report: &mut Report) -> Result<()> {
    let mut table = Vec::new();
    for connections in UPLOAD_CONNECTIONS {
        for service in services {
            let (before, started) = (service.processes.used()?, Instant::now());
            let completing = service.upload(&format!("parts-{connections}"), PARTS, connections, part).await?;
            let seconds = started.elapsed().as_secs_f64();
            let used = service.processes.used()?.into_iter().zip(before).zip(service.processes.names());
            let cpu = used
                .map(|((after, before), name)| format!("{name} {}", short(after.saturating_sub(before).as_secs_f64())));
            let mib = (PARTS * PART_BYTES) as f64 / f64::from(1 << 20);
            table.push([
                count(connections as u64),
                service.name.clone(),
                short(mib / seconds),
                short(completing.as_secs_f64() * 1e3),
                cpu.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    report.paragraph("An upload of 1 GiB in parts of 16 MiB. CPU: seconds of the whole upload.");
    report.table("connections | service | MiB a second | completing, ms | CPU", &table);
    Ok(())
}

async fn copies(services: &[Service], part: &'static [u8], report: &mut Report) -> Result<()> {
    let mut table = Vec::new();
    for (size, parts, calls) in COPIES {
        let mut measured = Vec::new();
        measured.resize_with(services.len(), Measured::default);
        for (at, service) in services.iter().enumerate() {
            let source = service.path(&format!("source-{parts}"));
            match parts {
                0 => drop(service.s3.put(&source, None, &part[..1]).await?),
                parts => drop(service.upload(&format!("source-{parts}"), parts, 4, part).await?),
            }
            let source = source.as_str();
            let copy = |_, round: usize| async move {
                service.s3.copy(source, &service.path(&format!("copy-{parts}/{round}"))).await
            };
            service.measure(&mut measured[at], 1, (Duration::MAX, calls), copy).await?;
        }
        rows(["CopyObject", size, "1"], services, &measured, &mut table);
    }
    report.table(HEADINGS, &table);
    Ok(())
}
