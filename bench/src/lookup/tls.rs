//! The same lookups without TLS and with certificates at both ends, in turns.

use std::time::Duration;

use anyhow::Result;

use super::{
    Group, Measured, Setup, queries,
    rows::{CALLERS, DIRECTORIES},
    run_callers,
    tree::LEVELS,
    warmed,
};
use crate::{
    cpu,
    report::{Report, count, short},
    sample::{Sample, median},
};

/// Adds a section; answers how many lookups TLS does in a second of processor time, as a ratio to plain.
pub async fn run(turns: usize, period: Duration, report: &mut Report) -> Result<f64> {
    let setup = |has_tls| Setup { directories: DIRECTORIES, has_tls, ..Setup::default() };
    let mut groups = [Group::start_with(&setup(false)).await?, Group::start_with(&setup(true)).await?];
    let clients = [warmed(&groups[0], 0..1).await?, warmed(&groups[1], 0..1).await?];
    let queries = queries(&groups[0].tree, LEVELS);
    let [mut rates, mut each] = <[[Vec<f64>; 2]; 2]>::default();
    let mut alone = <[Sample; 2]>::default();
    for turn in 0..turns {
        for at in [turn % 2, 1 - turn % 2] {
            let before = groups[at].cpu().await? + cpu::own()?.as_secs_f64();
            let Measured { rate, sample, .. } = run_callers(&clients[at], &queries, CALLERS, period, false).await?;
            rates[at].push(rate);
            let used = groups[at].cpu().await? + cpu::own()?.as_secs_f64() - before;
            each[at].push(used * 1e6 / sample.len() as f64);
            alone[at].merge(run_callers(&clients[at], &queries, 1, period / 4, false).await?.sample);
        }
    }
    report.heading("Lookups");
    report.paragraph(&format!(
        "{CALLERS} callers in one process, one replica that leads, {} directories, paths of ten components; certificates at \
         both ends. Processor time is of both processes.",
        count(groups[0].tree.directories()),
    ));
    let row = |name: &str, at: usize| {
        let [rate, used] = [&rates[at], &each[at]].map(|turns| median(turns));
        [
            name.to_owned(),
            count(rate as u64),
            short(rate / median(&rates[0])),
            short(used),
            short(used / median(&each[0])),
            short(alone[at].p50_ms() * 1e3),
        ]
    };
    report.table(
        "lookups | lookups/s | ÷ plain | µs of processor time each | ÷ plain | one caller, p50 µs",
        &[row("plain (baseline)", 0), row("TLS", 1)],
    );
    Group::stop_all(groups).await?;
    Ok(median(&each[0]) / median(&each[1]))
}
