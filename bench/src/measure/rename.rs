//! Rename of a directory with tens of thousands of directories below it, against one of an empty directory.

use anyhow::{Context, Result};

use super::{Bench, timed};
use crate::{
    report::{Report, count, short},
    sample::Sample,
};

/// Depth of the large directory, in components.
const DEPTH: usize = 3;

/// Renames a large and an empty directory.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Rename of a directory");
    let (large, below) = bench.input.largest_directory(DEPTH).context("the listing has no directory deep enough")?;
    let parent = large.rsplit_once('/').map_or("", |(parent, _)| parent);
    let small = format!("{parent}/bench-empty");
    bench.rest.mkdir(&bench.ns, &small).await?;
    let (mut large_sample, mut small_sample) = (Sample::default(), Sample::default());
    for _ in 0..(bench.calls / 20).max(10) {
        for (path, sample) in [(&large, &mut large_sample), (&small, &mut small_sample)] {
            let (here, there) = (format!("{path}/"), format!("{path}-renamed/"));
            timed(sample, bench.rest.rename(&bench.ns, &here, &there)).await?;
            bench.rest.stat(&bench.ns, &there).await?;
            timed(sample, bench.rest.rename(&bench.ns, &there, &here)).await?;
        }
    }
    report.paragraph("Each directory is renamed and renamed back, in turn. A rename is one RPC and one transaction, acknowledged by the index.");
    let row = |name: String, below: usize, sample: &Sample| {
        [name, count(below as u64), count(sample.len() as u64), short(sample.p50_ms()), short(sample.p99_ms())]
    };
    let ratio = |of: fn(&Sample) -> f64| short(of(&large_sample) / of(&small_sample));
    report.table(
        "directory | directories below | calls | p50 ms | p99 ms",
        &[
            row(format!("`{large}/`"), below, &large_sample),
            row("an empty one beside it (baseline)".into(), 0, &small_sample),
            ["ratio".into(), String::new(), String::new(), ratio(Sample::p50_ms), ratio(Sample::p99_ms)],
        ],
    );
    Ok(())
}
