//! mkdir in one directory over REST: one gateway and two, their calls gathered and not. The gateways' own sessions are told
//! apart by what PostgreSQL's settings file says, which all of them follow at once.

use anyhow::Result;

use super::{Found, Ground};
use crate::{
    measure::in_lanes,
    report::{Report, count, short},
    rest::Rest,
};

const CLIENTS: [usize; 2] = [16, 64];
const MODES: [&str; 3] = ["auto", "always", "never"];
const TURNS: u32 = 3;
/// The gateways' role.
const ROLE: &str = "gateway";

/// Measures.
pub async fn run(ground: &Ground<'_>, ns: &str, report: &mut Report) -> Result<()> {
    report.heading("mkdir in one directory over REST, by gateways");
    let bench = ground.bench;
    if bench.gathering.len() < 2 || bench.not_gathering.len() < 2 {
        report.paragraph("Not measured: it takes two gateways that gather calls, and two that do not.");
        return Ok(());
    }
    let measured = measure(ground, ns, report).await;
    ground.watcher.alter_delta_records("").await?;
    measured
}

async fn measure(ground: &Ground<'_>, ns: &str, report: &mut Report) -> Result<()> {
    let bench = ground.bench;
    let mut rows = Vec::new();
    for (name, gateways) in [
        ("1", &bench.gathering[..1]),
        ("2", &bench.gathering[..2]),
        ("1, not gathering", &bench.not_gathering[..1]),
        ("2, not gathering", &bench.not_gathering[..2]),
    ] {
        for clients in CLIENTS {
            let found = in_turn(ground, ns, gateways, clients).await?;
            let [.., baseline] = &found;
            for (mode, of) in MODES.iter().zip(&found) {
                let [rate, rate_ratio, p99, p99_ratio, lock, lwlock, most] = of.cells(baseline);
                rows.push([
                    name.to_owned(),
                    count(clients as u64),
                    (*mode).to_owned(),
                    rate,
                    rate_ratio,
                    p99,
                    p99_ratio,
                    short(of.waits.all()),
                    lock,
                    lwlock,
                    most,
                ]);
            }
        }
    }
    report.paragraph(
        "Acknowledged by the index. A gateway that gathers has one batch in flight (`postgres.batches_in_flight_max`, default 4, \
         bounds those beside a stalled one); one with `postgres.batch_elements_max = 1` sends each call by itself. Baseline: \
         `mantle.delta_records = never`. Active: sessions of the gateways at work in PostgreSQL, on average.",
    );
    report.table(
        [
            "gateways",
            "clients",
            "counts",
            "per second",
            "to `never`",
            "p99 ms",
            "to `never`",
            "active",
            "Lock",
            "LWLock",
            "sessions",
        ],
        &rows,
    );
    Ok(())
}

async fn in_turn(ground: &Ground<'_>, ns: &str, gateways: &[Rest], clients: usize) -> Result<[Found; 3]> {
    let lanes: Vec<Rest> = (0..clients).map(|client| gateways[client % gateways.len()].another()).collect();
    let parents: Vec<String> = MODES.iter().map(|mode| format!("{mode}-{}", ground.ids(1))).collect();
    for parent in &parents {
        gateways[0].mkdir(ns, parent).await?;
    }
    let mut found = <[Found; 3]>::default();
    for turn in 0..TURNS as usize {
        for at in 0..MODES.len() {
            let at = (at + turn) % MODES.len();
            ground.watcher.alter_delta_records(MODES[at]).await?;
            let (of, parent) = (&mut found[at], &parents[at]);
            let mkdirs = in_lanes(clients, ground.bench.period / 2 / TURNS, |client, round| {
                let (rest, path) = (&lanes[client], format!("{parent}/d{turn}-{client}-{round}"));
                async move { rest.mkdir(ns, &path).await }
            });
            let started = std::time::Instant::now();
            let (_, sample) = of.waits.during(ground.watcher, ROLE, mkdirs).await?;
            of.lasted += started.elapsed();
            of.sample.merge(sample);
            ground.settle().await?;
        }
    }
    Ok(found)
}
