//! mkdir in one directory over REST, by one gateway and by two, with calls gathered and not.
//!
//! The bench cannot set `mantle.delta_records` in the gateways' sessions: each turn changes the server's setting.

use anyhow::Result;

use super::{Measured, Setting};
use crate::{
    measure::{Bench, rotation, run_clients},
    report::{Report, count, short},
    rest::Rest,
};

const CLIENTS: [usize; 2] = [16, 64];
const MODES: [&str; 3] = ["auto", "always", "never"];
const TURNS: u32 = 3;
/// The gateways' role.
const ROLE: &str = "gateway";

pub async fn run(setting: &Setting<'_>, bench: &Bench, ns: &str, report: &mut Report) -> Result<()> {
    report.heading("mkdir in one directory over REST, by gateways");
    if bench.gathering.len() < 2 || bench.not_gathering.len() < 2 {
        report.paragraph("Not measured: it takes two gateways that gather calls, and two that do not.");
        return Ok(());
    }
    let measured = measure(setting, bench, ns, report).await;
    setting.watcher.alter_delta_records("").await?;
    measured
}

async fn measure(setting: &Setting<'_>, bench: &Bench, ns: &str, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for (name, gateways) in [
        ("1", &bench.gathering[..1]),
        ("2", &bench.gathering[..2]),
        ("1, not gathering", &bench.not_gathering[..1]),
        ("2, not gathering", &bench.not_gathering[..2]),
    ] {
        for clients in CLIENTS {
            let found = in_turn(setting, ns, gateways, clients).await?;
            let [.., baseline] = &found;
            for (mode, of) in MODES.iter().zip(&found) {
                let [rate, rate_ratio, p99, p99_ratio, lock, lwlock, most] = of.cells(baseline);
                let (name, clients, mode) = (name.to_owned(), count(clients as u64), (*mode).to_owned());
                let active = short(of.waits.of(""));
                rows.push([name, clients, mode, rate, rate_ratio, p99, p99_ratio, active, lock, lwlock, most]);
            }
        }
    }
    report.paragraph(
        "Acknowledged by the index. A gateway that gathers calls has one batch in flight (only beside a stalled batch more, up to \
         `postgres.batches_in_flight_max`, default 4). A gateway with `postgres.batch_elements_max = 1` sends each call by \
         itself. Baseline: `mantle.delta_records = never`. Active: the gateways' sessions that work in PostgreSQL, on average.",
    );
    report.table(
        "gateways | clients | counts | per second | to `never` | p99 ms | to `never` | active | Lock | LWLock | sessions",
        &rows,
    );
    Ok(())
}

async fn in_turn(setting: &Setting<'_>, ns: &str, gateways: &[Rest], clients: usize) -> Result<[Measured; 3]> {
    let rests: Vec<Rest> = (0..clients).map(|client| gateways[client % gateways.len()].another()).collect();
    let id = setting.ids(1).await?;
    let parents = MODES.map(|mode| format!("{mode}-{id}"));
    for parent in &parents {
        gateways[0].mkdir(ns, parent).await?;
    }
    let mut found = <[Measured; 3]>::default();
    for (turn, at) in rotation(TURNS, MODES.len()) {
        setting.watcher.alter_delta_records(MODES[at]).await?;
        let (of, parent) = (&mut found[at], &parents[at]);
        let mkdirs = run_clients(clients, setting.period / 2 / TURNS, |client, round| {
            let (rest, path) = (&rests[client], format!("{parent}/d{turn}-{client}-{round}"));
            async move { rest.mkdir(ns, &path).await }
        });
        of.add(setting.watcher, ROLE, async { Ok((mkdirs.await?.1, ())) }).await?;
        setting.watcher.wait_for_compaction().await?;
    }
    Ok(found)
}
