//! A page of ListObjectsV2 at the beginning, in the middle and at the end of a namespace.
//!
//! Two namespaces: in an even one all pages have the same shape, so only the position differs; in the listing's, pages
//! also differ in the number of their keys' directories.

use anyhow::{Result, ensure};

use super::{Bench, load, timed};
use crate::{
    input::Input,
    report::{Report, count, short},
    sample::Sample,
};

const PAGE: usize = 1000;
/// Directories of the even namespace, and objects in each.
const EVEN: (usize, usize) = (2000, 100);
/// Pages between the first and the last.
const BETWEEN: usize = 8;

struct Page {
    position: f64,
    start_after: String,
    directories: usize,
    sample: Sample,
}

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("A page of ListObjectsV2, namespace of even shape");
    let folder = tempfile::tempdir()?;
    let listing = folder.path().join("even");
    let directories = (0..EVEN.0).flat_map(|directory| (0..EVEN.1).map(move |object| (directory, object)));
    let line = |(directory, object)| format!("d{:02}/d{directory:06}/o{object:06}\n", directory / 100);
    std::fs::write(&listing, directories.map(line).collect::<String>())?;
    let even = format!("{}-even", bench.ns);
    load::import(bench, &even, &listing).await?;
    pages(bench, report, &even, &Input::read(&listing)?).await?;
    report.heading("A page of ListObjectsV2, namespace of the listing");
    pages(bench, report, &bench.ns, &bench.input).await
}

async fn pages(bench: &Bench, report: &mut Report, ns: &str, input: &Input) -> Result<()> {
    let last = input.len().saturating_sub(PAGE);
    let mut pages: Vec<Page> = (0..=BETWEEN + 1)
        .map(|step| {
            let first_key = last * step / (BETWEEN + 1);
            Page {
                position: 100.0 * first_key as f64 / input.len() as f64,
                start_after: if first_key == 0 { String::new() } else { input.key(first_key - 1).to_owned() },
                directories: input.directories_of(first_key..first_key + PAGE.min(input.len())),
                sample: Sample::default(),
            }
        })
        .collect();
    // All positions take turns in each round, so that they meet the same machine; the first round fills caches.
    let rounds = (bench.options.calls / 20).max(10);
    for round in 0..=rounds {
        for page in &mut pages {
            let mut sample = Sample::default();
            let keys = timed(&mut sample, bench.s3.list(ns, &page.start_after, PAGE)).await?;
            // The import may have refused a few lines, so the last page may lack their keys.
            ensure!(keys + 10 >= PAGE.min(input.len()), "a page after {:?} has {keys} keys", page.start_after);
            if round > 0 {
                page.sample.merge(sample);
            }
        }
    }
    let rows: Vec<_> = pages
        .iter()
        .map(|Page { position, directories, sample, .. }| {
            [format!("{position:.0} %"), count(*directories as u64), short(sample.p50_ms()), short(sample.p99_ms())]
        })
        .collect();
    report.paragraph(&format!("{} keys; pages of {PAGE}, {rounds} calls each, in turn.", count(input.len() as u64)));
    report.table("position of the page | directories of its keys | p50 ms | p99 ms", &rows);
    if let [first, .., last] = &pages[..] {
        let ratio = last.sample.p50_ms() / first.sample.p50_ms();
        report.paragraph(&format!("Last page to first page: ratio {} of the medians.", short(ratio)));
    }
    Ok(())
}
