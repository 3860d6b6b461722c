//! Puts the objects, and shows how puts change as the volume fills.

use std::time::Duration;

use anyhow::Result;

use super::{
    Bench,
    objects::{LOAD, Puts},
    place::{Place, Running},
};
use crate::{
    cpu::{self, Server, Servers},
    disk::written_below,
    report::{Report, count, short},
};

/// Parts of the load that are shown.
const PARTS: u64 = 10;

/// What the load wrote, in bytes.
pub struct Load {
    /// By PostgreSQL.
    pub wal: f64,
    /// By the disk, for all processes.
    pub written: f64,
}

/// A part of the load.
struct Part {
    objects: u64,
    puts: Puts,
    /// Processor time.
    gateway: Duration,
    postgresql: Duration,
    /// Bytes that the disk wrote, for all processes.
    written: f64,
    wal: f64,
    /// Bytes of the volume's leased segments afterwards.
    leased: f64,
}

impl Part {
    fn rate(&self) -> f64 {
        self.objects as f64 / self.puts.elapsed.as_secs_f64()
    }

    /// Cells of a table. `until`: objects of this part and of those before it.
    fn row(&self, until: u64) -> [String; 10] {
        let each = |value: f64| short(value / self.objects as f64);
        let micros = |used: Duration| each(used.as_secs_f64() * 1e6);
        let [p50, p99] = self.puts.sample.cells();
        [
            count(until),
            count(self.rate().round() as u64),
            p50,
            p99,
            short(self.puts.sample.percentile_ms(1.0)),
            micros(self.gateway),
            micros(self.postgresql),
            each(self.written),
            each(self.wal),
            short(self.leased / f64::from(1 << 30)),
        ]
    }
}

impl Load {
    /// Puts all objects of the load.
    pub async fn run(bench: &Bench<'_>, place: &Place, gateway: &Running, report: &mut Report) -> Result<Self> {
        report.heading("Puts, as the volume fills");
        let servers = Servers::parse(&bench.options.stack.processes)?;
        let used = |name: &str| servers.named(name).map_or(Ok(Duration::ZERO), |server| cpu::used(&[server]));
        let own = || cpu::used(&[Server::of(gateway.pid())]);
        let (objects, mut parts) = (bench.options.objects, Vec::new());
        for part in 0..PARTS {
            let numbers = objects * part / PARTS..objects * (part + 1) / PARTS;
            let count = numbers.end - numbers.start;
            if count == 0 {
                continue;
            }
            let (wal, bytes) = (bench.admin.wal_bytes().await?, written_below(&bench.options.folder)?);
            let (before, before_postgresql) = (own()?, used("postgresql")?);
            let puts = place.objects.put_all(LOAD, numbers).await?;
            parts.push(Part {
                objects: count,
                puts,
                gateway: own()? - before,
                postgresql: used("postgresql")?.saturating_sub(before_postgresql),
                written: written_below(&bench.options.folder)? - bytes,
                wal: (bench.admin.wal_bytes().await? - wal) as f64,
                leased: place.probes.volume_bytes("leased").await,
            });
        }
        show(&parts, report);
        let sum = |figure: fn(&Part) -> f64| -> f64 { parts.iter().map(figure).sum() };
        Ok(Self { wal: sum(|part| part.wal), written: sum(|part| part.written) })
    }
}

fn show(parts: &[Part], report: &mut Report) {
    report.paragraph(
        "Objects of 1 KiB of random bytes, over S3, kept connections, signatures in headers. Each connection puts into a directory of its \
         own until that has 1,000, then into the next one. So a part with fewer directories than connections uses fewer connections. Names \
         have 25 bytes. CPU: µs of processor time a put, of the gateway, and of PostgreSQL with its workers of autovacuum. Written: bytes \
         an object that the disk wrote for all processes, with the rows, their WAL, and the zeros that fill new segments. WAL: bytes an \
         object, with the pages that are written whole after a checkpoint.",
    );
    let mut until = 0;
    let rows: Vec<_> = parts
        .iter()
        .map(|part| {
            until += part.objects;
            part.row(until)
        })
        .collect();
    report.table(
        "objects | puts a second | p50 ms | p99 ms | longest ms | gateway's CPU | PostgreSQL's CPU | written | WAL | leased, GiB",
        &rows,
    );
    let elapsed: Duration = parts.iter().map(|part| part.puts.elapsed).sum();
    let repeated: u64 = parts.iter().map(|part| part.puts.repeated).sum();
    let ratio = match (parts.first(), parts.last()) {
        (Some(first), Some(last)) => last.rate() / first.rate(),
        _ => f64::NAN,
    };
    report.paragraph(&format!(
        "All of them: {} puts a second, {} minutes. The last part's rate is {} times the first one's. {} puts were answered 503 and \
         repeated.",
        count((until as f64 / elapsed.as_secs_f64()).round() as u64),
        short(elapsed.as_secs_f64() / 60.0),
        short(ratio),
        count(repeated),
    ));
}
