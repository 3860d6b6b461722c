//! Objects over S3 of two gateways on one database: one keeps the bytes in a folder of files, the other in a volume. They take
//! turns.
//!
//! - `cold`: reads of bytes that are in no cache of the kernel
//! - `calls`: system calls and flushes an object
//! - `churn`: puts and deletes in a volume that is nearly full
//! - `minio`: puts beside another service

mod calls;
mod churn;
mod cold;
mod minio;

use std::{cell::RefCell, sync::LazyLock, time::Duration};

use anyhow::{Context, Result, bail};
use rand::Rng;

use super::{
    Bench, rotation,
    s3::{Measured, Service, services},
};
use crate::{
    bounds::Bounds,
    cpu::Servers,
    report::{Report, short},
};

const KIB: usize = 1 << 10;
const SIZES: [(&str, usize); 6] = [
    ("1 KiB", KIB),
    ("4 KiB", 4 * KIB),
    ("8 KiB", 8 * KIB),
    ("64 KiB", 64 * KIB),
    ("512 KiB", 512 * KIB),
    ("1 MiB", 1024 * KIB),
];
const CONNECTIONS: [usize; 3] = [1, 20, 100];
/// Connections of the ratios that have bounds.
const MANY: usize = 20;
const TURNS: u32 = 2;
/// Most bytes that a turn puts.
const TURN_BYTES: usize = 256 << 20;
const NAMES: [&str; 2] = ["files", "volume"];

/// Bounds on puts into the volume, beside files: size, and least ratio.
const PUT_RATIOS_MIN: [(usize, f64); 4] = [(KIB, 2.0), (4 * KIB, 2.0), (8 * KIB, 1.6), (1024 * KIB, 0.9)];
const GET_RATIO_MIN: f64 = 1.0;
const DELETE_RATIO_MIN: f64 = 1.0;

/// Requests a second of the second service to those of the first.
pub(super) struct Ratio {
    operation: &'static str,
    size: &'static str,
    bytes: usize,
    connections: usize,
    ratio: f64,
}

/// Measures; answers whether the bounds held.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<bool> {
    report.heading("Objects over S3, in files and in a volume");
    let mut services = services(bench)?;
    let [files, volume] = &mut services[..] else { bail!("--peer names the gateway with the volume") };
    // Both use the same PostgreSQL and index.
    volume.processes = Servers::parse(&bench.options.stack.processes)?;
    files.s3.create_bucket(&files.bucket).await?;
    report.paragraph(
        "Presigned requests over kept connections, new keys in one directory, random bytes. Milliseconds; CPU: processor time a request \
         of each process with its children, in milliseconds. The client has the same processors. The gateways have the same database \
         and take turns. Both flush bytes and metadata before they answer. Reads find the bytes in the kernel's cache.",
    );
    let (services, mut bounds) = ([&*files, &*volume], Bounds::default());
    let ratios = compare(bench, report, services, NAMES, &SIZES).await?;
    judge(&ratios, &mut bounds);
    cold::run(bench, report, services, &mut bounds).await?;
    calls::run(report, services).await?;
    churn::run(bench, report, &mut bounds).await?;
    minio::run(bench, report, services[1], &mut bounds).await?;
    report.heading("Bounds");
    report.paragraph(&format!(
        "Ratios of the volume to files, {MANY} connections, unless it says otherwise. A ratio to MinIO needs its figure of this run \
         (`PEERS`). The bounds on the store alone, without gateway and PostgreSQL, are on the page of `make bench ONLY=volumes`.",
    ));
    Ok(bounds.judge(report))
}

fn judge(ratios: &[Ratio], bounds: &mut Bounds) {
    let many: Vec<_> = ratios.iter().filter(|ratio| ratio.connections == MANY).collect();
    for Ratio { operation, size, bytes, ratio, .. } in many {
        let least = match *operation {
            "PUT" => PUT_RATIOS_MIN.iter().find(|(of, _)| of == bytes).map(|(_, least)| *least),
            "GET" => Some(GET_RATIO_MIN),
            _ => Some(DELETE_RATIO_MIN),
        };
        if let Some(least) = least {
            bounds.least(format!("{operation} of {size}"), least, *ratio);
        }
    }
}

/// Random bytes of the largest size.
fn content() -> &'static [u8] {
    static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| rand::rng().random_iter().take(1024 * KIB).collect());
    &CONTENT
}

/// A table of both services, by size and connections. `names`: of what they compare.
pub(super) async fn compare(
    bench: &Bench,
    report: &mut Report,
    services: [&Service; 2],
    [first, second]: [&str; 2],
    sizes: &[(&'static str, usize)],
) -> Result<Vec<Ratio>> {
    let body = content();
    let (mut table, mut ratios) = (Vec::new(), Vec::new());
    for &(size, bytes) in sizes {
        for connections in CONNECTIONS {
            let measured = turns(bench, services, &body[..bytes], connections).await?;
            for (operation, of) in ["PUT", "GET", "DELETE"].into_iter().zip(&measured) {
                let ratio = of[1].rate() / of[0].rate();
                ratios.push(Ratio { operation, size, bytes, connections, ratio });
                table.push(row([operation, size, &connections.to_string()], services, of));
            }
        }
    }
    let headings = format!(
        "operation | size | connections | {first} a second | {second} a second | {second} to {first} | {first} p50 | {first} p99 | \
         {second} p50 | {second} p99 | CPU of {first} | CPU of {second}"
    );
    report.table(&headings, &table);
    Ok(ratios)
}

fn row(cells: [&str; 3], services: [&Service; 2], [first, second]: &[Measured; 2]) -> [String; 12] {
    let [operation, size, connections] = cells.map(str::to_owned);
    let ratio = short(second.rate() / first.rate());
    let ([p50, p99], [second_p50, second_p99]) = (first.sample.cells(), second.sample.cells());
    let [cpu, second_cpu] = [first.cpu_cell(services[0]), second.cpu_cell(services[1])];
    let [rate, second_rate] = [first.rate(), second.rate()].map(short);
    [operation, size, connections, rate, second_rate, ratio, p50, p99, second_p50, second_p99, cpu, second_cpu]
}

/// Puts, gets and deletes of both services.
async fn turns(
    bench: &Bench,
    services: [&Service; 2],
    body: &'static [u8],
    connections: usize,
) -> Result<[[Measured; 2]; 3]> {
    let mut measured: [[Measured; 2]; 3] = Default::default();
    let length = (bench.period / 2, (TURN_BYTES / body.len() / connections).max(1));
    // As many reads and deletes as puts.
    let all = |rounds: usize| (Duration::from_secs(3600), rounds);
    for (turn, at) in rotation(TURNS, services.len()) {
        let service = services[at];
        let key = |client: usize, round: usize| {
            service.path(&format!("{}/{}/{connections}-{turn}-{client}-{round}", service.name, body.len()))
        };
        let counts = RefCell::new(vec![0; connections]);
        let put = |client: usize, round: usize| {
            counts.borrow_mut()[client] = round + 1;
            let path = key(client, round);
            async move { service.s3.put(&path, None, body).await.map(drop) }
        };
        service.measure(&mut measured[0][at], connections, length, put).await?;
        let rounds = counts.borrow().iter().copied().min().context("no client")?;
        let get = |client: usize, round: usize| {
            let path = key(client, round);
            async move {
                let read = service.s3.get(&path).await?;
                if read == body.len() { Ok(()) } else { bail!("{path} has {read} bytes") }
            }
        };
        service.measure(&mut measured[1][at], connections, all(rounds), get).await?;
        let delete = |client: usize, round: usize| {
            let path = key(client, round);
            async move { service.s3.delete(&path).await }
        };
        service.measure(&mut measured[2][at], connections, all(rounds), delete).await?;
        // What is left is deleted without being measured.
        for (client, count) in counts.into_inner().into_iter().enumerate() {
            for round in rounds..count {
                service.s3.delete(&key(client, round)).await?;
            }
        }
    }
    Ok(measured)
}
