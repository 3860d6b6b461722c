//! Lookups over RPC without changes: throughput, latency by depth, size of the tree, followers.

use anyhow::Result;
use mantle_index_client::IndexClient;

use super::{Group, Measured, Options, queries, run_callers, tree::LEVELS, warmed};
use crate::{
    cpu,
    report::{Report, count, short},
    sample::{Sample, median},
};

pub const CALLERS: usize = 256;
pub const DIRECTORIES: u64 = 1_000_000;
/// Followers get a small tree: the cost of a request to the leader does not depend on its size.
pub const DIRECTORIES_FEW: u64 = 100_000;
const LOOKUPS_IN_PROCESS: u64 = 2_000_000;
/// What one IndexNode core serves in the paper (Mantle, SOSP '25, section 6).
const PAPER_PER_CORE: &str = "6,700–7,800";

/// Cache on and off, many callers and one, deep and shallow paths.
pub async fn throughput_and_latency(options: &Options, report: &mut Report) -> Result<()> {
    let mut groups = [Group::start(DIRECTORIES, 1, 3).await?, Group::start(DIRECTORIES, 1, 0).await?];
    let clients = [warmed(&groups[0], 0..1).await?, warmed(&groups[1], 0..1).await?];
    let (deep, shallow) = (queries(&groups[0].tree, LEVELS), queries(&groups[0].tree, 1));
    let [mut rates, mut cores, mut both] = <[[Vec<f64>; 2]; 3]>::default();
    let mut depths = <[Sample; 2]>::default();
    for _ in 0..options.turns {
        for at in 0..2 {
            let before = [groups[at].cpu().await?, cpu::own()?.as_secs_f64()];
            let Measured { rate, sample, .. } =
                run_callers(&clients[at], &deep, CALLERS, options.period(), false).await?;
            let [replica, own] = [groups[at].cpu().await? - before[0], cpu::own()?.as_secs_f64() - before[1]];
            rates[at].push(rate);
            cores[at].push(sample.len() as f64 / replica);
            both[at].push(sample.len() as f64 / (replica + own));
        }
        // Half a period each keeps the connection warm; alternating single calls would not.
        for (sample, queries) in depths.iter_mut().zip([&shallow, &deep]) {
            sample.merge(run_callers(&clients[0], queries, 1, options.period() / 2, false).await?.sample);
        }
    }
    report.heading("Throughput over RPC, and latency by depth");
    let size = groups[0].size().await?;
    report.paragraph(&format!(
        "{} directories, one replica that leads; {CALLERS} callers are tasks of one process over one stream. Per core: \
         lookups per second of processor time, of the replica's process and of both processes together (the rate of a \
         processor that nothing else uses). The paper's IndexNode: {PAPER_PER_CORE} a core. \
         The cache (k = 3) holds {} prefixes in {} KiB.",
        count(groups[0].tree.directories()),
        count(size[0] as u64),
        count(size[1] as u64 >> 10),
    ));
    let row = |name: &str, at: usize| {
        let [rate, core, both] = [&rates[at], &cores[at], &both[at]].map(|turns| median(turns));
        [name.to_owned(), count(rate as u64), short(rate / median(&rates[1])), count(core as u64), count(both as u64)]
    };
    report.table(
        "lookups, 256 callers | lookups/s | ÷ cache off | per core, replica | per core, replica and callers",
        &[row("cache on (k = 3)", 0), row("cache off (baseline)", 1)],
    );
    let [one, ten] = depths.map(|sample| sample.p50_ms() * 1e3);
    compare(report, "one caller, leader | p50 µs | ÷ depth 1", ["depth 1", "depth 10"], [one, ten], short);
    let in_process = groups[0].look_up(LOOKUPS_IN_PROCESS).await?;
    let names = ["in process, 64 at a time", "over RPC, the replica's share"];
    let values = [in_process as f64, median(&cores[0])];
    compare(report, "cache on, one core | lookups/s | ÷ in process", names, values, |value| count(value as u64));
    Group::stop_all(groups).await
}

/// A table of a baseline and of what is compared with it: value and ratio.
fn compare(report: &mut Report, headings: &str, names: [&str; 2], values: [f64; 2], show: impl Fn(f64) -> String) {
    let [baseline, value] = values;
    let first = [format!("{} (baseline)", names[0]), show(baseline), short(1.0)];
    report.table(headings, &[first, [names[1].to_owned(), show(value), short(value / baseline)]]);
}

/// Trees of 100 K, 1 M and 10 M directories.
pub async fn scale(options: &Options, report: &mut Report) -> Result<()> {
    let sizes = [100_000, 1_000_000, 10_000_000].map(|size: u64| size.min(options.directories_max));
    let mut groups = Vec::new();
    let mut runs = Vec::new();
    for size in sizes {
        let group = Group::start(size, 1, 3).await?;
        runs.push((warmed(&group, 0..1).await?, queries(&group.tree, LEVELS), Vec::new(), Vec::new()));
        groups.push(group);
    }
    for _ in 0..options.turns {
        for ((client, queries, rates, cores), group) in runs.iter_mut().zip(&mut groups) {
            let before = group.cpu().await? + cpu::own()?.as_secs_f64();
            let Measured { rate, sample, .. } = run_callers(client, queries, CALLERS, options.period(), false).await?;
            rates.push(rate);
            cores.push(sample.len() as f64 / (group.cpu().await? + cpu::own()?.as_secs_f64() - before));
        }
    }
    report.heading("Throughput by size");
    let baseline = [median(&runs[0].2), median(&runs[0].3)];
    let mut rows = Vec::new();
    for (group, (_, _, rates, cores)) in groups.iter_mut().zip(&runs) {
        let [_, cache, index] = group.size().await?;
        let (directories, rate) = (group.tree.directories(), median(rates));
        let [to_smallest, of_cores] = [short(rate / baseline[0]), short(median(cores) / baseline[1])];
        let index = short(index as f64 / directories as f64);
        rows.push([count(directories), count(rate as u64), to_smallest, of_cores, index, count(cache as u64 >> 10)]);
    }
    report.table("directories | lookups/s | ÷ the smallest | ÷, per core | index bytes a directory | cache KiB", &rows);
    Group::stop_all(groups).await
}

/// One caller at the leader and at a follower; many callers at the leader alone and at all three replicas.
pub async fn followers(options: &Options, report: &mut Report) -> Result<()> {
    let group = Group::start(DIRECTORIES_FEW, 3, 3).await?;
    let (leader, follower) = (warmed(&group, 0..1).await?, warmed(&group, 1..2).await?);
    let all: IndexClient = warmed(&group, 0..3).await?;
    let queries = queries(&group.tree, LEVELS);
    let (mut latencies, mut rates) = <([Sample; 2], [Vec<f64>; 2])>::default();
    for _ in 0..options.turns {
        for (sample, client) in latencies.iter_mut().zip([&leader, &follower]) {
            sample.merge(run_callers(client, &queries, 1, options.period() / 2, false).await?.sample);
        }
        for (rates, client) in rates.iter_mut().zip([&leader, &all]) {
            rates.push(run_callers(client, &queries, CALLERS, options.period(), false).await?.rate);
        }
    }
    report.heading("Leader and followers");
    report.paragraph(&format!(
        "Three replicas in one process, {} directories. A follower asks the leader for its commit index once a batch. All \
         replicas share two processors, so followers cannot add throughput here; the table shows what they cost.",
        count(group.tree.directories())
    ));
    let [at_leader, at_follower] = latencies.map(|sample| [sample.p50_ms() * 1e3, sample.p99_ms() * 1e3]);
    report.table(
        "one caller | p50 µs | ÷ leader | p99 µs",
        &[
            ["leader (baseline)".to_owned(), short(at_leader[0]), short(1.0), short(at_leader[1])],
            ["follower".to_owned(), short(at_follower[0]), short(at_follower[0] / at_leader[0]), short(at_follower[1])],
        ],
    );
    let [alone, together] = rates.map(|turns| median(&turns));
    let (names, values) = (["follower reads off", "follower reads on"], [alone, together]);
    compare(report, "256 callers | lookups/s | ÷ leader alone", names, values, |value| count(value as u64));
    group.stop().await
}
