//! Lookups over RPC without changes: throughput, latency by depth, size of the tree, followers.

use anyhow::Result;
use mantle_index_client::IndexClient;

use super::{Group, Measured, Options, queries, run_callers, tree::LEVELS, warmed};
use crate::{
    cpu,
    report::{Report, count, short},
    sample::Sample,
};

const CALLERS: usize = 256;
pub const DIRECTORIES: u64 = 1_000_000;
/// Followers get a small tree: the cost of a request to the leader does not depend on its size.
pub const DIRECTORIES_FEW: u64 = 100_000;
const LOOKUPS_IN_PROCESS: u64 = 2_000_000;
/// What one IndexNode core serves in the paper (Mantle, SOSP '25, section 6).
const PAPER_PER_CORE: &str = "6,700–7,800";

/// A throughput of each turn; the median counts.
#[derive(Default)]
pub struct Rates(pub Vec<f64>);

impl Rates {
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Cache on and off, many callers and one, deep and shallow paths.
pub async fn throughput_and_latency(options: &Options, report: &mut Report) -> Result<()> {
    let mut groups = [Group::start(DIRECTORIES, 1, 3).await?, Group::start(DIRECTORIES, 1, 0).await?];
    let clients = [warmed(&groups[0], 0..1).await?, warmed(&groups[1], 0..1).await?];
    let (deep, shallow) = (queries(&groups[0].tree, LEVELS), queries(&groups[0].tree, 1));
    let mut rates = [const { Rates(Vec::new()) }; 2];
    let mut cores = [const { Rates(Vec::new()) }; 2];
    let mut both = [const { Rates(Vec::new()) }; 2];
    let mut depths = [(); 2].map(|()| Sample::default());
    for _ in 0..options.turns {
        for at in 0..2 {
            let before = [groups[at].cpu().await?, cpu::own()?.as_secs_f64()];
            let Measured { rate, sample, .. } =
                run_callers(&clients[at], &deep, CALLERS, options.period(), false).await?;
            let [replica, own] = [groups[at].cpu().await? - before[0], cpu::own()?.as_secs_f64() - before[1]];
            rates[at].0.push(rate);
            cores[at].0.push(sample.len() as f64 / replica);
            both[at].0.push(sample.len() as f64 / (replica + own));
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
    throughput_table(report, &rates, &cores, &both);
    latency_table(report, &depths);
    let in_process = groups[0].look_up(LOOKUPS_IN_PROCESS).await?;
    report.table(
        "cache on, one core | lookups/s | ÷ in process",
        &[
            ["in process, 64 at a time (baseline)".to_owned(), count(in_process), short(1.0)],
            [
                "over RPC, the replica's share".to_owned(),
                count(cores[0].median() as u64),
                short(cores[0].median() / in_process as f64),
            ],
        ],
    );
    for group in groups {
        group.stop().await?;
    }
    Ok(())
}

/// Each array: cache on, cache off.
fn throughput_table(report: &mut Report, rates: &[Rates; 2], cores: &[Rates; 2], both: &[Rates; 2]) {
    let row = |name: &str, at: usize| {
        let rate = rates[at].median();
        [
            name.to_owned(),
            count(rate as u64),
            short(rate / rates[1].median()),
            count(cores[at].median() as u64),
            count(both[at].median() as u64),
        ]
    };
    report.table(
        "lookups, 256 callers | lookups/s | ÷ cache off | per core, replica | per core, replica and callers",
        &[row("cache on (k = 3)", 0), row("cache off (baseline)", 1)],
    );
}

/// `depths`: of paths with one component and with ten.
fn latency_table(report: &mut Report, depths: &[Sample; 2]) {
    let [one, ten] = depths.each_ref().map(|sample| sample.p50_ms() * 1e3);
    report.table(
        "one caller, leader | p50 µs | ÷ depth 1",
        &[
            ["depth 1 (baseline)".to_owned(), short(one), short(1.0)],
            ["depth 10".to_owned(), short(ten), short(ten / one)],
        ],
    );
}

/// Trees of 100 K, 1 M and 10 M directories.
pub async fn scale(options: &Options, report: &mut Report) -> Result<()> {
    let sizes = [100_000, 1_000_000, 10_000_000].map(|size: u64| size.min(options.directories_max));
    let mut groups = Vec::new();
    for size in sizes {
        groups.push(Group::start(size, 1, 3).await?);
    }
    let mut runs = Vec::new();
    for group in &groups {
        runs.push((warmed(group, 0..1).await?, queries(&group.tree, LEVELS), Rates::default(), Rates::default()));
    }
    for _ in 0..options.turns {
        for ((client, queries, rates, cores), group) in runs.iter_mut().zip(&mut groups) {
            let before = group.cpu().await? + cpu::own()?.as_secs_f64();
            let Measured { rate, sample, .. } = run_callers(client, queries, CALLERS, options.period(), false).await?;
            rates.0.push(rate);
            cores.0.push(sample.len() as f64 / (group.cpu().await? + cpu::own()?.as_secs_f64() - before));
        }
    }
    report.heading("Throughput by size");
    let baseline = [runs[0].2.median(), runs[0].3.median()];
    let mut rows = Vec::new();
    for (group, (_, _, rates, cores)) in groups.iter_mut().zip(&runs) {
        let [_, cache, index] = group.size().await?;
        rows.push([
            count(group.tree.directories()),
            count(rates.median() as u64),
            short(rates.median() / baseline[0]),
            short(cores.median() / baseline[1]),
            short(index as f64 / group.tree.directories() as f64),
            count(cache as u64 >> 10),
        ]);
    }
    report.table("directories | lookups/s | ÷ the smallest | ÷, per core | index bytes a directory | cache KiB", &rows);
    for group in groups {
        group.stop().await?;
    }
    Ok(())
}

/// One caller at the leader and at a follower; many callers at the leader alone and at all three replicas.
pub async fn followers(options: &Options, report: &mut Report) -> Result<()> {
    let group = Group::start(DIRECTORIES_FEW, 3, 3).await?;
    let (leader, follower) = (warmed(&group, 0..1).await?, warmed(&group, 1..2).await?);
    let all: IndexClient = warmed(&group, 0..3).await?;
    let queries = queries(&group.tree, LEVELS);
    let mut latencies = [(); 2].map(|()| Sample::default());
    let mut rates = [const { Rates(Vec::new()) }; 2];
    for _ in 0..options.turns {
        for (sample, client) in latencies.iter_mut().zip([&leader, &follower]) {
            sample.merge(run_callers(client, &queries, 1, options.period() / 2, false).await?.sample);
        }
        for (rates, client) in rates.iter_mut().zip([&leader, &all]) {
            rates.0.push(run_callers(client, &queries, CALLERS, options.period(), false).await?.rate);
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
    let [alone, together] = rates.map(|rates| rates.median());
    report.table(
        "256 callers | lookups/s | ÷ leader alone",
        &[
            ["follower reads off (baseline)".to_owned(), count(alone as u64), short(1.0)],
            ["follower reads on".to_owned(), count(together as u64), short(together / alone)],
        ],
    );
    group.stop().await
}
