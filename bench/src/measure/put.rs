//! Puts, gets and deletes over S3 of two gateways on one database: one keeps the bytes in a folder of files, the other in a volume.
//! They take turns.

use std::{cell::RefCell, time::Duration};

use anyhow::{Context, Result, bail};
use rand::Rng;

use super::{
    Bench, rotation,
    s3::{Measured, Service, services},
};
use crate::report::{Report, short};

const SIZES: [(&str, usize); 5] =
    [("1 KiB", 1 << 10), ("8 KiB", 8 << 10), ("64 KiB", 64 << 10), ("512 KiB", 512 << 10), ("1 MiB", 1 << 20)];
const CONNECTIONS: [usize; 3] = [1, 20, 100];
const TURNS: u32 = 2;
/// Most bytes that a turn puts.
const TURN_BYTES: usize = 256 << 20;

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Objects over S3, in files and in a volume");
    let services = services(bench)?;
    let [files, volume] = &services[..] else { bail!("--peer names the gateway with the volume") };
    files.s3.create_bucket(&files.bucket).await?;
    report.paragraph(
        "Presigned requests over kept connections, new keys in one directory, random bytes. Milliseconds; CPU: processor time a request \
         of each process with its children, in milliseconds. The client has the same processors. The gateways have the same database \
         and take turns. Both flush bytes and metadata before they answer.",
    );
    compare(bench, report, [files, volume], ["files", "volume"], &SIZES).await
}

/// A table of both services, by size and connections. `names`: of what they compare.
pub(super) async fn compare(
    bench: &Bench,
    report: &mut Report,
    services: [&Service; 2],
    [first, second]: [&str; 2],
    sizes: &[(&str, usize)],
) -> Result<()> {
    let body: &'static [u8] = rand::rng().random_iter().take(1 << 20).collect::<Vec<u8>>().leak();
    let mut table = Vec::new();
    for &(size, bytes) in sizes {
        for connections in CONNECTIONS {
            let measured = turns(bench, services, &body[..bytes], connections).await?;
            for (operation, of) in ["PUT", "GET", "DELETE"].into_iter().zip(&measured) {
                table.push(row([operation, size, &connections.to_string()], services, of));
            }
        }
    }
    let headings = format!(
        "operation | size | connections | {first} a second | {second} a second | {second} to {first} | {first} p50 | {first} p99 | \
         {second} p50 | {second} p99 | CPU of {first} | CPU of {second}"
    );
    report.table(&headings, &table);
    Ok(())
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
