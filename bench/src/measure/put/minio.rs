//! Puts of small objects beside MinIO, by the same client. MinIO runs during its own turns alone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::body::Bytes;

use super::{KIB, content};
use crate::{
    bounds::Bounds,
    cpu::Servers,
    measure::{Bench, rotation, run_clients, s3::Service},
    peers::{Installed, MINIO},
    report::{Report, short},
    sample::{Sample, median},
    signed_s3::{Credentials, SignedS3},
};

const BYTES: usize = KIB;
const CONNECTIONS: usize = 32;
const TURNS: u32 = 3;
const RATIO_MIN: f64 = 3.0;

/// The puts of a service in all its turns.
#[derive(Default)]
struct Puts {
    rates: Vec<f64>,
    sample: Sample,
    /// Processor time of all its processes.
    cpu: Duration,
}

impl Puts {
    fn row(&self, name: &str) -> [String; 5] {
        let [p50, p99] = self.sample.cells();
        let cpu = self.cpu.as_secs_f64() * 1e6 / self.sample.len() as f64;
        [name.to_owned(), short(median(&self.rates)), p50, p99, short(cpu)]
    }
}

pub(super) async fn run(bench: &Bench, report: &mut Report, volume: &Service, bounds: &mut Bounds) -> Result<()> {
    report.heading("Beside MinIO");
    let what = "PUT of 1 KiB, 32 connections, × MinIO";
    let found = bench.options.peers.as_ref().context("it is not named (`PEERS`)").and_then(|peers| {
        let peers = peers.canonicalize().with_context(|| format!("no folder {}", peers.display()))?;
        Installed::find(&peers, MINIO)
    });
    let minio = match found {
        Ok(minio) => minio,
        Err(error) => {
            report.paragraph(&format!("MinIO was not measured: {error:#}."));
            bounds.least(what, RATIO_MIN, f64::NAN);
            return Ok(());
        }
    };
    report.paragraph(&format!(
        "Objects of 1 KiB, {CONNECTIONS} connections, each with a directory of its own; kept connections of hyper, signatures in headers. \
         An acknowledgement of MinIO means: {}. CPU: µs of processor time a put of all the service's processes. Rates are medians of \
         {TURNS} turns.",
        MINIO.promise,
    ));
    let mut puts: [Puts; 2] = Default::default();
    for (turn, at) in rotation(TURNS, puts.len()) {
        if at == 0 {
            let options = &bench.options;
            let of = Credentials {
                url: options.peer.as_deref().and_then(|peer| peer.split(',').nth(1)).context("no volume")?.to_owned(),
                access_key: options.peer_access_key.clone(),
                secret_key: options.peer_secret_key.clone(),
            };
            measure(bench, &mut puts[0], (&of, &volume.processes), &volume.bucket, turn).await?;
            continue;
        }
        let servers = minio.start().await?;
        let done = match minio.credentials() {
            Ok(of) => measure(bench, &mut puts[1], (&of, &servers), &volume.bucket, turn).await,
            Err(error) => Err(error),
        };
        minio.stop().await?;
        done?;
    }
    let [ours, theirs] = &puts;
    report.table(
        "service | puts a second | p50, ms | p99, ms | CPU, µs",
        &[ours.row("Mantle, bytes in a volume"), theirs.row(MINIO.name)],
    );
    bounds.least(what, RATIO_MIN, median(&ours.rates) / median(&theirs.rates));
    Ok(())
}

async fn measure(
    bench: &Bench,
    puts: &mut Puts,
    (of, servers): (&Credentials, &Servers),
    bucket: &str,
    turn: u32,
) -> Result<()> {
    let s3 = SignedS3::new(of, &bench.options.stack.region)?;
    let connections = s3.connections(CONNECTIONS);
    s3.create_bucket(&connections[0], bucket).await?;
    let body = Bytes::from_static(&content()[..BYTES]);
    let put = |phase: &'static str| {
        let (s3, connections, body) = (&s3, &connections, &body);
        move |client: usize, round: usize| async move {
            let path = format!("{bucket}/beside-{turn}-{client}/{phase}-{round}");
            let (status, text) = s3.put(&connections[client], &path, body.clone()).await?;
            ensure!(status.is_success(), "PUT {path}: {status} {}", String::from_utf8_lossy(&text));
            Ok(())
        }
    };
    // This makes the connections and the directories.
    run_clients(CONNECTIONS, bench.period / 3, put("warm")).await?;
    let before: Duration = servers.used()?.into_iter().sum();
    let (rate, sample) = run_clients(CONNECTIONS, bench.period, put("put")).await?;
    puts.cpu += servers.used()?.into_iter().sum::<Duration>().saturating_sub(before);
    puts.rates.push(rate);
    puts.sample.merge(sample);
    Ok(())
}
