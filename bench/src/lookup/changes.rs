//! Lookups while directories change, and the effect of batching changes in Raft's log.

use std::time::{Duration, Instant};

use anyhow::Result;
use mantle_index_client::IndexClient;

use super::{
    Group, Options, Setup, queries,
    rows::{DIRECTORIES, DIRECTORIES_FEW},
    run_callers,
    tree::LEVELS,
    warmed,
};
use crate::{
    machine::Awake,
    report::{Report, count, short},
    sample::{Sample, median},
};

/// Callers whose p99 is measured: one, and few enough to leave the processors idle time.
const CALLERS: [usize; 2] = [1, 8];
const CALLERS_MANY: usize = 256;
const WRITES_PER_SECOND: u64 = 50_000;
/// Operations a second beside [`CALLERS_MANY`] and beside snapshots.
const WRITES_FEW: u64 = 1_000;
const CLIENTS: [usize; 3] = [1, 16, 256];

/// Lookups while directories change, against the same callers while none changes.
pub async fn writes(options: &Options, report: &mut Report) -> Result<()> {
    let mut group = Group::start(DIRECTORIES, 1, 3).await?;
    report.heading("Lookups while directories change");
    let client = warmed(&group, 0..1).await?;
    let as_it_is = beside_writes(options, &mut group, &client).await?;
    report.paragraph(&format!(
        "{} operations a second were applied (wanted: {}). Of ten, seven are mkdirs, two are removals, and one renames a directory of \
         the sixth level on the looked-up paths; the next rename restores its name. A rename removes the cached prefixes below \
         its directory. {} % of the lookups fell between two such renames and found no directory. The replica's process proposes \
         the operations, through Raft and its log.",
        count(as_it_is.applied_per_second as u64),
        count(WRITES_PER_SECOND),
        short(as_it_is.missed_percent),
    ));
    table(&as_it_is.samples, report);
    match Awake::keep() {
        Ok(_awake) => {
            let awake = beside_writes(options, &mut group, &client).await?;
            report.paragraph(&format!(
                "The same with processors that do not halt when idle (`/dev/cpu_dma_latency` at 0). The figures above include the \
                 wake-up of halted processors, with applies and without; these do not. {} operations a second.",
                count(awake.applied_per_second as u64),
            ));
            table(&awake.samples, report);
        }
        Err(e) => report.paragraph(&format!("Not measured with processors that do not halt: {e:#}.")),
    }
    group.stop().await
}

struct BesideWrites {
    /// Idle and busy, for each number of callers.
    samples: [Sample; 2 * CALLERS.len()],
    applied_per_second: f64,
    missed_percent: f64,
}

async fn beside_writes(options: &Options, group: &mut Group, client: &IndexClient) -> Result<BesideWrites> {
    let queries = queries(&group.tree, LEVELS);
    let mut samples = <[Sample; 2 * CALLERS.len()]>::default();
    let (mut applied, mut writing, mut missed, mut lookups) = (0, Duration::ZERO, 0, 0);
    for _ in 0..options.turns {
        for (at, callers) in CALLERS.into_iter().enumerate() {
            samples[2 * at].merge(run_callers(client, &queries, callers, options.period(), true).await?.sample);
            let before = group.write(WRITES_PER_SECOND).await?;
            let started = Instant::now();
            let busy = run_callers(client, &queries, callers, options.period(), true).await?;
            missed += busy.missed;
            lookups += busy.sample.len();
            samples[2 * at + 1].merge(busy.sample);
            applied += group.write(0).await? - before;
            writing += started.elapsed();
        }
    }
    let missed_percent = 100.0 * missed as f64 / lookups as f64;
    Ok(BesideWrites { samples, applied_per_second: applied as f64 / writing.as_secs_f64(), missed_percent })
}

/// Throughput while directories on the paths are renamed, by what a rename removes from the cache.
pub async fn invalidation(options: &Options, report: &mut Report) -> Result<()> {
    let setups = [
        ("only the prefixes below it (range)", Setup::default()),
        ("all (baseline)", Setup { invalidates_all: true, ..Setup::default() }),
        ("no cache", Setup { cache_levels: 0, ..Setup::default() }),
    ];
    let mut runs = Vec::new();
    for (name, setup) in setups {
        let group = Group::start_with(&Setup { directories: DIRECTORIES, ..setup }).await?;
        let (client, queries) = (warmed(&group, 0..1).await?, queries(&group.tree, LEVELS));
        runs.push((name, group, client, queries, Vec::new()));
    }
    for _ in 0..options.turns {
        for (_, group, client, queries, rates) in &mut runs {
            group.write(WRITES_FEW).await?;
            rates.push(run_callers(client, queries, CALLERS_MANY, options.period(), true).await?.rate);
            group.write(0).await?;
        }
    }
    report.heading("Invalidation of the cache");
    report.paragraph(&format!(
        "Lookups of {CALLERS_MANY} callers while {} operations a second are applied; one in ten renames a directory on the paths, as \
         above. All (baseline): `lookup.invalidation = \"all\"`; a cache without a PrefixTree could do no better.",
        count(WRITES_FEW)
    ));
    let baseline = median(&runs[1].4);
    let rows = runs
        .iter()
        .map(|(name, .., rates)| [(*name).to_owned(), count(median(rates) as u64), short(median(rates) / baseline)]);
    report.table("a rename removes from the cache | lookups/s | ÷ all", &rows.collect::<Vec<_>>());
    Group::stop_all(runs.into_iter().map(|(_, group, ..)| group)).await
}

/// The table of idle and busy samples, for each number of callers.
fn table(samples: &[Sample], report: &mut Report) {
    let rows = CALLERS.iter().zip(samples.chunks(2)).map(|(callers, samples)| {
        let at = |sample: usize, share| samples[sample].percentile_ms(share) * 1e3;
        let [p50_idle, p50, p99_idle, p99] = [at(0, 0.5), at(1, 0.5), at(0, 0.99), at(1, 0.99)];
        let [ratio, longest] = [p99 / p99_idle, at(1, 1.0)].map(short);
        [callers.to_string(), short(p50_idle), short(p50), short(p99_idle), short(p99), ratio, longest]
    });
    report.table(
        "callers | p50 µs idle | p50 µs | p99 µs idle (baseline) | p99 µs | p99 ÷ idle | longest µs",
        &rows.collect::<Vec<_>>(),
    );
}

/// Lookups while snapshots are built, one after the other, and some directories change.
pub async fn snapshots(options: &Options, report: &mut Report) -> Result<()> {
    let mut group = Group::start(DIRECTORIES, 1, 3).await?;
    let client = warmed(&group, 0..1).await?;
    let queries = queries(&group.tree, LEVELS);
    let mut samples = <[Sample; 4]>::default();
    let (mut built, mut building) = (0, Duration::ZERO);
    for _ in 0..options.turns {
        for (at, callers) in CALLERS.into_iter().enumerate() {
            group.write(WRITES_FEW).await?;
            samples[2 * at].merge(run_callers(&client, &queries, callers, options.period(), true).await?.sample);
            let before = group.snapshots(true).await?;
            let started = Instant::now();
            samples[2 * at + 1].merge(run_callers(&client, &queries, callers, options.period(), true).await?.sample);
            built += group.snapshots(false).await? - before;
            building += started.elapsed();
            group.write(0).await?;
        }
    }
    report.heading("Lookups while snapshots are built");
    report.paragraph(&format!(
        "{} directories; {} operations a second are applied (idle: the same without snapshots). {built} snapshots in {} s, one \
         after the other.",
        count(group.tree.directories()),
        count(WRITES_FEW),
        short(building.as_secs_f64()),
    ));
    table(&samples, report);
    group.stop().await
}

/// mkdirs applied per second, with all waiting directories in one log entry and with one entry each.
pub async fn batching(options: &Options, report: &mut Report) -> Result<()> {
    let mut groups = Vec::new();
    for log_batching in [true, false] {
        let setup = Setup { directories: DIRECTORIES_FEW, replicas: 3, log_batching, ..Setup::default() };
        groups.push(Group::start_with(&setup).await?);
    }
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let mut made = [[0; 2]; 2];
        for _ in 0..options.turns {
            for (group, made) in groups.iter_mut().zip(&mut made) {
                let [directories, entries] = group.make(clients, options.period()).await?;
                *made = [made[0] + directories, made[1] + entries];
            }
        }
        let seconds = options.period().as_secs_f64() * options.turns as f64;
        let [on, off] = made.map(|[directories, _]| directories as f64 / seconds);
        let an_entry = made[0][0] as f64 / made[0][1] as f64;
        rows.push([clients.to_string(), count(on as u64), short(an_entry), count(off as u64), short(on / off)]);
    }
    report.heading("Raft log batching");
    report.paragraph(
        "Three replicas in one process, each with its own log and flush. Every client waits until its directory is applied, then \
         makes the next. Off (baseline): each directory has a log entry of its own (`raft.log_batching = false`). In both cases \
         one entry is in flight at a time, as for the change stream. PostgreSQL's share of a mkdir is not included; the paper's \
         +raftlogbatch is measured on the whole operation.",
    );
    report.table("clients | on: mkdirs/s | directories an entry | off: mkdirs/s | on ÷ off", &rows);
    Group::stop_all(groups).await
}
