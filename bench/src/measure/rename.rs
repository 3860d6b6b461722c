//! Rename of a directory with tens of thousands of directories below it, against one of an empty directory.

use anyhow::{Context, Result};

use super::{Bench, timed};
use crate::{
    report::{Report, count},
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
    for _ in 0..(bench.options.calls / 20).max(10) {
        for (path, sample) in [(&large, &mut large_sample), (&small, &mut small_sample)] {
            let (here, there) = (format!("{path}/"), format!("{path}-renamed/"));
            timed(sample, bench.rest.rename(&bench.ns, &here, &there)).await?;
            bench.rest.stat(&bench.ns, &there).await?;
            timed(sample, bench.rest.rename(&bench.ns, &there, &here)).await?;
        }
    }
    report.paragraph("Each directory is renamed and renamed back, in turn. A rename is one RPC and one transaction, acknowledged by the index.");
    let row = |name: &str, below: usize, sample: &Sample| {
        let [p50, p99] = sample.cells();
        [name.to_owned(), count(below as u64), count(sample.len() as u64), p50, p99]
    };
    let [p50, p99] = large_sample.ratio_cells(&small_sample);
    let rows = [
        row(&format!("`{large}/`"), below, &large_sample),
        row("an empty one beside it (baseline)", 0, &small_sample),
        ["ratio".to_owned(), String::new(), String::new(), p50, p99],
    ];
    report.table("directory | directories below | calls | p50 ms | p99 ms", &rows);
    Ok(())
}
